"""Folding of constant subgraphs that a runtime would fold only in float32.

onnxruntime folds constant subgraphs at session creation with the kernels of its CPU provider, which has none
in half for most arithmetic: in half, the subgraph would be computed in every run, and a part left in float32
would need Casts. So the results of such arithmetic are stored. Data movement has half kernels and is not
folded: its result can be many times as large as its inputs. An operator that the user moved to another list
is folded like others: the stored result was computed in float32, whatever the list says.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from amp_rewrite.certificate import folding
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.model.graph_edits import StoredValues
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import DEQUANTIZE
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.process import worker

# Shapes and values of constant nodes, computed in the worker process: node by node with onnxruntime's CPU
# kernels where it is installed, as the runtime itself folds a float32 model; else with onnx's reference,
# which may differ in the last bit.


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
    """Constant nodes in order, and the constant tensors that they are computed from, without strings."""

    model: ir.Model
    nodes: Sequence[ir.Node]
    leaves: Mapping[ir.Value, ir.TensorProtocol]


def infer_sizes(constant: ConstantNodes) -> Sizes:
    """Return the sizes that onnx infers for the outputs of nodes: of tensors with known dimensions."""
    names = _names(constant)
    graph = worker.infer(_proto(constant, names, {}, data_up_to=_SMALL)) or onnx.GraphProto()
    types = {info.name: info.type for info in graph.value_info}
    sizes = {value: _size(types[name]) for value, name in names.items() if name in types}
    return {value: size for value, size in sizes.items() if size is not None}


_SMALL = 1 << 10
"""The largest tensor in bytes whose data is passed to the inference: shapes and axes are among these."""


def evaluate(constant: ConstantNodes, sizes: Sizes) -> Mapping[ir.Value, ir.TensorProtocol]:
    """Return the values of `sizes`; none at all if one cannot be computed, or differs from its size, or if
    the proof would not compute them again.
    """
    names = _names(constant)
    try:
        folding.refuse_costly(_proto(constant, names, sizes, data_up_to=_SMALL))
    except DifferentError:
        return {}
    data = _proto(constant, names, sizes).SerializeToString()
    outputs = worker.call(worker.evaluate, data) or {}
    tensor_bytes = {value: outputs[names[value]] for value in sizes if names[value] in outputs}
    arrays = {
        value: numpy_helper.to_array(onnx.TensorProto.FromString(data))
        for value, data in tensor_bytes.items()
    }
    if any(value not in arrays or not _fits(arrays[value], size) for value, size in sizes.items()):
        return {}
    return {value: ir.Tensor(array) for value, array in arrays.items()}


def _fits(array: np.ndarray, size: TensorSize) -> bool:
    return array.shape == size.dims and array.dtype == size.dtype.numpy()


def _names(constant: ConstantNodes) -> Mapping[ir.Value, str]:
    """Return a unique name for every value: sibling graphs may use the same name."""
    outputs = (value for node in constant.nodes for value in node.outputs)
    return {value: f"v{i}" for i, value in enumerate((*constant.leaves, *outputs))}


def _size(kind: onnx.TypeProto) -> TensorSize | None:
    tensor = kind.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    dtype = ir.DataType(tensor.elem_type)
    if not tensor.HasField("shape") or min(dims, default=0) < 0 or not constants.is_number(dtype):
        return None
    return TensorSize(dtype, tuple(dims))


def _proto(
    constant: ConstantNodes, names: Mapping[ir.Value, str], sizes: Sizes, data_up_to: int | None = None
) -> onnx.ModelProto:
    """Return a model of the nodes; constants of more bytes than `data_up_to` become inputs without data."""
    graph = onnx.GraphProto(name="constant")
    for value, tensor in constant.leaves.items():
        dims = tensor.shape.numpy()
        if data_up_to is None or tensor.nbytes <= data_up_to:
            graph.initializer.append(numpy_helper.from_array(constants.read_whole(tensor), names[value]))
        else:
            graph.input.append(helper.make_tensor_value_info(names[value], int(tensor.dtype), dims))
    for node in constant.nodes:
        graph.node.append(_node(node, names))
    for value, size in sizes.items():
        graph.output.append(helper.make_tensor_value_info(names[value], int(size.dtype), size.dims))
    imports = constant.model.graph.opset_imports
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    version = max(constant.model.ir_version, CONSTANT_INPUTS_BELOW)  # constants are not inputs
    return onnx.ModelProto(ir_version=version, graph=graph, opset_import=opsets)


def _node(node: ir.Node, names: Mapping[ir.Value, str]) -> onnx.NodeProto:
    return onnx.NodeProto(
        op_type=node.op_type,
        input=[names[value] if value is not None else "" for value in node.inputs],
        output=[names[value] if value.name else "" for value in node.outputs],
        attribute=[ir.serde.serialize_attribute(attribute) for attribute in node.attributes.values()],
    )


_FOLDED = having(Trait.FLOAT_ON_CPU) | {DEQUANTIZE}

LARGEST = 1 << 26
"""The largest value in bytes that is read or computed."""

GROWTH = 2
"""The largest ratio of a result's size to that of its largest input."""

SMALL = 1 << 16
"""The size in bytes up to which a result is stored, whatever the size of its inputs."""


def fold_constants(
    model: ir.Model, exclusions: Container[ir.Node], *, biases: bool = False
) -> tuple[FormChange, ...]:
    """Store the results of constant float32 nodes with operators in _FOLDED, and with `biases` those
    that dequantise 32 bits.

    Their producers are removed where they have no other consumer. Nodes in `exclusions` and their dependents
    are not folded, nor are outputs of a graph, and results above the limits.
    """
    store = StoredValues(model)
    constant = _constant(model, store, exclusions, biases=biases)
    if not any(node.op_type in _FOLDED for node in constant.nodes):
        return ()
    sizes = infer_sizes(constant)
    targets = frozenset(_folding_targets(constant, sizes))
    subgraph = _subgraph_of(constant, targets)
    into = _removable(subgraph.nodes, targets)
    results = [node.outputs[0] for node in subgraph.nodes if into.get(node) == node.outputs[0].name]
    if not results:
        return ()
    tensors = evaluate(subgraph, {value: sizes[value] for value in results})
    store.put(tensors)
    return tuple(_remove(subgraph, into, store)) if tensors else ()


def _constant(
    model: ir.Model, store: StoredValues, exclusions: Container[ir.Node], *, biases: bool
) -> ConstantNodes:
    """Return the nodes that depend on constants alone, and may be folded."""
    nodes: list[ir.Node] = []
    leaf_tensors: dict[ir.Value, ir.TensorProtocol] = {}
    constant_values: set[ir.Value] = set()
    leaf = functools.cache(functools.partial(_leaf, store))
    for node in itertools.chain.from_iterable(traversal.nodes(model.graph).values()):
        values = [value for value in node.inputs if value is not None]
        if not values or not all(value in constant_values or leaf(value) is not None for value in values):
            continue
        is_dequantized = biases and node.op_type == DEQUANTIZE and not node.domain
        tensor = leaf(values[0]) if is_dequantized else None
        is_bias = tensor is not None and tensor.dtype == ir.DataType.INT32
        if node not in exclusions and (is_bias or _is_plain(node)):
            nodes.append(node)
            constant_values.update(node.outputs)
            leaves = ((value, leaf(value)) for value in values if value not in constant_values)
            leaf_tensors.update((value, tensor) for value, tensor in leaves if tensor is not None)
    return ConstantNodes(model, nodes, leaf_tensors)


def _leaf(store: StoredValues, value: ir.Value) -> ir.TensorProtocol | None:
    """Return the constant tensor of a value, if it is numeric and not too large."""
    tensor = store.tensor(value)
    fits = tensor is not None and constants.is_number(tensor.dtype) and tensor.nbytes <= LARGEST
    return tensor if fits else None


def _is_plain(node: ir.Node) -> bool:
    """Return whether a node has a deterministic ONNX operator, and no bodies, and is no border of a quantised
    region, which runtimes recognise.
    """
    is_random = record_of(node).traits & Trait.DRAWS
    is_border = node.op_type.endswith("QuantizeLinear") or node.op_type == DEQUANTIZE
    if node.domain or is_random or is_border or control_flow.may_have_bodies(node):
        return False
    return not any(attribute.is_ref() for attribute in node.attributes.values())


def _folding_targets(constant: ConstantNodes, sizes: Sizes) -> Iterator[ir.Node]:
    """Yield the nodes whose result may be stored: float32, of a folded operator, and within the limits."""
    largest: dict[ir.Value | None, int] = {value: tensor.nbytes for value, tensor in constant.leaves.items()}
    for node in constant.nodes:
        outputs = [value for value in node.outputs if value.name]
        sources = [largest.get(value, LARGEST + 1) for value in node.inputs if value is not None]
        top = max(sources)
        if top > LARGEST or any(value not in sizes or sizes[value].nbytes > LARGEST for value in outputs):
            continue
        largest.update(dict.fromkeys(outputs, top))
        if node.op_type in _FOLDED and len(outputs) == len(node.outputs) == 1:
            value, size = outputs[0], sizes[outputs[0]]
            small = size.nbytes <= max(SMALL, GROWTH * top)
            if small and size.dtype == ir.DataType.FLOAT and not value.is_graph_output():
                yield node


def _subgraph_of(constant: ConstantNodes, targets: Container[ir.Node]) -> ConstantNodes:
    """Return the subgraph of the targets and their ancestors."""
    ancestors: dict[ir.Node | None, None] = {}
    for node in reversed(constant.nodes):
        if node in targets or node in ancestors:
            ancestors[node] = None
            ancestors.update(dict.fromkeys(value.producer() for value in node.inputs if value is not None))
    nodes = [node for node in constant.nodes if node in ancestors]
    inputs = {value for node in nodes for value in node.inputs}
    leaves = {value: tensor for value, tensor in constant.leaves.items() if value in inputs}
    return replace(constant, nodes=nodes, leaves=leaves)


def _removable(nodes: Sequence[ir.Node], targets: Container[ir.Node]) -> dict[ir.Node, str]:
    """Return the nodes that are dead once the targets are stored, each with the name of a result it fed."""
    into: dict[ir.Node, str] = {}
    for node in reversed(nodes):
        readers = [reader for value in node.outputs for reader, _ in value.uses()]
        if any(value.is_graph_output() for value in node.outputs) or not readers:
            continue
        if all(reader in into for reader in readers):
            into[node] = into[readers[0]]
        elif node in targets:
            into[node] = node.outputs[0].name or ""
    return into


def _remove(
    constant: ConstantNodes, into: Mapping[ir.Node, str], store: StoredValues
) -> Iterator[FormChange]:
    """Remove nodes whose results are stored, and values without another consumer."""
    graph_edits.remove(node for node in constant.nodes if node in into and node.graph is not None)
    for value in constant.leaves:
        store.forget(value)
    for node in constant.nodes:
        if node in into:
            yield FormChange(FormChangeKind.FOLDED, pinned_as(node), into[node])
