"""The shapes and the values of nodes that depend on stored values alone.

The worker process computes them: with onnxruntime's CPU kernels where it is installed, node by node, as the
runtime itself folds a float32 model; else with onnx's reference, which may differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.onnx_types import worker, worker_process
from amp_rewrite.preparing import stored_values


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The element type and the dimensions of a value."""

    dtype: ir.DataType
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> float:
        """The bytes of its elements."""
        return prod(self.dims) * self.dtype.itemsize


Sizes = Mapping[ir.Value, TensorSize]


@dataclass(frozen=True, slots=True)
class ConstantNodes:
    """Nodes in order, and the stored tensors that they are computed from, none of them of text."""

    model: ir.Model
    nodes: Sequence[ir.Node]
    leaves: Mapping[ir.Value, ir.TensorProtocol]


def sizes(constant: ConstantNodes) -> Sizes:
    """What onnx infers of the values that the nodes make, as far as they are tensors of known dimensions."""
    names = _names(constant)
    data = _proto(constant, names, {}, data_up_to=_SMALL).SerializeToString()
    found = worker.call(worker_process.infer_model, data, propagates_data=True) or {}
    inferred = {value: found[name] for value, name in names.items() if name in found}
    known = {value: _size(onnx.TypeProto.FromString(kind)) for value, kind in inferred.items()}
    return {value: size for value, size in known.items() if size is not None}


_SMALL = 1 << 10
"""The size in bytes up to which the inference is told the numbers in a tensor, as of shapes and axes."""


def values(constant: ConstantNodes, wanted: Sizes) -> Mapping[ir.Value, ir.TensorProtocol]:
    """The wanted values; none at all where one cannot be computed, or is of another size than inferred."""
    names = _names(constant)
    data = _proto(constant, names, wanted).SerializeToString()
    found = worker.call(worker_process.evaluate, data) or {}
    made = {value: found[names[value]] for value in wanted if names[value] in found}
    arrays = {value: numpy_helper.to_array(onnx.TensorProto.FromString(data)) for value, data in made.items()}
    if any(value not in arrays or not _fits(arrays[value], size) for value, size in wanted.items()):
        return {}
    return {value: ir.Tensor(array) for value, array in arrays.items()}


def _fits(array: np.ndarray, size: TensorSize) -> bool:
    return array.shape == size.dims and array.dtype == size.dtype.numpy()


def _names(constant: ConstantNodes) -> Mapping[ir.Value, str]:
    """A name for every value: graphs beside each other may use the same twice."""
    made = (value for node in constant.nodes for value in node.outputs)
    return {value: f"v{i}" for i, value in enumerate((*constant.leaves, *made))}


def _size(kind: onnx.TypeProto) -> TensorSize | None:
    tensor = kind.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    dtype = ir.DataType(tensor.elem_type)
    if not tensor.HasField("shape") or min(dims, default=0) < 0 or not stored_values.is_number(dtype):
        return None
    return TensorSize(dtype, tuple(dims))


def _proto(
    constant: ConstantNodes, names: Mapping[ir.Value, str], wanted: Sizes, data_up_to: int | None = None
) -> onnx.ModelProto:
    """A model of the nodes; stored tensors with more bytes than `data_up_to` are inputs, and have no data."""
    graph = onnx.GraphProto(name="constant")
    for value, tensor in constant.leaves.items():
        dims = tensor.shape.numpy()
        if data_up_to is None or tensor.nbytes <= data_up_to:
            graph.initializer.append(numpy_helper.from_array(stored_values.read(tensor), names[value]))
        else:
            graph.input.append(helper.make_tensor_value_info(names[value], int(tensor.dtype), dims))
    for node in constant.nodes:
        graph.node.append(_node(node, names))
    for value, size in wanted.items():
        graph.output.append(helper.make_tensor_value_info(names[value], int(size.dtype), size.dims))
    imports = constant.model.graph.opset_imports
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    version = max(constant.model.ir_version, CONSTANT_INPUTS_BELOW)  # from there on none is an input as well
    return onnx.ModelProto(ir_version=version, graph=graph, opset_import=opsets)


def _node(node: ir.Node, names: Mapping[ir.Value, str]) -> onnx.NodeProto:
    return onnx.NodeProto(
        op_type=node.op_type,
        input=[names[value] if value is not None else "" for value in node.inputs],
        output=[names[value] if value.name else "" for value in node.outputs],
        attribute=[ir.serde.serialize_attribute(attribute) for attribute in node.attributes.values()],
    )
