"""Gaussians on a grid: the exponential of the squares of what is left of positions when a grid is taken away.

    exp(-((x - grid)**2 + (y - grid)**2) / s)        splats, heat maps of key points, soft alignments

Lists deny squares and exponentials, but the difference was half, as were the positions: at 500 pixels half
has steps of 1/4 for both. Positions that a layer makes are what they are in half.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis import long_sums
from amp_rewrite.analysis.derived import Derived
from amp_rewrite.analysis.from_inputs import FromInputs, read_by
from amp_rewrite.analysis.operators import ARITHMETIC, BOUNDS, LIMITS, MOVERS, PRODUCTS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.ranges.constant import magnitude
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.numerics.half import Fit
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_MOVE = MOVERS - {"If", "Loop", "Scan"}
_BEHIND = tuple(_MOVE | {"Add", "Cast", "Div", "Exp", "Mul", "Neg", "Pow", "ReduceSum", "Sub", "Sum"})
_LEAST = 32.0
"""The least that a stored grid reaches: from there on, half has steps of 1/32."""
_COORDINATES = 4
"""The terms of a product of points, in space and with a 1."""
_MOST = 32
"""The most units between a difference and the exponential."""


def check(graph: UnitGraph, fits: Mapping[ir.Value, Fit]) -> Mapping[int, Evidence]:
    """The units that take positions and a grid from each other, that scale either, or make it of inputs."""
    if not graph.by_operator.get("Exp"):
        return {}
    derived = Derived(fits)

    def is_grid(value: ir.Value) -> bool:
        fit = fits.get(value)
        known = derived.has(value) if fit is None else magnitude(fit) >= _LEAST
        return known and patterns.scalar(value) is None

    subtractions = (unit for unit in graph.by_operator.get("Sub", ()) if unit not in graph.spelled)
    differences = [unit for unit in subtractions if any(map(is_grid, read_by(graph, unit)))]
    multiplied = _multiplied(graph) if differences else {}
    ends = [unit for unit in differences if unit in multiplied and _is_in_gaussian(graph, unit)]
    before = reach(ends, graph.predecessors.__getitem__, lambda unit: _carries(graph.units[unit].node))
    way = FromInputs(graph, fits, before.__contains__).units if ends else ()
    scaled = {node for unit in ends for value in read_by(graph, unit) for node in _scaling(value)}
    return dict.fromkeys((*ends, *way, *graph.of_nodes(scaled)), Evidence(Authority.RANGE, Reason.GAUSSIAN))


def _carries(node: ir.Node) -> bool:
    """Whether a node moves points, does arithmetic with them, or multiplies them by a small matrix."""
    if node.op_type in PRODUCTS:
        terms = long_sums.terms(node)
        return terms is not None and terms <= _COORDINATES and "Conv" not in node.op_type
    return effective_op(node) in _MOVE | ARITHMETIC | {"Cast"}


def _multiplied(graph: UnitGraph) -> Container[int]:
    """The units that make what is multiplied on its way to an exponential."""

    def is_behind(unit: int) -> bool:
        return patterns.is_default(graph.units[unit].node, *_BEHIND)

    way = reach(graph.by_operator.get("Exp", ()), graph.predecessors.__getitem__, is_behind)
    products = [unit for unit in way if graph.units[unit].node.op_type in ("Mul", "Pow")]
    return reach(products, graph.predecessors.__getitem__, is_behind)


def _is_in_gaussian(graph: UnitGraph, unit: int) -> bool:
    """Whether what a unit makes is multiplied by itself on its way to an exponential."""
    found, todo = {unit: None}, [unit]
    while todo and len(found) <= _MOST:
        at = todo.pop()
        behind = graph.successors[at] if graph.units[at].node.op_type != "Exp" else ()
        fresh = [u for u in behind if u not in found and patterns.is_default(graph.units[u].node, *_BEHIND)]
        found.update(dict.fromkeys(fresh))
        todo += fresh
    nodes = [graph.units[u].node for u in found]
    made = {value for node in nodes for value in node.outputs}
    is_squared = any(patterns.square_of(node) or _multiplies(node, made) for node in nodes)
    return is_squared and any(node.op_type == "Exp" for node in nodes)


def _multiplies(node: ir.Node, values: set[ir.Value]) -> bool:
    return patterns.is_default(node, "Mul") and values.issuperset(patterns.operands(node))


def _scaling(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that move, scale, bound or square a value on its way, up to what saturates."""
    while (
        (node := value.producer()) is not None
        and node.op_type in _SCALES | _MOVE | LIMITS.keys()
        and not node.domain
    ):
        yield node
        computed = [each for each in patterns.operands(node) if patterns.scalar(each) is None]
        if node.op_type in LIMITS or (node.op_type in _SCALES and len(computed) != 1):
            return
        value = computed[0]


_SCALES = BOUNDS | {"Abs", "Add", "Cast", "Div", "Mul", "Neg", "Pow"}
