"""A stored tensor under another shape: the same values, which are not read before they are written."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.model import constants


def reshaped(tensor: ir.TensorProtocol, shape: Sequence[int], name: str | None) -> ir.TensorProtocol:
    """`tensor` with as many values in this shape; where it is in a file, so is the result."""
    made, said = ir.Shape(shape), dict(tensor.metadata_props)
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=made,
            name=name or "",
            doc_string=tensor.doc_string,
            metadata_props=said,
            base_dir=tensor.base_dir,
        )

    def values() -> ir.TensorProtocol:
        return ir.Tensor(constants.numbers(tensor).reshape(shape), dtype=tensor.dtype, name=name)

    return ir.LazyTensor(
        values, tensor.dtype, made, name=name, doc_string=tensor.doc_string, metadata_props=said
    )
