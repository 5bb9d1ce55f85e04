"""How many elements a value of one axis has, such as the sizes that a Reshape is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onnx import TensorProto

from amp_rewrite.certificate import attributes, tensors
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered

Rank = Callable[[int], int | None]
"""The rank of a value by its number; None where it is not known."""

_DEEPEST = 16
"""The nodes that are looked through, one behind the other: sizes are computed by a few."""

_MOST = 1 << 10
"""The values that are looked at for one length, so that many lengths of many parts take no time."""


def shaped(model: Numbered, number: int) -> Iterator[int]:
    """The values whose ranks tell the length of a value: those whose shapes it is made from."""
    seen, level = {number}, [number]
    for _ in range(_DEEPEST):
        nodes = [node for value in level if (node := model.makers[value]) is not None]
        nodes = [node for node in nodes if node.operator in _RULES]
        yield from (node.inputs[0] for node in nodes if node.operator == ("", "Shape"))
        inner = [node for node in nodes if node.operator not in (("", "Shape"), ("", "Unsqueeze"))]
        if len(seen) + sum(len(node.inputs) for node in inner) > _MOST:
            return
        level = [*dict.fromkeys(value for node in inner for value in node.inputs if value not in seen)]
        seen.update(level)


def of(model: Numbered, number: int, rank: Rank) -> int | None:
    """The elements of a value that has one axis; None where they are not known, or there are more axes."""
    known: dict[tuple[int, int], int | None] = {}

    def length(value: int, deepest: int) -> int | None:
        if (value, deepest) not in known:
            known[value, deepest] = found(value, deepest)
        return known[value, deepest]

    def found(value: int, deepest: int) -> int | None:
        stored, node = model.stored.get(value), model.makers[value]
        if stored is not None:
            return stored.dims[0] if len(stored.dims) == 1 else None
        if node is None or node.operator not in _RULES or not deepest:
            return None
        if len(known) + len(node.inputs) > _MOST:
            return None
        return _RULES[node.operator](model, node, rank, lambda each: length(each, deepest - 1))

    return length(number, _DEEPEST)


_Length = Callable[[int], int | None]
_Rule = Callable[[Numbered, Node, Rank, _Length], int | None]


def _of_shape(_: Numbered, node: Node, rank: Rank, __: _Length) -> int | None:
    axes, given = rank(node.inputs[0]), attributes.of(node)
    if axes is None:
        return None
    ends = (given[name].attribute.i if name in given else None for name in ("start", "end"))
    return len(range(axes)[slice(*ends)])


def _of_parts(_: Numbered, node: Node, __: Rank, length: _Length) -> int | None:
    parts = [length(value) for value in node.inputs]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _of_first(_: Numbered, node: Node, __: Rank, length: _Length) -> int | None:
    return length(node.inputs[0])


def _of_indices(_: Numbered, node: Node, __: Rank, length: _Length) -> int | None:
    return length(node.inputs[1])


def _of_one(_: Numbered, __: Node, ___: Rank, ____: _Length) -> int:
    return 1  # it has one axis, so that it is a number with an axis


def _of_slice(model: Numbered, node: Node, _: Rank, length: _Length) -> int | None:
    whole = length(node.inputs[0])
    start, end, step = (_bound(model, node, *where) for where in _BOUNDS)
    if whole is None or start is None or end is None or not step:
        return None
    return len(range(whole)[start:end:step])


_BOUNDS = (("starts", 1, None), ("ends", 2, None), ("", 4, 1))
"""Where a Slice says what to take: the attribute of old versions, the input of new ones, and the default."""


def _bound(model: Numbered, node: Node, name: str, port: int, default: int | None) -> int | None:
    given = attributes.of(node).get(name)
    if given is not None:
        return given.attribute.ints[0] if len(given.attribute.ints) == 1 else None
    if port >= len(node.inputs) or node.inputs[port] == MISSING:
        return default
    tensor = model.stored.get(node.inputs[port])
    if not isinstance(tensor, TensorProto) or list(tensor.dims) != [1]:
        return None
    return int(tensors.whole(tensor, model.folder)[0])


_RULES: Mapping[tuple[str, str], _Rule] = {
    ("", "Cast"): _of_first,
    ("", "Concat"): _of_parts,
    ("", "Gather"): _of_indices,
    ("", "Identity"): _of_first,
    ("", "Shape"): _of_shape,
    ("", "Slice"): _of_slice,
    ("", "Unsqueeze"): _of_one,
}
"""What exporters compute sizes with, on the way to one axis."""
