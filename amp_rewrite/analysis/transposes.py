"""The half Transposes that onnxruntime's CPU provider crashes on when it makes a session.

Seen with onnxruntime 1.31.1: MatmulTransposeFusion fuses a Transpose of the first axis into the MatMul of
which it is the first operand, and NchwcTransformer crashes on the result. Before that, onnxruntime merges
consecutive Transposes, moves them past operators with half kernels on the CPU, and removes no-ops and scalar
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

import onnx_ir as ir

from amp_rewrite.model import constants

Order = tuple[int, ...]
"""The input axis of each axis of a result."""

Place = TypeVar("Place", bound=Hashable)

Step = tuple[ir.Value, Order]
"""A value, and the order of its axes relative to the value where the traversal began."""


def crashing(nodes: Iterable[ir.Node]) -> frozenset[ir.Node]:
    """The Transposes, among all nodes of a model, that move the first axis of the first operand of a MatMul,
    alone or together with others before them.
    """
    transposes = [node for node in nodes if node.op_type == "Transpose" and node.domain == ""]
    behind = _reached((node.outputs[0] for node in _alone(transposes)), _following)
    before = _reached(filter(_is_first_operand, behind), _preceding)
    return frozenset(node for node in transposes if node.outputs[0] in behind & before)


def _alone(transposes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Those whose output becomes the first operand of a MatMul with its first axis moved."""
    starts = {node: (node.outputs[0], perm) for node in transposes if (perm := _perm(node))}
    steps = _reached(starts.values(), _next_steps)
    origins: dict[Step, list[Step]] = {}
    for step in steps:
        for after in _next_steps(step):
            origins.setdefault(after, []).append(step)
    ends = (step for step in steps if _moves_first(step[1]) and _is_first_operand(step[0]))
    leading = _reached(ends, lambda step: origins.get(step, ()))
    return (node for node, start in starts.items() if start in leading)


def _moves_first(order: Order) -> bool:
    """Whether the first axis, a batch axis, is now that of rows or columns, after all other batch axes in
    order: [1, 0, 2], [1, 2, 0], [1, 2, 0, 3] and so on.
    """
    return len(order) > 2 and order[:-2] == tuple(range(1, len(order) - 1)) and 0 in order


def _is_first_operand(value: ir.Value) -> bool:
    return any(node.op_type == "MatMul" and node.domain == "" and port == 0 for node, port in value.uses())


def _reached(starts: Iterable[Place], steps: Callable[[Place], Iterable[Place]]) -> set[Place]:
    """All places reachable from these, and the places themselves."""
    found: set[Place] = set()
    waiting = [*starts]
    while waiting:
        place = waiting.pop()
        if place not in found:
            found.add(place)
            waiting.extend(steps(place))
    return found


def _following(value: ir.Value) -> Iterator[ir.Value]:
    for node, port in value.uses():
        yield from node.outputs if _carries(node, port) else ()


def _preceding(value: ir.Value) -> Iterator[ir.Value]:
    node = value.producer()
    for port, read in enumerate(node.inputs if node is not None else ()):
        if node is not None and read is not None and _carries(node, port):
            yield read


def _next_steps(step: Step) -> Iterator[Step]:
    value, order = step
    for node, port in value.uses():
        moved = _moved(node, order) if _carries(node, port) else None
        yield from ((made, moved) for made in node.outputs if moved is not None)


_SCALES = frozenset("Add Div Mul Sub".split())
_OPERANDS = 2
_ALL = frozenset("Concat Max Min".split())
_FIRST = frozenset(
    "Cast Dropout Expand Identity Pad ReduceMax ReduceMin Reshape Slice Split Squeeze Tile Transpose "
    "Unsqueeze".split()
)
"""Operators that onnxruntime removes or moves Transposes past: of any input (_ALL), or of the first."""


def _carries(node: ir.Node, port: int) -> bool:
    """Whether a Transpose of this input may end up after the node."""
    if node.domain:
        return False
    if node.op_type in _SCALES:
        shape = _shape(node.inputs[1 - port]) if len(node.inputs) == _OPERANDS else None
        return shape is not None and all(size == 1 for size in shape)
    return node.op_type in _ALL or (node.op_type in _FIRST and port == 0)


def _moved(node: ir.Node, order: Order) -> Order | None:
    """The order of the axes after a node; None if it is unknown, or a Reshape changes more than the order."""
    rank = len(order)
    if node.op_type == "Transpose":
        perm = _perm(node)
        return tuple(order[axis] for axis in perm) if perm and len(perm) == rank else None
    if node.op_type == "Reshape":
        return order if _may_keep(node, rank) else None
    return _RESHAPED[node.op_type](node, order) if node.op_type in _RESHAPED else order


def _perm(node: ir.Node) -> Order | None:
    """The permutation of a Transpose; None if it is missing or invalid."""
    perm = node.attributes.get("perm")
    order = () if perm is None or perm.is_ref() else tuple(perm.as_ints())
    return order if sorted(order) == list(range(len(order))) else None


def _squeezed(node: ir.Node, order: Order) -> Order | None:
    axes = _axes(node, len(order))
    left = [was for axis, was in enumerate(order) if axes is not None and axis not in axes]
    return None if axes is None else tuple(sorted(left).index(was) for was in left)


def _reduced(node: ir.Node, order: Order) -> Order | None:
    keep = node.attributes.get("keepdims")
    return order if keep is None or keep.is_ref() or keep.as_int() else _squeezed(node, order)


def _unsqueezed(node: ir.Node, order: Order) -> Order | None:
    said = _axes(node, 0)
    if said is None:
        return None
    rank = len(order) + len(said)
    new = [axis % rank for axis in said]
    old = [axis for axis in range(rank) if axis not in new]
    if len(old) != len(order):
        return None
    moved = iter([old[axis] for axis in order])
    return tuple(axis if axis in new else next(moved) for axis in range(rank))


_RESHAPED: dict[str, Callable[[ir.Node, Order], Order | None]] = {
    "ReduceMax": _reduced,
    "ReduceMin": _reduced,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
}


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    """The axes of a node, nonnegative if the rank is given; None if they are not constant."""
    said = node.attributes.get("axes")
    if said is not None:
        axes = None if said.is_ref() else list(said.as_ints())
    else:
        given = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = constants.stored_as(given)
        if tensor is None or tensor.dtype != ir.DataType.INT64:
            return None
        axes = tensor.numpy().ravel().tolist()
    return axes if axes is None or not rank else [axis % rank for axis in axes]


def _may_keep(reshape: ir.Node, rank: int) -> bool:
    """Whether a Reshape may be a no-op; one to another rank is not."""
    made, asked = _shape(reshape.outputs[0]), _shape(reshape.inputs[-1])
    ranks = [] if made is None else [len(made)]
    ranks += [] if asked is None else list(asked)
    return all(size == rank for size in ranks if isinstance(size, int))


def _shape(value: ir.Value | None) -> ir.ShapeProtocol | None:
    tensor = constants.stored_as(value)
    held = tensor if tensor is not None else value
    return held.shape if held is not None else None
