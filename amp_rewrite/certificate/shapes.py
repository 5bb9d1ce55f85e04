"""Shapes: ranks and sizes as onnx infers them, and those that a result declares."""

from __future__ import annotations

import functools
from collections.abc import Collection, Container, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from onnx import (
    IR_VERSION,
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, graphs_of
from amp_rewrite.certificate.value_kinds import find_schema
from amp_rewrite.process import worker


class Ranks:
    """The ranks of constants and of values: as onnx infers them, else as the model declares them if it is
    `believed`. Values in functions have none.
    """

    def __init__(self, model: Numbered, *, believed: bool = True) -> None:
        self._model, self._believed = model, believed

    def of(self, number: int) -> int | None:
        """Return the rank of a value; None if it is unknown."""
        if number in self._model.stored:
            return len(self._model.stored[number].dims)
        shapes = self._inferred.get(number) or self._declared.get(number, ())
        ranks = {len(dims) for dims in shapes}
        return ranks.pop() if len(ranks) == 1 else None

    @functools.cached_property
    def _declared(self) -> _Sizes:
        return _sizes_in(self._model, self._model.proto.graph) if self._believed else {}

    @functools.cached_property
    def _inferred(self) -> _Sizes:
        graph = infer_shapes(self._model.proto)
        return _sizes_in(self._model, graph or GraphProto(input=self._model.proto.graph.input))


def _sizes_in(model: Numbered, declaring: GraphProto) -> _Sizes:
    """Return the sizes of a model's values outside functions, by number, as its graph or another with the
    same bodies declares them.
    """
    graphs = zip(_graphs_in(model.proto.graph), _graphs_in(declaring), strict=False)
    declarations = {id(own): each for own, each in graphs}
    sizes: _Sizes = {}
    for own, scope in model.scopes:
        graph = declarations.get(id(own), _EMPTY)
        for info in (*graph.value_info, *graph.input, *graph.output):
            number, dims = scope.names.get(info.name), sizes_of(info.type)
            if number is not None and dims is not None:
                sizes.setdefault(number, []).append(dims)
    return sizes


_EMPTY = GraphProto()


def _graphs_in(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and its bodies, outer before inner."""
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(body for node in graph.node for each in node.attribute for body in graphs_of(each))


# ---- inference by onnx


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
    inferred = worker.infer(bare)
    if inferred is not None and _add_ranks(bare.graph, inferred):
        inferred = worker.infer(bare) or inferred
    return infer_shapes(model) if inferred is None and unknown is not None else inferred


_LARGEST_RANK = 64


def _add_ranks(graph: GraphProto, inferred: GraphProto) -> bool:
    """Declare values that onnx infers no rank of and Reshapes or Transposes make, in bodies too: as many
    sizes as these read or permute. Return whether there are any.
    """
    is_added = False
    for before, after in zip(_graphs_in(graph), _graphs_in(inferred), strict=False):
        tensors = {info.name: info.type.tensor_type for info in after.value_info}
        for node in before.node:
            if node.op_type not in ("Reshape", "Transpose") or node.domain or len(node.output) != 1:
                continue
            output, rank = tensors.get(node.output[0]), 0
            if output is None or output.HasField("shape"):
                continue
            if node.op_type == "Transpose":
                rank = sum(len(attribute.ints) for attribute in node.attribute)
            elif len(node.input) > 1 and node.input[1] in tensors:
                sizes = tensors[node.input[1]].shape.dim
                rank = sizes[0].dim_value if len(sizes) == 1 else 0
            if 0 < rank < _LARGEST_RANK:
                shape: list[str | None] = [None] * rank
                info = helper.make_tensor_value_info(node.output[0], output.elem_type, shape)
                before.value_info.append(info)
                is_added = True
    return is_added


def _forget(graph: GraphProto, unknown: Container[str] | None) -> None:
    """Remove the declarations of `unknown` values except inputs, and the data of large constants."""
    for subgraph in _graphs_in(graph):
        infos = [] if unknown is None else [info for info in subgraph.value_info if info.name not in unknown]
        del subgraph.value_info[:]
        _forget_names(infos)
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
            if attribute.type == AttributeProto.TENSOR:
                _empty(attribute.t)


def _forget_names(infos: Iterable[ValueInfoProto]) -> None:
    """Remove names of sizes that an earlier inference made up: it named those of some values alone."""
    for dim in (dim for info in infos for dim in info.type.tensor_type.shape.dim):
        if dim.dim_param.startswith(worker.MADE_UP):
            dim.ClearField("dim_param")


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


# ---- the shapes that a result declares: runtimes believe them where they cannot infer a shape


Declared = tuple[Any, int, int]
"""A declaration of the result, and the numbers of the equal value of the original and of its own value."""


def declared_shapes(model: Numbered) -> Iterator[tuple[Any, int]]:
    """Yield the declarations of a model for the values that its nodes compute, with their numbers."""
    for graph, scope in model.scopes:
        infos = [graph.value_info] if isinstance(graph, FunctionProto) else [graph.value_info, graph.output]
        if scope.outer is not None and isinstance(graph, GraphProto):
            infos.append(graph.input)
        for each in infos:
            for info in each:
                number = scope.names.get(info.name)
                if number is not None:
                    yield info, number


def refuse_other_shapes(original: Numbered, rewritten: Numbered, declared: Collection[Declared]) -> None:
    """Raise DifferentError for a declared size or rank that neither the original declares of an equal value
    nor onnx infers from either model, and for a name that stands for two open sizes. Behind operators unknown
    to onnx, and where it fails on both models, what has no other size may be declared.
    """
    declared_of: _Sizes = {}
    inferred_of: _Sizes = {}
    for info, number in declared_shapes(original):
        if (dims := sizes_of(info.type)) is not None:
            declared_of.setdefault(original.roots[number], []).append(dims)
    rows = [
        _DeclaredShape(
            info.name, dims, left, right, declared_of.get(left, ()), inferred_of.setdefault(left, [])
        )
        for info, left, right in declared
        if (dims := sizes_of(info.type)) is not None
    ]
    if not (doubtful := _doubtful(rows, original, rewritten)):
        return
    before = infer_shapes(original.proto, ())
    for number, sizes in ({} if before is None else _sizes_in(original, before)).items():
        inferred_of.get(original.roots[number], []).extend(sizes)
    doubtful = _doubtful(doubtful, original, rewritten)
    after = infer_shapes(rewritten.proto, {row.name for row in doubtful}) if doubtful else None
    inferred = {} if after is None else _sizes_in(rewritten, after)
    hidden = _hidden(original), _hidden(rewritten)
    is_inferred = (before, after) != (None, None)
    seen = (row for row in rows if row.left not in hidden[0] or rewritten.roots[row.right] not in hidden[1])
    whole = {row.right for row in seen if is_inferred}
    for row in doubtful:
        sources = [*row.declared, *row.inferred, *inferred.get(row.right, ())]
        is_right = _is_possible if row.left == MISSING else _agrees
        if (sources or row.right in whole) and not is_right(row.dims, sources):
            sizes = ",".join("?" if size is None else str(size) for size in row.dims)
            problem = f"the shape that it declares, [{sizes}], is not known"
            raise DifferentError(problem, (row.left, row.right, ""))
    borders = {size for info in original.proto.graph.input for size in sizes_of(info.type) or ()}
    _refuse_merged(rows, inferred, borders, whole)


def _hidden(model: Numbered) -> Set[int]:
    """Return the values that operators unknown to onnx make, or that are behind these, and MISSING."""
    hidden, size = {MISSING}, 0
    operators = {(node.operator, node.version): node for node in model.nodes}
    while size < len(hidden) and any(map(_is_opaque, operators.values())):
        size = len(hidden)
        for node in model.nodes:
            reads = {*node.inputs, *(number for body in node.bodies or () for number in body.outputs)}
            reads |= {model.passed[number] for number in reads if number in model.passed}
            if _is_opaque(node) or not hidden.isdisjoint(reads - {MISSING}):
                hidden.update(node.numbers)
    return hidden


def _doubtful(
    rows: Iterable[_DeclaredShape], original: Numbered, rewritten: Numbered
) -> Sequence[_DeclaredShape]:
    """Return the declarations that no source has, unless an operator unknown to onnx makes the value in both
    models.
    """
    rows = [row for row in rows if row.dims not in row.declared and row.dims not in row.inferred]
    makers = original.makers, rewritten.makers
    return [
        row
        for row in rows
        if row.declared or not (_is_opaque(makers[0][row.left]) and _is_opaque(makers[1][row.right]))
    ]


_Size = int | str | None
"""A size, the name of an open one, or None."""

_Dims = Sequence[_Size]

_Sizes = dict[int, list[_Dims]]
"""The sizes of values by their numbers, as different sources have them."""


class _DeclaredShape(NamedTuple):
    """A shape that the result declares, and those that the original declares of the equal value, and those
    that onnx infers of it.
    """

    name: str
    dims: _Dims
    left: int
    right: int
    declared: Sequence[_Dims]
    inferred: Sequence[_Dims]


def _refuse_merged(
    rows: Iterable[_DeclaredShape],
    inferred: _Sizes,
    borders: Container[_Size],
    whole: Container[int],
) -> None:
    """Raise DifferentError for a name of two open sizes: a runtime may use one buffer for values of the same
    declared shape. The original tells which sizes are the same, by names; the `borders` of the model have the
    same ones in both. So does onnx, by names of its own.
    """
    places_of: dict[str, dict[tuple[frozenset[Any], bool], _DeclaredShape]] = {}
    unique: dict[object, tuple[_DeclaredShape, bool, Sequence[Sequence[_Dims]]]] = {}
    for row in rows:
        is_whole, by_model = row.right in whole, (row.declared, row.inferred, inferred.get(row.right, ()))
        shapes = [tuple(map(tuple, each)) for each in by_model]
        unique.setdefault((tuple(row.dims), is_whole, *shapes), (row, is_whole, by_model))
    for row, is_whole, by_model in unique.values():
        for axis, size in enumerate(row.dims):
            if isinstance(size, str):
                known = frozenset(
                    (at, sizes[axis])
                    for at, each in enumerate(by_model[: 3 if is_whole else 1])
                    for sizes in each
                    if axis < len(sizes) and sizes[axis] is not None
                )
                places_of.setdefault(size, {}).setdefault((known, is_whole), row)
    for size, places in places_of.items():
        meaning: set[Any] = {(at, size) for at in range(3)} if size in borders else set()
        for (known, is_whole), row in sorted(places.items(), key=lambda place: -len(place[0][0])):
            if meaning and meaning.isdisjoint(known) and (known or is_whole):
                problem = f"the name that it declares for a size, '{size}', is that of another"
                raise DifferentError(problem, (row.left, row.right, ""))
            meaning |= known


def _is_opaque(node: Node | None) -> bool:
    """Return whether onnx does not know the operator of a node, such as one of onnxruntime's."""
    return node is not None and find_schema(*node.operator, node.version) is None


def _is_possible(dims: _Dims, sources: Iterable[_Dims]) -> bool:
    """Return whether no source has another rank or size, which suffices for a value without a counterpart."""
    pairs = (zip(dims, source, strict=True) for source in sources if len(source) == len(dims))
    return all(len(source) == len(dims) for source in sources) and not any(
        isinstance(one, int) and isinstance(other, int) and one != other
        for pair in pairs
        for one, other in pair
    )


def _agrees(dims: _Dims, sources: Collection[_Dims]) -> bool:
    """Return whether a source is the same, or each size occurs in one, and all have the same rank."""
    if dims in sources:
        return True
    if not sources or any(len(each) != len(dims) for each in sources):
        return False
    return all(
        not isinstance(size, int) or size in sizes for size, *sizes in zip(dims, *sources, strict=True)
    )


def sizes_of(declared: TypeProto) -> _Dims | None:
    """Return the declared sizes, with the names of open ones, None without; for a container, those of its
    element. None without a declared shape.
    """
    which = declared.WhichOneof("value")
    while which in ("sequence_type", "optional_type"):
        declared = getattr(declared, which).elem_type
        which = declared.WhichOneof("value")
    if which != "tensor_type" or not declared.tensor_type.HasField("shape"):
        return None
    dims = declared.tensor_type.shape.dim
    return [dim.dim_value or dim.dim_param or (0 if dim.HasField("dim_value") else None) for dim in dims]
