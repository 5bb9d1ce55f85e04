"""What recognising idioms needs to know of nodes and values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import onnx_ir as ir

from amp_rewrite.model.constants import dims, numbers, stored_as

_PASSED = ("Cast", "Identity")
_MADE = frozenset(("Add", "Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
_COUNT = frozenset("Add Cast Div Gather Identity Max Mul ReduceProd Slice Squeeze Sub Unsqueeze".split())
_SCALES = ("Div", "Mul")
_DEPTH = 4


def is_default(node: ir.Node, *operators: str) -> bool:
    """Whether a node is one of these operators, of the default domain."""
    return node.op_type in operators and not node.domain


def operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """The inputs of a node that are there."""
    return tuple(value for value in node.inputs if value is not None)


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other one of two operands; the same value where a node has it twice, None if there are not two."""
    given = operands(node)
    if len(given) != 2:
        return None
    return given[1] if given[0] is value else given[0] if given[1] is value else None


def maker(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that makes a value, looking through Casts and Identities, if it is one of these operators."""
    node = origin(value).producer() if value is not None else None
    return node if node is not None and is_default(node, *operators) else None


def origin(value: ir.Value, moves: tuple[str, ...] = _PASSED, most: int = _DEPTH) -> ir.Value:
    """The value that Casts and Identities, or `moves`, pass on as this one; at `most` so many."""
    for _ in range(most):
        node = value.producer()
        if node is None or not is_default(node, *moves) or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def passed_on(value: ir.Value) -> tuple[ir.Value, ...]:
    """A value, and the outputs of Identities of it: runtimes take them for the same."""
    found = {value: None}
    todo = [value]
    while todo:
        made = [node.outputs[0] for node, _ in todo.pop().uses() if is_default(node, "Identity")]
        todo += [other for other in made if other not in found]
        found.update(dict.fromkeys(made))
    return tuple(found)


def readers(value: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that read a value, each once; none where it is also an output of a graph."""
    return () if value.is_graph_output() else tuple(dict.fromkeys(node for node, _ in value.uses()))


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value; None where there are others, or it is also an output of a graph."""
    found = readers(value)
    return found[0] if len(found) == 1 else None


def scalar(value: ir.Value | None) -> float | None:
    """The number that the model stores for a value; None for what is computed, given, or not one number."""
    if value is None or value.is_graph_input():
        return None
    tensor = stored_as(value)
    if tensor is None or math.prod(dims(tensor)) != 1 or not _is_number(tensor.dtype):
        return None
    return float(numbers(tensor).item())


@functools.cache
def _is_number(kind: ir.DataType) -> bool:
    return kind.is_floating_point() or kind.is_integer()


def square_of(node: ir.Node) -> ir.Value | None:
    """What a node squares; None for a node that does not."""
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    first, second = node.inputs[0], node.inputs[1]
    if is_default(node, "Pow"):
        return first if scalar(second) == 2 else None
    same = is_default(node, "Mul") and origin(first) is origin(second)
    return first if same else None


def moved_or_scaled(
    node: ir.Node, moves: tuple[str, ...], is_number: Callable[[ir.Value], bool]
) -> ir.Value | None:
    """What a node moves, by one of the operators `moves`, or multiplies or divides by a number; None for any
    other node.
    """
    if is_default(node, *moves):
        return node.inputs[0]
    if not is_default(node, *_SCALES):
        return None
    computed = [value for value in operands(node) if not is_number(value)]
    is_scaled = len(computed) == 1 and (node.op_type == "Mul" or computed[0] is node.inputs[0])
    return computed[0] if is_scaled else None


def is_of_sizes(value: ir.Value | None, depth: int = 2 * _DEPTH) -> bool:
    """Whether a value is a number that the model stores, or computes of sizes alone."""
    if scalar(value) is not None:
        return True
    node = value.producer() if value is not None and depth > 0 else None
    if node is None or not is_default(node, *_COUNT):
        return node is not None and is_default(node, "Shape", "Size")
    first, rest = node.inputs[0], node.inputs[1:]
    return is_of_sizes(first, depth - 1) and all(
        stored_as(given) is not None or is_of_sizes(given, depth - 1) for given in rest
    )


def is_parameter(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Whether a value is stored, given, or made of such by a few nodes that shape or add."""
    if value is None:
        return False
    node = value.producer()
    if node is None or stored_as(value) is not None:
        return True
    known = depth > 0 and is_default(node, *_MADE)
    return known and all(is_parameter(operand, depth - 1) for operand in operands(node))


def are_closed(nodes: tuple[ir.Node, ...], result: ir.Node) -> bool:
    """Whether these nodes of one graph, but for `result`, are read by each other alone, sizes apart."""
    within = set(nodes)
    made = (value for node in nodes if node is not result for value in node.outputs)
    return all(node.graph is result.graph for node in nodes) and all(
        within.issuperset(found) and not value.is_graph_output()
        for value in made
        for found in [[node for node, _ in value.uses() if not is_default(node, "Shape", "Size")]]
    )
