"""Shapes that a result declares of its values: a runtime believes them where it cannot infer any."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any

from onnx import FunctionProto, GraphProto, TypeProto

from amp_rewrite.certificate import inferred_shapes, signatures
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import Node, Numbered
from amp_rewrite.certificate.ranks import Ranks

Declared = tuple[Any, int, int]
"""What the result declares of a value, the value of the original that it is equal to, and its own number."""


def of_numbered(model: Numbered) -> Iterator[tuple[Any, int]]:
    """What a model declares of the values that its nodes make, with their numbers."""
    for graph, scope in model.scopes:
        infos = [graph.value_info] if isinstance(graph, FunctionProto) else [graph.value_info, graph.output]
        if scope.outer is not None and isinstance(graph, GraphProto):
            infos.append(graph.input)
        for each in infos:
            for info in each:
                number = scope.names.get(info.name)
                if number is not None:
                    yield info, number


def refuse_other(original: Numbered, rewritten: Numbered, ranks: Ranks, declared: Iterable[Declared]) -> None:
    """DifferentError for a size or a rank that neither the original declares of an equal value nor onnx infers
    from the inputs of the result. Of what an operator unknown to onnx makes, the original's declaration counts, if
    there is one.
    """
    known: dict[int, list[Sequence[int | None]]] = {}
    for info, number in of_numbered(original):
        if (dims := _dims(info.type)) is not None:
            known.setdefault(original.roots[number], []).append(dims)
    unknown = {}
    for info, left, right in declared:
        dims, sources = _dims(info.type), known.get(left, ())
        is_opaque = not sources and _is_opaque(original.makers[left])
        if dims is not None and not is_opaque and not _agrees(dims, sources):
            unknown[info.name] = dims, left, right
    inferred = _inferred(rewritten, unknown) if unknown else {}
    for name, (dims, left, right) in unknown.items():
        rank = ranks.of(left)
        sources = [*known.get(left, ()), *inferred.get(name, ()), *([] if rank is None else [[None] * rank])]
        if not _agrees(dims, sources):
            raise DifferentError(
                f"the shape that it declares, {_shown(dims)}, is not known", (left, right, "")
            )


def _is_opaque(node: Node | None) -> bool:
    """Whether onnx knows nothing of the operator of a node; onnxruntime infers shapes of its own by itself."""
    return node is not None and signatures.schema(*node.operator, node.version) is None


def _agrees(dims: Sequence[int | None], sources: Collection[Sequence[int | None]]) -> bool:
    """Whether each size is one of the sources', and no rank is another."""
    if dims in sources:
        return True
    if not sources or any(len(each) != len(dims) for each in sources):
        return False
    return all(size is None or size in sizes for size, *sizes in zip(dims, *sources, strict=True))


def _inferred(model: Numbered, unknown: Container[str]) -> dict[str, list[Sequence[int | None]]]:
    found: dict[str, list[Sequence[int | None]]] = {}
    waiting = [inferred_shapes.of(model.proto, unknown)]
    while waiting:
        graph = waiting.pop()
        for info in (*graph.value_info, *graph.input, *graph.output):
            if (dims := _dims(info.type)) is not None:
                found.setdefault(info.name, []).append(dims)
        for node in graph.node:
            waiting.extend(each.g for each in node.attribute if each.HasField("g"))
    return found


def _dims(declared: TypeProto) -> Sequence[int | None] | None:
    """The sizes that a declaration states, None for one that is open, of what a sequence or an optional value holds; None without any."""
    which = declared.WhichOneof("value")
    while which in ("sequence_type", "optional_type"):
        declared = getattr(declared, which).elem_type
        which = declared.WhichOneof("value")
    if which != "tensor_type" or not declared.tensor_type.HasField("shape"):
        return None
    dims = declared.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]


def _shown(dims: Sequence[int | None]) -> str:
    return f"[{','.join('?' if size is None else str(size) for size in dims)}]"
