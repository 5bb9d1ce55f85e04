"""Tensors that lie outside the model's own file: where they are, and that they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import ModelError

KEY = b"location"
"""The key under which a tensor names the file that holds it: a model without these bytes has none such."""

EXPORT_AGAIN = "export or download it again"


def sizes(model: ir.Model, path: Path) -> Iterator[int]:
    """The sizes of the external tensors; ModelError for one that is not where it should be."""
    root = path.parent.resolve()
    for tensor in tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            _check_external(tensor, root, path)
            yield tensor.nbytes


def files(model: ir.Model) -> frozenset[Path]:
    """The files that hold tensors of a model."""
    return frozenset(Path(t.path) for t in tensors(model) if isinstance(t, ir.ExternalTensor))


def tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of all graphs, and the tensors that attributes hold."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for _, attribute in _tensor_attributes(model):
        yield attribute.as_tensor()


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for graph in model.graphs():
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield node, attribute


def take_in_attributes(model: ir.Model) -> None:
    """Reads what attributes hold in files: only initializers are written to external data again."""
    for node, attribute in list(_tensor_attributes(model)):
        tensor = attribute.as_tensor()
        if isinstance(tensor, ir.ExternalTensor):
            held = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, held)


def _check_external(tensor: ir.ExternalTensor, root: Path, path: Path) -> None:
    place = (root / tensor.location).resolve()
    what = f"the data of '{tensor.name}'" if tensor.name else "the data of a tensor"
    if root not in place.parents:
        raise ModelError(
            f"{what} would lie outside the model's folder",
            where=path,
            remedy="keep the file beside the model, and let it be no link to elsewhere",
        )
    try:
        size = place.stat().st_size
    except OSError as error:
        raise ModelError(
            f"{what} should be in {tensor.location}, and that cannot be read",
            where=path,
            remedy="put the file beside the model",
        ) from error
    offset = tensor.offset or 0
    if not 0 <= offset <= size - tensor.nbytes:
        raise ModelError(f"{what} ends beyond the end of {tensor.location}", where=path, remedy=EXPORT_AGAIN)


def size_of(model: ir.Model) -> int:
    """The bytes of all tensors of a model, wherever they lie."""
    return sum(tensor.nbytes for tensor in tensors(model))
