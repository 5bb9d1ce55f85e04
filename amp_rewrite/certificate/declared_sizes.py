"""The shapes that a result declares: runtimes believe them where they cannot infer a shape."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from onnx import FunctionProto, GraphProto, TypeProto

from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered
from amp_rewrite.certificate.shapes import infer_shapes
from amp_rewrite.certificate.value_kinds import find_schema

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
    nor onnx infers from the inputs of the result, and for a name that stands for two open sizes. Behind
    operators unknown to onnx, and where it fails on both models, what has no other size may be declared.
    """
    declared_of: dict[int, list[_Dims]] = {}
    for info, number in declared_shapes(original):
        if (dims := sizes_of(info.type)) is not None:
            declared_of.setdefault(original.roots[number], []).append(dims)
    rows = [
        _Row(info.name, dims, left, right, declared_of.get(left, []))
        for info, left, right in declared
        if (dims := sizes_of(info.type)) is not None
    ]
    doubtful = [row for row in rows if row.dims not in row.declared]
    doubtful = [row for row in doubtful if row.declared or not _is_opaque(original.makers[row.left])]
    unknown = {row.name for row in doubtful}
    graph = infer_shapes(rewritten.proto, unknown) if unknown else None
    inferred = {} if graph is None else _sizes_in(graph)
    is_whole = not any(map(_is_opaque, rewritten.nodes))
    if unknown and graph is None and infer_shapes(original.proto) is None:
        is_whole = False
    for row in doubtful:
        sources = [*row.declared, *inferred.get(row.name, ())]
        is_right = _is_possible if row.left == MISSING else _agrees
        if (sources or is_whole) and not is_right(row.dims, sources):
            problem = f"the shape that it declares, {_format_dims(row.dims)}, is not known"
            raise DifferentError(problem, (row.left, row.right, ""))
    borders = {size for info in original.proto.graph.input for size in sizes_of(info.type) or ()}
    _refuse_merged(rows if unknown else (), inferred if is_whole else {}, borders, is_whole=is_whole)


_Size = int | str | None
"""A size, the name of an open one, or None."""

_Dims = Sequence[_Size]


class _Row(NamedTuple):
    """A shape that the result declares, and those that the original declares of the equal value."""

    name: str
    dims: _Dims
    left: int
    right: int
    declared: Sequence[_Dims]


def _refuse_merged(
    rows: Iterable[_Row],
    inferred: Mapping[str, Sequence[_Dims]],
    borders: Container[_Size],
    *,
    is_whole: bool,
) -> None:
    """Raise DifferentError for a name of two open sizes: a runtime may use one buffer for values of the same
    declared shape. The original tells which sizes are the same, by names; the `borders` of the model have the
    same ones in both. So does onnx, by names of its own.
    """
    places_of: dict[str, list[tuple[set[tuple[bool, _Size]], _Row]]] = {}
    for row in rows:
        for axis, size in enumerate(row.dims):
            if isinstance(size, str):
                known = {(False, dims[axis]) for dims in row.declared if axis < len(dims)}
                known |= {(True, dims[axis]) for dims in inferred.get(row.name, ()) if axis < len(dims)}
                places_of.setdefault(size, []).append((known - {(False, None), (True, None)}, row))
    for size, places in places_of.items():
        meaning: set[tuple[bool, _Size]] = {(False, size), (True, size)} if size in borders else set()
        for known, row in sorted(places, key=lambda place: -len(place[0])):
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
    """Return whether each size occurs in a source, and all have the same rank."""
    if not sources or any(len(each) != len(dims) for each in sources):
        return False
    return all(
        not isinstance(size, int) or size in sizes for size, *sizes in zip(dims, *sources, strict=True)
    )


def _sizes_in(graph: GraphProto) -> dict[str, list[_Dims]]:
    """Return the sizes of the values of a graph and its bodies, by name."""
    sizes: dict[str, list[_Dims]] = {}
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        for info in (*graph.value_info, *graph.input, *graph.output):
            if (dims := sizes_of(info.type)) is not None:
                sizes.setdefault(info.name, []).append(dims)
        waiting.extend(each.g for node in graph.node for each in node.attribute if each.HasField("g"))
    return sizes


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
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims]


def _format_dims(dims: _Dims) -> str:
    return f"[{','.join('?' if size is None else str(size) for size in dims)}]"
