"""The half Transposes that onnxruntime's CPU provider crashes on when it makes a session.

Seen with onnxruntime 1.31.1: MatmulTransposeFusion takes a Transpose of the first axis into the MatMul that
reads it as its first operand, and NchwcTransformer crashes on what is left. Before, onnxruntime makes one
of two Transposes, moves them past what does not mind, and removes what does nothing or only scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

Order = tuple[int, ...]
"""For every axis of a result, the axis that it was."""

Step = tuple[ir.Value, Order]


def crash(node: ir.Node) -> bool:
    """Whether a Transpose is one of those that move the first axis of a product's first operand; alone, or
    with others before and behind it.
    """
    perm = node.attributes.get("perm")
    if perm is None or perm.is_ref():
        return False
    order = tuple(perm.as_ints())
    same = tuple(range(len(order)))
    behind = {last for value, last in _walk(node.outputs[0], same, _down) if _feeds_product(value)}
    before = {first for _, first in _walk(node.inputs[0], same, _up)} if behind else ()
    return any(_moves_first(_then(first, _then(order, last))) for first in before for last in behind)


def _moves_first(order: Order) -> bool:
    """Whether a Transpose brings the first axis, which counts matrices, among their rows and columns, and
    leaves all others between: [1, 0, 2], [1, 2, 0], [1, 2, 0, 3] and their like.
    """
    return len(order) > 2 and order[:-2] == tuple(range(1, len(order) - 1)) and 0 in order


def _then(first: Order, last: Order) -> Order:
    """Two Transposes as one."""
    return tuple(first[axis] for axis in last)


def _feeds_product(value: ir.Value | None) -> bool:
    uses = value.uses() if value is not None else ()
    return any(node.op_type == "MatMul" and node.domain == "" and port == 0 for node, port in uses)


def _walk(start: ir.Value | None, order: Order, steps: Callable[[Step], Iterator[Step]]) -> set[Step]:
    """All that is reached from a value, each with the order of its axes."""
    found: set[Step] = set()
    waiting = [(start, order)] if start is not None else []
    while waiting:
        step = waiting.pop()
        if step not in found:
            found.add(step)
            waiting.extend(steps(step))
    return found


def _down(step: Step) -> Iterator[Step]:
    value, order = step
    for node, _ in value.uses():
        perm = _perm(node, len(order))
        if perm is not None:
            yield node.outputs[0], _then(order, perm)
        elif value in _carried(node, len(order)):
            yield from ((made, order) for made in node.outputs)


def _up(step: Step) -> Iterator[Step]:
    value, order = step
    node = value.producer()
    if node is None:
        return
    perm, read = _perm(node, len(order)), node.inputs[:1]
    values = read if perm is not None else _carried(node, len(order))
    yield from ((v, order if perm is None else _then(perm, order)) for v in values if v is not None)


def _perm(node: ir.Node, rank: int) -> Order | None:
    """What a Transpose does; None for any other node, and for a Transpose of another rank."""
    if node.op_type != "Transpose" or node.domain:
        return None
    perm = node.attributes.get("perm")
    if perm is None:
        return tuple(reversed(range(rank)))
    said = None if perm.is_ref() else tuple(perm.as_ints())
    return said if said is not None and len(said) == rank else None


def _carried(node: ir.Node, rank: int) -> Sequence[ir.Value | None]:
    """The inputs that a node gives on with their axes in order, or that it may be removed from behind."""
    operator, inputs = node.op_type, node.inputs
    if node.domain or operator not in _CARRIERS:
        return ()
    if operator == "Concat":
        return inputs
    if operator in _SCALES:
        left, right = inputs
        return [value for value, other in ((left, right), (right, left)) if _is_number(other)]
    return inputs[:1] if operator != "Reshape" or _may_keep(node, rank) else ()


_SCALES = frozenset("Add Div Mul Sub".split())
_CARRIERS = _SCALES | frozenset("Cast Concat Dropout Expand Identity Reshape Slice".split())


def _is_number(value: ir.Value | None) -> bool:
    """Whether a value is known to be a single number."""
    shape = _shape(value)
    return shape is not None and all(size == 1 for size in shape)


def _may_keep(reshape: ir.Node, rank: int) -> bool:
    """Whether a Reshape may leave all as it is; one to another rank cannot."""
    made, asked = _shape(reshape.outputs[0]), _shape(reshape.inputs[1])
    ranks = [] if made is None else [len(made)]
    ranks += [] if asked is None else list(asked)
    return all(size == rank for size in ranks if isinstance(size, int))


def _shape(value: ir.Value | None) -> ir.Shape | None:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    held = tensor if tensor is not None else value
    return held.shape if held is not None else None
