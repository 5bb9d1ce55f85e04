"""Propagation of bounds through a model: proofs for all inputs within their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.bounds import elementwise, given, moving, normalising, products, stored_bounds
from amp_rewrite.bounds.bound import UNKNOWN, Bound, hull, symmetric
from amp_rewrite.bounds.given import InputRange
from amp_rewrite.bounds.known import WIDE, Known
from amp_rewrite.bounds.site import Rule, Site
from amp_rewrite.model.constants import constant
from amp_rewrite.onnx_facts import operators
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.policy.options import Options

Bounds = Mapping[ir.Value, Bound]
"""The bounds of values; missing values are not bounded."""

RULES: Mapping[str, Rule] = {
    **elementwise.CHOOSING_RULES,
    **normalising.CONTRIB_RULES,
    **elementwise.RULES,
    **elementwise.FUNCTION_RULES,
    **moving.RULES,
    **normalising.RULES,
    **products.RULES,
}
"""The rules by operator, with its domain; results of any other operator are UNKNOWN."""

_OUTPUTS = {"Split": math.inf, "LSTM": 2, "GRU": 2, "RNN": 2}
"""The number of outputs that a rule bounds, if more than the first."""


def propagate(
    graph: UnitGraph,
    entering: Bounds,
    variable: frozenset[ir.Value],
    measured: Known | None = None,
    functions: frozenset[ir.OperatorIdentifier] = frozenset(),
) -> Known:
    """Propagate the bounds `entering`, of inputs or of other values, through a model.

    `variable` are stored values that a caller can override; the measurements in `measured` are reused. Calls
    of `functions`, those of the model, have no rule even if an operator of that name does. Linear in the
    nodes, and in the stored numbers.
    """
    environment = Known(dict(entering), variable, graph.types)
    if measured is not None:
        environment = replace(measured, bounds=dict(entering))
    else:
        environment.quotients = normalising.bound_written_out_norms(graph, environment)
    _Walk(environment, entering, functions).graph(graph.root)
    return environment


class _Walk:
    def __init__(
        self, environment: Known, entering: Bounds, functions: frozenset[ir.OperatorIdentifier]
    ) -> None:
        self._known, self._given, self._functions = environment, entering, functions

    def graph(self, graph: ir.Graph) -> None:
        """Bound the outputs of all nodes of a graph."""
        for node in graph:
            if control_flow.bodies(node):
                self._with_bodies(node)
            else:
                self._plain(node)

    def _plain(self, node: ir.Node) -> None:
        operator = schema.written(node.domain, node.op_type)
        rule = RULES.get(operator)
        if rule is None or _ALIGNED in node.attributes or node.op_identifier() in self._functions:
            if constant(node) is None:
                self._set(node, UNKNOWN, math.inf)
            return
        self._set(node, self._ruled(rule, node), _OUTPUTS.get(operator, 1))
        for port, further in normalising.FURTHER.get(operator, {}).items():
            if port < len(node.outputs):
                self._keep(node, node.outputs[port], self._ruled(further, node))

    def _ruled(self, rule: Rule, node: ir.Node) -> Bound:
        try:
            return rule(Site(node, self._known))
        except (ArithmeticError, IndexError, TypeError, ValueError):  # a node that no schema allows, NaN
            return UNKNOWN

    def _set(self, node: ir.Node, bound: Bound, count: float) -> None:
        for position, value in enumerate(node.outputs):
            self._keep(node, value, bound if position < count else UNKNOWN)

    def _keep(self, node: ir.Node, value: ir.Value, bound: Bound) -> None:
        """Record a bound, adapted to the element type: rules hold for float32; integers truncate and wrap,
        and half rounds and overflows on its own.
        """
        if value in self._given:
            return
        dtype = self._known.dtype(value)
        if dtype in _NARROW:
            bound = bound if node.op_type in operators.MOVERS | _EXACT else UNKNOWN
        elif dtype not in WIDE:
            bound = _whole(bound, stored_bounds.of_type(dtype))
        self._known.bounds[value] = bound

    def _with_bodies(self, node: ir.Node) -> None:
        """Bound the bodies of a node: loop-carried values are UNKNOWN, scanned ones bounded as a whole."""
        bindings = control_flow.bindings(node) or ()
        entering: dict[ir.Value, Bound] = {}
        for binding in bindings:
            if binding.leaves or binding.mapped:
                continue
            sources = [self._known.of(node.inputs[port]) for port in binding.inputs]
            for body, port in binding.enters:
                entering[body.inputs[port]] = _interval(hull(*sources)) if sources else UNKNOWN
        for body in control_flow.bodies(node):
            self._known.bounds.update((value, entering.get(value, UNKNOWN)) for value in body.inputs)
            self.graph(body)
        self._set(node, UNKNOWN, math.inf)
        for binding in bindings:
            if not binding.mapped and binding.leaves:
                leaving = [self._known.of(body.outputs[port]) for body, port in binding.leaves]
                initial_bounds = [self._known.of(node.inputs[port]) for port in binding.inputs]
                for port in binding.outputs:
                    self._known.bounds[node.outputs[port]] = _interval(hull(*leaving, *initial_bounds))


_ALIGNED = "broadcast"
"""The attribute of old opsets that aligns axes other than from the last."""
_NARROW = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_EXACT = frozenset(("Abs", "Cast", "Clip", "GlobalMaxPool", "MaxPool", "Neg", "Relu"))


def _whole(bound: Bound, limits: Bound) -> Bound:
    """Return the interval of integers of a type: truncated, and wrapped on overflow."""
    if not (limits.low <= bound.low and bound.high <= limits.high and limits.is_finite):
        return limits
    return Bound(math.floor(bound.low), math.ceil(bound.high))


def _interval(bound: Bound) -> Bound:
    return Bound(bound.low, bound.high)


@dataclass(frozen=True, slots=True)
class Proven:
    """The bounds of all values; `inputs` are the ranges from which they follow.

    `clamped` are the bounds of the model with masks clamped, as in the rewrite.
    """

    inputs: tuple[InputRange, ...]
    known: Known
    clamped: Known

    def of(self, value: ir.Value | None) -> Bound:
        """Return the bound of a value in float32."""
        return self.known.of(value)

    def of_clamped(self, value: ir.Value) -> Bound:
        """Return the bound of a value with masks clamped."""
        return self.clamped.of(value)


MOST_NODES = 5_000
MOST_WEIGHTS = 1 << 25
"""Model sizes up to which a summary has bounds by default: they take a tenth of a millisecond for each node,
and about a second for 2^26 weights.
"""


def is_quick(facts: Facts) -> bool:
    """Whether bounds of a model take little of the time of its rewrite."""
    nodes = sum(map(len, facts.graph.nodes.values()))
    return nodes <= MOST_NODES and sum(s.tensor.size for s in facts.constants.values()) <= MOST_WEIGHTS


def bound_model(model: ir.Model, facts: Facts, options: Options) -> Proven:
    """Bound a prepared model. Raises OptionError for a declared range of a name that is no numeric input."""
    inputs = given.ranges(model, options.ranges)
    entering, variable = given.bounds(model, inputs), given.variable(model)
    calls = frozenset(model.functions)
    environment = propagate(facts.graph, entering, variable, functions=calls)
    return Proven(inputs, environment, environment)


def with_clamped_masks(model: ir.Model, facts: Facts, options: Options, proof: Proven) -> Proven:
    """Return the bounds with those of the model with clamped masks; unchanged without masks."""
    masks = facts.ranges.masks.clamped
    if not masks:
        return proof
    entering = given.bounds(model, proof.inputs) | dict.fromkeys(masks, symmetric(options.half.fill))
    calls = frozenset(model.functions)
    again = propagate(facts.graph, entering, proof.known.variable, proof.known, functions=calls)
    return replace(proof, clamped=again)
