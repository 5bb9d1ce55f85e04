"""What is taken from 1 and is known to be near 1, so that half would round away what is left.

    1 - prod(1 - p), 1 - (1 - p) * (1 - q)      a noisy or: any of the events
    1 - sigmoid(x + 8)                          a gate that is nearly open
    1 - normalised(a) @ normalised(b)           a cosine distance

A gate that weighs one value while its rest weighs another (z * a + (1 - z) * b, a gated cell) is half: what
is missing from one is made up by the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite.analysis import near_one
from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.normalisation import SUM
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_PRODUCTS = ("Einsum", "MatMul")
_LEAST = 4.0
"""What is added before a sigmoid that leaves less than 0.02 of 1 where nothing else is added."""


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units from what is taken from 1 to the rest."""
    held = {node for unit in graph.by_operator.get("Sub", ()) for node in _way(graph, graph.units[unit].node)}
    evidence = Evidence(Authority.RANGE, Reason.NEAR_1)
    return dict.fromkeys(graph.of_nodes(held), evidence)


def _way(graph: UnitGraph, rest: ir.Node) -> tuple[ir.Node, ...]:
    """The nodes of which a rest of 1 is small; none where it may be anything."""
    value = near_one.beside_1(rest)
    if value is None:
        return ()
    between = near_one.made(value)
    is_sigmoid = bool(between) and patterns.is_default(between[-1], "Sigmoid")
    if is_sigmoid and _weighs(rest, {value for node in between for value in node.outputs}):
        return ()
    node = between[-1] if is_sigmoid else _source(value, between).producer()
    before = () if node is None else _late(node) or _others(node) or _alike(graph, node)
    return (rest, *between, *before) if before else ()


def _source(value: ir.Value, between: tuple[ir.Node, ...]) -> ir.Value:
    """What these nodes, the last one first, make a value of."""
    source = near_one.passed(between[-1]) if between else value
    return value if source is None else source


def _late(sigmoid: ir.Node) -> tuple[ir.Node, ...]:
    """A sigmoid, and what adds a large number before it."""
    before = sigmoid.inputs[0].producer() if sigmoid.inputs[0] is not None else None
    if before is None or not patterns.is_default(sigmoid, "Sigmoid"):
        return ()
    numbers = [patterns.scalar(value) or 0.0 for value in patterns.operands(before)]
    is_late = (patterns.is_default(before, "Add") and max(numbers) >= _LEAST) or (
        patterns.is_default(before, "Sub") and numbers[-1] <= -_LEAST
    )
    return (before, sigmoid) if is_late else ()


def _weighs(rest: ir.Node, gates: set[ir.Value]) -> bool:
    """Whether a rest is multiplied only, and the products are added to those of one of the gates."""
    products = patterns.readers(rest.outputs[0])
    return bool(products) and all(_is_beside(product, gates) for product in products)


def _is_beside(product: ir.Node, gates: set[ir.Value]) -> bool:
    total = patterns.only_reader(product.outputs[0])
    if total is None or not patterns.is_default(product, "Mul") or not patterns.is_default(total, "Add"):
        return False
    beside = patterns.maker(patterns.other(total, product.outputs[0]), "Mul")
    return beside is not None and not gates.isdisjoint(patterns.operands(beside))


def _others(product: ir.Node) -> tuple[ir.Node, ...]:
    """A product of rests of 1, with what makes these."""
    if not patterns.is_default(product, "Mul", "ReduceProd"):
        return ()
    factors = patterns.operands(product)[: 1 if product.op_type == "ReduceProd" else 2]
    rests = [node for value in factors if (node := patterns.maker(value, "Sub")) is not None]
    taken = [value for node in rests if (value := near_one.beside_1(node)) is not None]
    if len(taken) != len(factors):
        return ()
    return (product, *rests, *(node for value in taken for node in near_one.made(value)))


def _alike(graph: UnitGraph, product: ir.Node) -> tuple[ir.Node, ...]:
    """A product of normalised vectors."""
    if not patterns.is_default(product, *_PRODUCTS):
        return ()
    ends = [_source(value, near_one.made(value)) for value in patterns.operands(product)]
    return (product,) if len(ends) > 1 and all(_is_unit(graph, value) for value in ends) else ()


def _is_unit(graph: UnitGraph, value: ir.Value) -> bool:
    """Whether a value is normalised to vectors of length 1."""
    unit = graph.producer.get(value, -1)
    spelled = graph.spelled.get(unit)
    is_written_out = spelled is not None and spelled.operator == SUM
    return is_written_out or patterns.maker(value, "LpNormalization") is not None
