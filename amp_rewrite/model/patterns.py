"""Graph patterns: expressions shaped like the subgraph that they match, from its result back to its data.

    x = var("x")
    root = op("Sqrt", op("Add", op("ReduceMean", op("Pow", x, number(2.0))), number()))
    match(op("Div", x, root), value)

Operands of commutative operators match in either order, and inputs after those of a pattern are not matched.
Nodes that only rearrange elements between two matched nodes are looked through, and belong to the match.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.operators.catalogue import OF_SIZES, REARRANGES, SELECTS, having
from amp_rewrite.operators.record import Trait

# Queries of nodes and values for patterns.

_COPIES = frozenset(("Cast", "Identity"))
_LAST = 2**31 - 1
"""The least end of a Slice that reaches the end of any axis."""


def is_default(node: ir.Node, *operators: str) -> bool:
    """Return whether a node has one of these operators of the default domain."""
    return node.op_type in operators and not node.domain


def effective_op(node: ir.Node) -> str:
    """Return the operator whose arithmetic a node performs: Add for a scatter that adds, else its own."""
    reduction = node.attributes.get("reduction") if node.op_type.startswith("Scatter") else None
    if reduction is None:
        return node.op_type
    # An attribute by reference is declared by the caller of the function.
    declared = "add" if reduction.is_ref() else reduction.as_string()
    return node.op_type if declared == "none" else declared.capitalize()


def operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the inputs of a node, without omitted ones."""
    return tuple(value for value in node.inputs if value is not None)


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other of two operands: the same value if a node reads it twice, None without two."""
    inputs = operands(node)
    if len(inputs) != 2:
        return None
    return inputs[1] if inputs[0] is value else inputs[0] if inputs[1] is value else None


def rearranges(node: ir.Node) -> bool:
    """Return whether the first output of a node has all elements of its first input, as of a whole Slice."""
    if node.domain:
        return False
    if node.op_type != "Slice" or not 3 <= len(node.inputs) <= 4:
        return node.op_type in REARRANGES
    starts, ends = (stored_as(value) for value in node.inputs[1:3])
    if starts is None or ends is None:
        return False
    return not numbers(starts).any() and bool((numbers(ends) >= _LAST).all())


def moves(node: ir.Node) -> bool:
    """Return whether a node rearranges or selects elements of its first input."""
    return node.op_type in SELECTS or rearranges(node)


def sources(value: ir.Value, passes: Callable[[ir.Node], bool]) -> Iterator[ir.Value]:
    """Yield a value, and the first inputs of its producer and those before, as long as `passes` holds."""
    while True:
        yield value
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None or not passes(node):
            return
        value = node.inputs[0]


def source(value: ir.Value, passes: Callable[[ir.Node], bool] = rearranges) -> ir.Value:
    """Return the last of these values, of which this one is a rearrangement."""
    *_, last = sources(value, passes)
    return last


def origin(value: ir.Value) -> ir.Value:
    """Return the source of a value, looking through Casts and Identities."""
    return source(value, lambda node: node.op_type in _COPIES)


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the only consumer of a value; None if there are several, or it is also an output of a graph."""
    consumers = {node for node, _ in value.uses()}
    return consumers.pop() if len(consumers) == 1 and not value.is_graph_output() else None


def scalar(value: ir.Value | None) -> float | None:
    """Return the number that the model stores for a value; None unless it is a constant scalar."""
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
    """Return the value that a node squares; None for other nodes."""
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    first, second = node.inputs[0], node.inputs[1]
    if is_default(node, "Pow"):
        return first if scalar(second) == 2 else None
    same = is_default(node, "Mul") and origin(first) is origin(second)
    return first if same else None


def is_of_sizes(value: ir.Value | None) -> bool:
    """Return whether a value is a constant scalar, or computed from sizes alone."""
    waiting, reached = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if scalar(value) is not None or value in reached:
            continue
        node = value.producer() if value is not None else None
        if value is None or node is None or not is_default(node, "Shape", "Size", *OF_SIZES):
            return False
        reached.add(value)
        if node.op_type in OF_SIZES:
            waiting += [node.inputs[0], *(each for each in node.inputs[1:] if stored_as(each) is None)]
    return True


def are_closed(nodes: Iterable[ir.Node], result: ir.Node) -> bool:
    """Return whether nodes of one graph, except `result`, have no outside consumers apart from Shapes."""
    within = set(nodes)
    inner_values = (value for node in within if node is not result for value in node.outputs)
    return all(node.graph is result.graph for node in within) and not any(
        value.is_graph_output()
        or any(node not in within and not is_default(node, "Shape", "Size") for node, _ in value.uses())
        for value in inner_values
    )


# Patterns.


class Match(NamedTuple):
    """The values that a pattern names, and its nodes, from the result back: all, and those of each part.

    `passed` are the operators that the pattern looks through.
    """

    values: Mapping[str, ir.Value] = MappingProxyType({})
    nodes: tuple[ir.Node, ...] = ()
    parts: Mapping[str, tuple[ir.Node, ...]] = MappingProxyType({})
    passed: frozenset[str] = REARRANGES

    def of(self, *parts: str) -> tuple[ir.Node, ...]:
        """Return the nodes of these parts, each once."""
        return tuple(dict.fromkeys(node for part in parts for node in self.parts.get(part, ())))

    def but(self, *others: ir.Node) -> tuple[ir.Node, ...]:
        """Return the nodes except these, in execution order."""
        return tuple(node for node in reversed(tuple(dict.fromkeys(self.nodes))) if node not in others)


Pattern = Callable[[ir.Value, Match], Iterator[Match]]
"""A function that yields the extensions of a match by a value."""
Step = Callable[[ir.Node], "ir.Value | None"]
"""A function that returns the operand that a node transforms; None for a node outside the pattern."""

_COMMUTE = having(Trait.COMMUTES)


def match(pattern: Pattern, value: ir.Value, transparent_ops: frozenset[str] = REARRANGES) -> Match | None:
    """Return the first match of a pattern at a value; None without one."""
    return next(
        pattern(value, _NOTHING if transparent_ops is REARRANGES else Match(passed=transparent_ops)), None
    )


_NOTHING = Match()


def var(name: str) -> Pattern:
    """Return a pattern of any value, the same one wherever the name recurs, in any shape."""

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        if name not in state.values:
            yield state._replace(values={**state.values, name: value})
        elif (shared := _shared(state.values[name], value, state.passed)) is not None:
            data, between = shared
            yield state._replace(values={**state.values, name: data}, nodes=(*state.nodes, *between))

    return matches


def _shared(
    first: ir.Value, second: ir.Value, transparent_ops: frozenset[str]
) -> tuple[ir.Value, Iterable[ir.Node]] | None:
    """Return the common source of both values, and the nodes that rearrange it; None without one."""
    if first is second:
        return first, ()
    one, two = (
        dict.fromkeys(sources(value, lambda node: _passes(node, transparent_ops)))
        for value in (first, second)
    )
    data = next((value for value in one if value in two), None)
    if data is None:
        return None
    ways = (itertools.takewhile(lambda value: value is not data, way) for way in (one, two))
    return data, [node for way in ways for value in way if (node := value.producer()) is not None]


def fits(is_wanted: Callable[[ir.Value], bool]) -> Pattern:
    """Return a pattern of a value that satisfies a predicate."""

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        if is_wanted(value):
            yield state

    return matches


def number(target: float | None = None) -> Pattern:
    """Return a pattern of a constant number: `target`, or any."""
    return fits(lambda value: (constant := scalar(value)) is not None and target in (None, constant))


def either(*patterns: Pattern) -> Pattern:
    """Return a pattern with alternatives, tried in order."""
    heads = [(pattern, _HEADS.get(pattern)) for pattern in patterns]

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        node = value.producer()
        operator = node.op_type if node is not None else ""
        is_passed = node is not None and _passes(node, state.passed)
        for pattern, names in heads:
            if names is None or is_passed or operator in names:
                yield from pattern(value, state)

    return matches


_HEADS: dict[Pattern, frozenset[str]] = {}
"""The operators at the root of patterns, where known: most alternatives fail there."""


def op(operators: str, *inputs: Pattern, where: Callable[[ir.Node], bool] | None = None) -> Pattern:
    """Return a pattern of a node with one of these operators and these inputs.

    The last input is matched first: it is usually the most specific.
    """
    names = frozenset(operators.split())

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        node, between = _maker(value, names, state.passed)
        if node is None or len(node.inputs) < len(inputs) or not (where is None or where(node)):
            return
        within = state._replace(nodes=(*state.nodes, *between, node))
        arguments = node.inputs[: len(inputs)]
        swaps = len(node.inputs) == len(inputs) == 2 and node.op_type in _COMMUTE
        for order in (
            (arguments, arguments[::-1]) if swaps and arguments[0] is not arguments[1] else (arguments,)
        ):
            yield from _all(inputs, order, within)

    _HEADS[matches] = names
    return matches


def _passes(node: ir.Node, transparent_ops: frozenset[str]) -> bool:
    """Return whether a pattern looks through a node: a whole Slice if it looks through all rearrangements."""
    return node.op_type in transparent_ops or (
        node.op_type == "Slice" and transparent_ops is REARRANGES and rearranges(node)
    )


def _maker(
    value: ir.Value, names: frozenset[str], transparent_ops: frozenset[str]
) -> tuple[ir.Node | None, list[ir.Node]]:
    """Return the producer of a value with one of these operators, and the chain of rearranging nodes between
    them, which must not branch.
    """
    between: list[ir.Node] = []
    while (node := value.producer()) is not None and not node.domain:
        if node.op_type in names:
            return node, between
        source = node.inputs[0] if _passes(node, transparent_ops) else None
        if source is None or (between and only_reader(value) is None):
            break
        between.append(node)
        value = source
    return None, []


def _all(patterns: tuple[Pattern, ...], values: Sequence[ir.Value | None], state: Match) -> Iterator[Match]:
    if not patterns:
        yield state
    elif values[-1] is not None:
        for each in patterns[-1](values[-1], state):
            yield from _all(patterns[:-1], values[:-1], each)


def part(name: str, pattern: Pattern) -> Pattern:
    """Return a pattern whose nodes are named as a part of the match."""

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        for each in pattern(value, state._replace(nodes=())):
            parts = {**each.parts, name: (*each.nodes, *each.parts.get(name, ()))}
            yield each._replace(nodes=(*state.nodes, *each.nodes), parts=parts)

    return matches


def when(pattern: Pattern, check: Callable[[Match], bool]) -> Pattern:
    """Return a pattern with a check on what it alone has matched."""

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        for each in pattern(value, state._replace(nodes=())):
            if check(each):
                yield each._replace(nodes=(*state.nodes, *each.nodes))

    if pattern in _HEADS:
        _HEADS[matches] = _HEADS[pattern]
    return matches


def steps(step: Step, over: Pattern, *, alone: bool = True) -> Pattern:
    """Return a pattern of a chain of any number of nodes; `alone` requires each to be the only consumer."""

    heads = _HEADS.get(over)

    def may_match(node: ir.Node | None, transparent_ops: frozenset[str]) -> bool:
        return node is None or heads is None or node.op_type in heads or _passes(node, transparent_ops)

    def matches(value: ir.Value | None, state: Match) -> Iterator[Match]:
        nodes: list[ir.Node] = []
        while value is not None:
            node = value.producer()
            is_end = node is None or bool(node.domain) or not node.inputs
            is_end |= alone and only_reader(value) is None
            # Patterns look through rearrangements: in a chain of these, the first and last positions suffice.
            tells = not nodes or is_end or node is None or node.op_type not in state.passed
            if tells and may_match(node, state.passed):
                yield from over(value, state._replace(nodes=(*state.nodes, *nodes)))
            if is_end or node is None:
                return
            nodes.append(node)
            value = step(node)

    return matches


def moved(pattern: Pattern) -> Pattern:
    """Return a pattern of a value that is cut or rearranged, with any other consumers."""
    return steps(_first_of_moved, pattern, alone=False)


def _first_of_moved(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if node.op_type == "Slice" or node.op_type in REARRANGES else None


def computed(name: str, is_step: Callable[[ir.Node], bool], most: int) -> Pattern:
    """Return a pattern of at most `most` nodes that compute with a value named before, and numbers."""

    def matches(value: ir.Value, state: Match) -> Iterator[Match]:
        nodes: dict[ir.Node, None] = {}
        waiting: list[ir.Value | None] = [value]
        while waiting:
            each = waiting.pop()
            if each is state.values[name] or scalar(each) is not None:
                continue
            node = each.producer() if each is not None else None
            if node is None or node.domain or not is_step(node) or len(nodes) == most:
                return
            if node not in nodes:
                nodes[node] = None
                waiting += node.inputs[:1] if node.op_type in REARRANGES else node.inputs
        yield state._replace(nodes=(*state.nodes, *nodes))

    return matches


def ends_behind(node: ir.Node, most: int) -> Iterator[ir.Node]:
    """Yield a node and those downstream, each the only consumer of the one before.

    At most `most` nodes, not counting those that only rearrange.
    """
    following: ir.Node | None = node
    while following is not None and most:
        yield following
        most -= following.op_type not in REARRANGES
        following = only_reader(following.outputs[0]) if following.outputs else None


# Nodes between DequantizeLinear and QuantizeLinear, which runtimes make integer kernels of.

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"


@dataclass(frozen=True, slots=True)
class Regions:
    """The nodes whose first operand is dequantised, and those whose result is quantised.

    Stored weights alone do not make a region.
    """

    reads: frozenset[ir.Node]
    gives: frozenset[ir.Node]


def find_regions(nodes: Iterable[ir.Node]) -> Regions:
    """Return the quantised regions among nodes."""
    borders = [node for node in nodes if node.op_type in (DEQUANTIZE, QUANTIZE)]
    dequantised = [
        node.outputs[0]
        for node in borders
        if node.op_type == DEQUANTIZE and stored_as(node.inputs[0]) is None
    ]
    quantised = [node.inputs[0] for node in borders if node.op_type == QUANTIZE]
    producers = [value.producer() for value in quantised if value is not None]
    return Regions(
        frozenset(node for value in dequantised for node, port in value.uses() if port == 0),
        frozenset(node for node in producers if node is not None),
    )
