"""Ranks of values, and onnx's shape inference, independent of a model's declarations."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Container

import numpy as np
from onnx import (
    IR_VERSION,
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from amp_rewrite.certificate.numbered import Numbered, graphs_of
from amp_rewrite.process import worker, worker_process


class Ranks:
    """The ranks of constants, and of values of the main graph: as onnx infers them, else as the model
    declares them if it is `believed`.
    """

    def __init__(self, model: Numbered, *, believed: bool = True) -> None:
        self._model, self._believed = model, believed

    def of(self, number: int) -> int | None:
        """Return the rank of a value; None if it is unknown."""
        constant = self._model.stored.get(number)
        return self._by_name(number) if constant is None else len(constant.dims)

    def _by_name(self, number: int) -> int | None:
        """Return the rank of a value by its name; values in functions may share that of another."""
        node, name = self._model.makers[number], self._model.names[number]
        if node is None:
            is_main = self._model.inputs.get(name) == number
        else:
            is_main = node.scope.outer is None
            if not is_main and node.scope.bound is None:
                return self._inner.get(name)
        inferred = self._inferred.get(name) if is_main else None
        return self._declared.get(name) if is_main and inferred is None and self._believed else inferred

    @functools.cached_property
    def _declared(self) -> dict[str, int]:
        return _ranks_in(self._model.proto.graph)

    @functools.cached_property
    def _inferred(self) -> dict[str, int]:
        return _ranks_in(self._graph)

    @functools.cached_property
    def _graph(self) -> GraphProto:
        return infer_shapes(self._model.proto) or GraphProto(input=self._model.proto.graph.input)

    @functools.cached_property
    def _inner(self) -> dict[str, int]:
        """The inferred ranks of the values of bodies, whose names no other value has."""
        ranks, names, waiting = dict[str, int](), Counter[str](), [self._graph]
        while waiting:
            graph = waiting.pop()
            ranks |= _ranks_in(graph)
            names.update(each.name for each in (*graph.input, *graph.initializer))
            names.update(name for node in graph.node for name in node.output)
            waiting += [body for node in graph.node for each in node.attribute for body in graphs_of(each)]
        return {name: rank for name, rank in ranks.items() if names[name] == 1}


def _ranks_in(graph: GraphProto) -> dict[str, int]:
    """Return the ranks that a graph declares, by value name."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    kinds = ((info.name, info.type.tensor_type) for info in infos)
    return {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}


_SMALL = 1 << 10
"""The most bytes of a constant whose elements may be sizes."""


def infer_shapes(model: ModelProto, unknown: Container[str] | None = None) -> GraphProto | None:
    """Return the graph of a model with the shapes inferred from its inputs and from its declarations of
    values that are not `unknown`; by default all are. None if onnx fails or crashes.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    _forget(bare.graph, unknown)
    domains = {node.domain for node in bare.graph.node} - {entry.domain for entry in bare.opset_import}
    bare.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains if domain)
    bare.ir_version = bare.ir_version or IR_VERSION  # onnx infers nothing without one
    inferred = _infer(bare)
    if inferred is not None and _add_ranks(bare.graph, inferred):
        inferred = _infer(bare) or inferred
    return infer_shapes(model) if inferred is None and unknown is not None else inferred


def _infer(model: ModelProto) -> GraphProto | None:
    inferred = worker.infer(worker_process.infer_graph, model.SerializeToString())  # some models crash onnx
    return GraphProto.FromString(inferred) if inferred else None


_LARGEST_RANK = 64


def _add_ranks(graph: GraphProto, inferred: GraphProto) -> bool:
    """Declare values that onnx infers no rank of and Reshapes or Transposes make, in bodies too: as many
    sizes as these read or permute. Return whether there are any.
    """
    tensors = {info.name: info.type.tensor_type for info in inferred.value_info}
    is_added = False
    for node, other in zip(graph.node, inferred.node, strict=False):
        bodies = (map(graphs_of, each.attribute) for each in (node, other))
        for before, after in zip(*map(itertools.chain.from_iterable, bodies), strict=False):
            is_added |= _add_ranks(before, after)
        output = tensors.get(node.output[0]) if len(node.output) == 1 and not node.domain else None
        if output is None or output.HasField("shape"):
            continue
        rank = 0
        if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in tensors:
            sizes = tensors[node.input[1]].shape.dim
            rank = sizes[0].dim_value if len(sizes) == 1 else 0
        elif node.op_type == "Transpose":
            rank = sum(len(attribute.ints) for attribute in node.attribute)
        if 0 < rank < _LARGEST_RANK:
            shape: list[str | None] = [None] * rank
            graph.value_info.append(helper.make_tensor_value_info(node.output[0], output.elem_type, shape))
            is_added = True
    return is_added


def _forget(graph: GraphProto, unknown: Container[str] | None) -> None:
    """Remove the declarations of `unknown` values except inputs, and the data of large constants."""
    waiting = [graph]
    while waiting:
        subgraph = waiting.pop()
        infos = [] if unknown is None else [info for info in subgraph.value_info if info.name not in unknown]
        del subgraph.value_info[:]
        subgraph.value_info.extend(infos)
        for info in subgraph.output if subgraph is graph else (*subgraph.input, *subgraph.output):
            if unknown is None or info.name in unknown:
                info.type.tensor_type.ClearField("shape")
        _store_casts(subgraph)
        for tensor in subgraph.initializer:
            _empty(tensor)
        for node in filter(_drops_axis, subgraph.node):
            node.domain = _UNKNOWN
        for attribute in (each for node in subgraph.node for each in node.attribute):
            waiting.extend(graphs_of(attribute))
            if attribute.type == AttributeProto.TENSOR:
                _empty(attribute.t)


def _store_casts(graph: GraphProto) -> None:
    """Store the results of Casts of small stored floats, from which alone onnx reads sizes."""
    small = (each for each in graph.initializer if each.ByteSize() <= _SMALL and not each.external_data)
    tensors_by_name = {each.name: each for each in small}
    for node in [node for node in graph.node if node.op_type == "Cast" and node.input[0] in tensors_by_name]:
        (kind,) = (attribute.i for attribute in node.attribute if attribute.name == "to")
        if not node.domain and {kind, tensors_by_name[node.input[0]].data_type} <= _FLOATS:
            array = numpy_helper.to_array(tensors_by_name[node.input[0]])
            with np.errstate(over="ignore", invalid="ignore"):
                result = array.astype(helper.tensor_dtype_to_np_dtype(kind))
            graph.initializer.append(numpy_helper.from_array(result, node.output[0]))
            graph.value_info.append(helper.make_tensor_value_info(node.output[0], kind, result.shape))
            graph.node.remove(node)


_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}

_UNKNOWN = "unknown"
"""A domain of operators for which onnx infers nothing."""


def _drops_axis(node: NodeProto) -> bool:
    """Return whether onnx may infer an axis that runtimes drop: it ignores `keepdims` beside a split."""
    splits = node.op_type == "SplitToSequence" and len(node.input) > 1
    return splits and any(each.name == "keepdims" and not each.i for each in node.attribute)


def _empty(tensor: TensorProto) -> None:
    if tensor.ByteSize() > _SMALL:
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
