"""Ranks and sizes of values, from constants, declarations, a few operators and onnx's shape inference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping

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

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of, graphs_of
from amp_rewrite.operators.catalogue import broadcasts, keeps_rank
from amp_rewrite.process import worker, worker_process


class Ranks:
    """The ranks of the values of a model; declarations of its main graph are read on demand.

    Inference by onnx takes precedence; other declarations count only if the model is `believed`.
    """

    def __init__(self, model: Numbered, *, believed: bool = True) -> None:
        self._model, self._believed = model, believed
        self._known: dict[int, int | None] = {}

    def of(self, number: int) -> int | None:
        """Return the rank of a value; None if it is unknown."""
        ranks, waiting = self._known, [number]
        while waiting:
            top = waiting.pop()
            if ranks.get(top) is not None:
                continue
            sources = self._used(top)
            if sources and top not in ranks:
                ranks[top] = None
                waiting += (top, *(value for value in sources if value not in ranks))
            else:
                ranks[top] = self._found(top, sources)
        return ranks[number]

    def _used(self, number: int) -> list[int]:
        """Return the values whose ranks may determine that of a value."""
        node = self._model.makers[number]
        if node is None or number in self._model.stored or node.count != 1 or node.operator[0]:
            return []
        name = node.operator[1]
        if name == "Reshape" and len(node.inputs) > 1:
            return [*shapes_of_length(self._model, node.inputs[1])]
        if broadcasts(name) or name == "MatMul":
            return node.inputs
        return node.inputs[:1] if keeps_rank(name) or name == "Unsqueeze" else []

    def _found(self, number: int, sources: list[int]) -> int | None:
        """Return the rank of a value from its producer, from that one's operands, or from its declaration."""
        constant, node = self._model.stored.get(number), self._model.makers[number]
        if constant is not None:
            return len(constant.dims)
        rank = self._by_operator(node) if node is not None else None
        if rank is None and node is not None and sources:
            rank = _by_inputs(node.operator[1], [self._known.get(value) for value in sources])
            rank = rank if node.operator[1] != "Unsqueeze" else self._with_axes(node, rank)
        return self._by_name(number) if rank is None else rank

    def _by_operator(self, node: Node) -> int | None:
        if node.operator in (("", "Gemm"), ("", "Flatten")):
            return 2
        if node.operator == ("", "Transpose"):
            perm = attributes_of(node).get("perm")
            return None if perm is None else len(perm.attribute.ints) or None
        if node.operator == ("", "Reshape") and len(node.inputs) > 1:
            return length_of(self._model, node.inputs[1], self._known.get)
        return None

    def _with_axes(self, node: Node, rank: int | None) -> int | None:
        """Return the rank of an Unsqueeze of a value of this rank."""
        attribute = attributes_of(node).get("axes")
        axes = self._model.stored.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if rank is not None and attribute is not None:
            return rank + len(attribute.attribute.ints)
        return rank + axes.dims[0] if rank is not None and axes and len(axes.dims) == 1 else None

    def _by_name(self, number: int) -> int | None:
        """Return the declared rank of a value of the main graph; values in functions may share its names."""
        node, name = self._model.makers[number], self._model.names[number]
        if (self._model.inputs.get(name) != number) if node is None else (node.scope.outer is not None):
            return None
        inferred = self._inferred.get(name)
        return self._declared.get(name) if inferred is None and self._believed else inferred

    @functools.cached_property
    def _declared(self) -> dict[str, int]:
        return _ranks_in(self._model.proto.graph)

    @functools.cached_property
    def _inferred(self) -> dict[str, int]:
        inferred = infer_shapes(self._model.proto)
        return _ranks_in(inferred or GraphProto(input=self._model.proto.graph.input))


def _ranks_in(graph: GraphProto) -> dict[str, int]:
    """Return the ranks that a graph declares, by value name."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    kinds = ((info.name, info.type.tensor_type) for info in infos)
    return {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}


def _by_inputs(name: str, ranks: list[int | None]) -> int | None:
    if None in ranks or name == "Reshape":
        return None
    input_ranks = [rank for rank in ranks if rank is not None]
    if broadcasts(name):
        return max(input_ranks)
    if name == "MatMul":
        return max(input_ranks) if min(input_ranks) > 1 else None
    return input_ranks[0]


# ---- lengths of values with one axis, such as the shape input of a Reshape


Rank = Callable[[int], int | None]
"""Returns the rank of a value by its number; None if it is unknown."""

_DEEPEST = 16
"""The longest chain of nodes that is followed: sizes are computed by a few."""

_MOST = 1 << 10
"""The most values examined for one length, which bounds the time for many lengths of many parts."""


def shapes_of_length(model: Numbered, number: int) -> Iterator[int]:
    """Yield the values whose ranks determine the length of a value, as it is computed from their shapes."""
    visits, level = {number}, [number]
    for _ in range(_DEEPEST):
        nodes = [node for value in level if (node := model.makers[value]) is not None]
        nodes = [node for node in nodes if node.operator in _RULES]
        yield from (node.inputs[0] for node in nodes if node.operator == ("", "Shape"))
        inner = [node for node in nodes if node.operator not in (("", "Shape"), ("", "Unsqueeze"))]
        if len(visits) + sum(len(node.inputs) for node in inner) > _MOST:
            return
        level = [*dict.fromkeys(value for node in inner for value in node.inputs if value not in visits)]
        visits.update(level)


def length_of(model: Numbered, number: int, rank: Rank) -> int | None:
    """Return the number of elements of a value with one axis; None if it is unknown, or has more axes."""
    lengths: dict[tuple[int, int], int | None] = {}

    def length(value: int, deepest: int) -> int | None:
        if (value, deepest) not in lengths:
            lengths[value, deepest] = compute(value, deepest)
        return lengths[value, deepest]

    def compute(value: int, deepest: int) -> int | None:
        stored, node = model.stored.get(value), model.makers[value]
        if stored is not None:
            return stored.dims[0] if len(stored.dims) == 1 else None
        if node is None or node.operator not in _RULES or not deepest:
            return None
        if len(lengths) + len(node.inputs) > _MOST:
            return None
        return _RULES[node.operator](model, node, rank, lambda each: length(each, deepest - 1))

    return length(number, _DEEPEST)


_Length = Callable[[int], int | None]
_Rule = Callable[[Numbered, Node, Rank, _Length], int | None]


def _of_shape(_: Numbered, node: Node, rank: Rank, __: _Length) -> int | None:
    axes, attributes = rank(node.inputs[0]), attributes_of(node)
    if axes is None:
        return None
    ends = (attributes[name].attribute.i if name in attributes else None for name in ("start", "end"))
    return len(range(axes)[slice(*ends)])


def _of_parts(_: Numbered, node: Node, __: Rank, length: _Length) -> int | None:
    parts = [length(value) for value in node.inputs]
    sizes = [part for part in parts if part is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def _length_of_first(_: Numbered, node: Node, __: Rank, length: _Length) -> int | None:
    return length(node.inputs[0])


def _of_indices(_: Numbered, node: Node, __: Rank, length: _Length) -> int | None:
    return length(node.inputs[1])


def _of_one(_: Numbered, __: Node, ___: Rank, ____: _Length) -> int:
    return 1  # one axis: an unsqueezed scalar


def _of_slice(model: Numbered, node: Node, _: Rank, length: _Length) -> int | None:
    whole = length(node.inputs[0])
    start, end, step = (_bound(model, node, *where) for where in _BOUNDS)
    if whole is None or start is None or end is None or not step:
        return None
    return len(range(whole)[start:end:step])


_BOUNDS = (("starts", 1, None), ("ends", 2, None), ("", 4, 1))
"""The bounds of a Slice: the attribute of old versions, the input of new ones, and the default."""


def _bound(model: Numbered, node: Node, name: str, port: int, default: int | None) -> int | None:
    bound = attributes_of(node).get(name)
    if bound is not None:
        return bound.attribute.ints[0] if len(bound.attribute.ints) == 1 else None
    if port >= len(node.inputs) or node.inputs[port] == MISSING:
        return default
    tensor = model.stored.get(node.inputs[port])
    if not isinstance(tensor, TensorProto) or list(tensor.dims) != [1]:
        return None
    return int(tensors.whole(tensor, model.folder)[0])


_RULES: Mapping[tuple[str, str], _Rule] = {
    ("", "Cast"): _length_of_first,
    ("", "Concat"): _of_parts,
    ("", "Gather"): _of_indices,
    ("", "Identity"): _length_of_first,
    ("", "Shape"): _of_shape,
    ("", "Slice"): _of_slice,
    ("", "Unsqueeze"): _of_one,
}
"""The operators with which exporters compute sizes, each with the rule for its length."""


# ---- onnx's shape inference, independent of a model's declarations


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
    inferred = worker.infer(worker_process.infer_graph, bare.SerializeToString())  # some models crash onnx
    if inferred:
        return GraphProto.FromString(inferred)
    return None if unknown is None else infer_shapes(model)


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
