"""The shapes that a result declares: runtimes believe them where they cannot infer a shape."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import FunctionProto, GraphProto, TypeProto

from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered
from amp_rewrite.certificate.shapes import Ranks, infer_shapes
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


def refuse_other_shapes(
    original: Numbered, rewritten: Numbered, ranks: Ranks, declared: Collection[Declared]
) -> None:
    """Raise DifferentError for a declared size or rank that neither the original declares of an equal value
    nor onnx infers from the inputs of the result, and for a name that stands for two open sizes. For outputs
    of operators unknown to onnx, and for all values if onnx fails on both models, the original's declaration
    decides, if there is one.
    """
    sources_of: dict[int, list[_Dims]] = {}
    for info, number in declared_shapes(original):
        if (dims := sizes_of(info.type)) is not None:
            sources_of.setdefault(original.roots[number], []).append(dims)
    unknown: _Unknown = {}
    for info, left, right in declared:
        dims, sources = sizes_of(info.type), sources_of.get(left, ())
        is_opaque = not sources and _is_opaque(original.makers[left])
        if dims is not None and not is_opaque and not (_agrees(dims, sources) and _is_named(dims, sources)):
            unknown[info.name] = dims, left, right
    inferred = _inferred_dims(rewritten, unknown) if unknown else {}
    if inferred is None and infer_shapes(original.proto) is None:
        unknown = _with_sources(unknown, sources_of, {})
    inferred = inferred or {}
    operators = {(*node.operator, node.version) for node in rewritten.nodes}
    is_whole = all(find_schema(*each) for each in operators)
    if not is_whole:  # onnx infers nothing behind such a node
        unknown = _with_sources(unknown, sources_of, inferred)
    _refuse_unknown(unknown, sources_of, inferred, ranks)
    known = (
        (dims, [*sources_of.get(left, ()), *inferred.get(name, ())])
        for name, (dims, left, _) in unknown.items()
    )
    if not all(_is_named(dims, sources) for dims, sources in known):
        borders = {size for info in original.proto.graph.input for size in sizes_of(info.type) or ()}
        anew = _inferred_dims(rewritten) if is_whole else None
        _refuse_merged(declared, sources_of, anew, borders)


_Size = int | str | None
"""A size, the name of an open one, or None."""

_Dims = Sequence[_Size]
_Unknown = dict[str, tuple[_Dims, int, int]]
_Sources = Mapping[Any, Sequence[_Dims]]


def _with_sources(unknown: _Unknown, sources_of: _Sources, inferred: _Sources) -> _Unknown:
    """Return the values whose shapes the original declares, or onnx infers."""
    return {name: each for name, each in unknown.items() if sources_of.get(each[1]) or inferred.get(name)}


def _refuse_unknown(unknown: _Unknown, sources_of: _Sources, inferred: _Sources, ranks: Ranks) -> None:
    for name, (dims, left, right) in unknown.items():
        sources = [*sources_of.get(left, ()), *inferred.get(name, ())]
        if _agrees(dims, sources) if left != MISSING else _is_possible(dims, sources):
            continue
        rank = None if sources else ranks.of(left)
        if rank is None or len(dims) != rank or any(isinstance(size, int) for size in dims):
            raise DifferentError(
                f"the shape that it declares, {_format_dims(dims)}, is not known", (left, right, "")
            )


def _refuse_merged(
    declared: Iterable[Declared], sources_of: _Sources, inferred: _Sources | None, borders: Container[_Size]
) -> None:
    """Raise DifferentError for a name of two open sizes: a runtime may use one buffer for values of the same
    declared shape. The original tells which sizes are the same, by names; the `borders` of the model have the
    same ones in both. So does onnx, by names of its own, where sizes were `inferred`.
    """
    axes: dict[str, list[tuple[set[tuple[_Size, ...]], int, int]]] = {}
    for info, left, right in declared:
        for axis, size in enumerate(sizes_of(info.type) or ()):
            if isinstance(size, str):
                sources = sources_of.get(left, ()), (inferred or {}).get(info.name, ())
                known = {(at, *dims[axis : axis + 1]) for at, each in enumerate(sources) for dims in each}
                axes.setdefault(size, []).append((known - {(0, None), (1, None)}, left, right))
    for size, places in axes.items():
        meaning: set[tuple[_Size, ...]] = {(0, size), (1, size)} if size in borders else set()
        for known, left, right in sorted(places, key=lambda place: -len(place[0])):
            if meaning and meaning.isdisjoint(known) and (known or inferred is not None):
                problem = f"the name that it declares for a size, '{size}', is that of another"
                raise DifferentError(problem, (left, right, ""))
            meaning |= known


def _is_opaque(node: Node | None) -> bool:
    """Return whether onnx does not know the operator of a node, such as one of onnxruntime's."""
    return node is not None and find_schema(*node.operator, node.version) is None


def _is_possible(dims: _Dims, sources: Iterable[_Dims]) -> bool:
    """Return whether no source has another rank or size, which suffices for a value without a counterpart."""
    return all(
        len(source) == len(dims)
        and all(
            one == other or not (isinstance(one, int) and isinstance(other, int))
            for one, other in zip(dims, source, strict=True)
        )
        for source in sources
    )


def _agrees(dims: _Dims, sources: Collection[_Dims]) -> bool:
    """Return whether each size occurs in a source, and all have the same rank."""
    if dims in sources:
        return True
    if not sources or any(len(each) != len(dims) for each in sources):
        return False
    return all(
        not isinstance(size, int) or size in sizes for size, *sizes in zip(dims, *sources, strict=True)
    )


def _is_named(dims: _Dims, sources: Collection[_Dims]) -> bool:
    """Return whether each name of an open size occurs in a source of the same rank."""
    pairs = zip(dims, *sources, strict=True)
    return dims in sources or all(not isinstance(size, str) or size in sizes for size, *sizes in pairs)


def _inferred_dims(model: Numbered, unknown: Container[str] | None = None) -> dict[str, list[_Dims]] | None:
    """Return the sizes that onnx infers of `unknown` values, by default all, by name; None where it fails."""
    graph = infer_shapes(model.proto, unknown)
    if graph is None:
        return None
    sizes: dict[str, list[_Dims]] = {}
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        for info in (*graph.value_info, *graph.input, *graph.output):
            if (unknown is None or info.name in unknown) and (dims := sizes_of(info.type)) is not None:
                sizes.setdefault(info.name, []).append(dims)
        for node in graph.node:
            waiting.extend(each.g for each in node.attribute if each.HasField("g"))
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
