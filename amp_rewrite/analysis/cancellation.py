"""Sums that are much smaller than their terms, and the consumers that need the remaining digits.

    mean(x * x) - mean(x) ** 2,  |a|^2 + |b|^2 - 2ab       terms that share atoms, with opposite signs
    (grid + flow) - grid,  x - mean(x)                     positions: inputs of the model, grids, sizes
    1 - sigmoid(x + 8),  1 - prod(1 - p),  1 - cos(a, b)   differences from 1 of a value near 1
    sqrt(1 - tanh(x)**2),  log(1 + x),  atanh(tanh(x))     the same for a value that may be near 1
    log(softmax(x)),  log(sigmoid(x) - sigmoid(z))         the same for a value that may be near 0

Half has steps of 1/2048 at 1 and of 1/2 at 1000, and a difference is seldom larger. The producers of such a
sum are float32 from its atoms on, and so is the difference, up to the consumer that is sensitive to its
relative error: a logarithm, a divisor, a root, an inverse function. Consumers that merely add or weight the
difference are half. `form_rules` finds the sums; needs are propagated backwards here, in one pass over the
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis import form_rules
from amp_rewrite.analysis.form_rules import added_before, addition_before
from amp_rewrite.analysis.forms import CLOSE, SURE, Form, Forms, Rest
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.patterns import rearranges, source
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.onnx_facts.operators import (
    AVERAGES,
    BOUNDS,
    DIVISORS,
    EXTREMES,
    INVERSES,
    JOINS,
    LIMITS,
    PRODUCTS,
    REARRANGES,
    SELECTS,
)
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_NEAR_0, _NEAR_1, _IF_UNBOUNDED = 1, 2, 4
"""Needs of a value: its distance from 0, from 1, and from 0 unless it is bounded."""
_LAYERS = frozenset("Conv ConvTranspose Gemm MatMul Tanh".split())
"""Layers, and the operators that a Mish applies to a softplus."""
_MOVES = REARRANGES | SELECTS | {"Neg"}
_PASSES = _MOVES | EXTREMES | BOUNDS | JOINS.keys() | {"Abs"}
_SCALES = frozenset(("Add", "Div", "Mul", "Pow", "Sub"))
"""Operators that preserve the digits of a value when the other operand is a number."""


def check(graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> Mapping[int, Evidence]:
    """Return the units of cancelling sums, from the atoms of their terms to the sensitive consumer."""
    if not _may_cancel(graph, fits):
        return {}
    forms = form_rules.read(graph, fits, half)
    reasons = dict.fromkeys(_Needs(forms).near_one(), Reason.NEAR_1)
    reasons |= dict.fromkeys(_cancelling(forms), Reason.CANCELLATION)
    evidence = {reason: Evidence(Authority.RANGE, reason) for reason in set(reasons.values())}
    return {unit: evidence[reasons[graph.units[unit].node]] for unit in graph.of_nodes(reasons)}


_STARTS = ("Log", "Neg", "Sub", *INVERSES)


def _may_cancel(graph: UnitGraph, fits: Mapping[ir.Value, Fit]) -> bool:
    """Return whether any node outside of idioms subtracts, or is sensitive to values near 1."""
    units = (unit for operator in _STARTS for unit in graph.by_operator.get(operator, ()))
    if any(unit not in graph.spelled for unit in units):
        return True
    if any(fit.high < 0 for fit in fits.values()):
        return True
    todo, positions = list(graph.root.inputs), set[ir.Value]()
    while todo:
        value = todo.pop()
        for node, port in value.uses():
            if node.op_type == "MatMul":
                return True
            if (
                port == 0
                and node.op_type in REARRANGES | SELECTS | AVERAGES
                and node.outputs[0] not in positions
            ):
                positions.add(node.outputs[0])
                todo.append(node.outputs[0])
    return False


def _cancelling(forms: Forms) -> Iterator[ir.Node]:
    """Yield the nodes whose terms cancel, and those that compute these terms from their atoms."""
    atoms = frozenset[int]().union(*forms.cancelling.values())

    def makes(node: ir.Node, value: ir.Value) -> bool:
        del node
        return value in forms.graph.producer and any(
            forms.is_part(value, term, atoms) for term in forms.of(value).terms
        )

    yield from _back(forms.cancelling, makes)


def _back(starts: Iterable[ir.Node], through: Callable[[ir.Node, ir.Value], bool]) -> dict[ir.Node, None]:
    """Return the ancestors of the starts by edges for which `through` holds, including the starts."""
    ancestors = dict.fromkeys(starts)
    todo = list(ancestors)
    while todo:
        node = todo.pop()
        for value in _consumed_values(node):
            maker = value.producer()
            if maker is not None and maker not in ancestors and through(node, value):
                ancestors[maker] = None
                todo.append(maker)
    return ancestors


def _consumed_values(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the inputs of a node and the outputs of its branches."""
    yield from (value for value in node.inputs if value is not None)
    if node.op_type == "If":
        yield from (value for body in control_flow.bodies(node) for value in body.outputs)


class _Needs:
    """Consumers that need the remaining digits of values near 0 or 1, and the producers of these values."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._needs: dict[ir.Value, int] = {}
        self._ends: dict[ir.Node, ir.Value] = {}
        by_operator = forms.graph.by_operator
        if forms.rests or not by_operator.keys().isdisjoint({"Log", *INVERSES}):
            for node in reversed(forms.order):
                self._carry(node)

    def near_one(self) -> dict[ir.Node, None]:
        """Return the nodes that stay float32."""
        rests = [node for node in self._forms.rests if self._is_small(node)]
        ends = [node for node, value in self._ends.items() if self._is_saturated(node, value)]
        nodes = _back((*rests, *ends), self._makes) | self._behind(rests)
        exponentials = [node for node in rests if self._is_exponential(node)]
        exponential_sources = _back(exponentials, self._makes)
        return {node: None for node in nodes if node.op_type != "Exp" or node in exponential_sources}

    def _is_exponential(self, node: ir.Node) -> bool:
        """Return whether an exponential that may be near 1 is an operand of the difference."""
        rest = self._forms.rests[node]
        return rest.may and self._forms.is_exponential(rest.value)

    def _carry(self, node: ir.Node) -> None:
        """Propagate the needs of a node's outputs to its inputs."""
        if node.domain or not node.outputs:
            return
        if node.op_type == "If":
            self._enter(node)
        own = self._own(node)
        value = node.inputs[DIVISORS.get(node.op_type, 0)] if own else None
        if value is not None:
            self._ends[node] = value
            self._need(value, own)
        need = self._needs.get(node.outputs[0], 0)
        for operand, remaining in self._passed(node, need) if need else ():
            self._need(operand, remaining)

    def _need(self, value: ir.Value, need: int) -> None:
        if need:
            self._needs[value] = self._needs.get(value, 0) | need

    def _enter(self, node: ir.Node) -> None:
        for body in control_flow.bodies(node):
            for value, output in zip(body.outputs, node.outputs, strict=False):
                self._need(value, self._needs.get(output, 0))

    def _own(self, node: ir.Node) -> int:
        """Return the need that a node itself has of its input."""
        if node.op_type in INVERSES:
            return _NEAR_1
        graph = self._forms.graph
        port = DIVISORS.get(node.op_type)
        if (
            port is None
            or len(node.inputs) <= port
            or graph.producer.get(node.outputs[0], -1) in graph.spelled
        ):
            return 0
        if node.op_type == "Log":
            return _NEAR_0 if self._is_activation(node) else _NEAR_0 | _NEAR_1
        if node.op_type == "Pow":
            exponent = patterns.scalar(node.inputs[1])
            return 0 if exponent is None or (exponent >= 0 and exponent.is_integer()) else _NEAR_0
        return _IF_UNBOUNDED if node.op_type == "Div" and _is_logit(node) else _NEAR_0

    def _passed(self, node: ir.Node, need: int) -> Iterator[tuple[ir.Value, int]]:
        """Yield the inputs whose digits determine those of the output, with the need of each; none at a
        difference from 1.
        """
        if node in self._forms.rests:
            return
        operator, operands = node.op_type, patterns.operands(node)
        if operator in _PASSES:
            ports = JOINS.get(operator, (0,))
            values = (
                operands
                if ports is None or operator in BOUNDS
                else [node.inputs[at] for at in ports if at < len(node.inputs)]
            )
            remaining = need & ~_IF_UNBOUNDED if operator in BOUNDS else need
            yield from ((value, remaining) for value in values if value is not None)
        elif operator in _SCALES:
            computed = [value for value in operands if self._forms.of(value).number is None]
            if len(computed) == 1 and (operator not in ("Div", "Pow") or computed[0] is operands[0]):
                yield computed[0], need & ~_NEAR_1
            elif operator == "Div" and need & _NEAR_1 and self._is_atanh(operands):
                yield from ((value, _NEAR_1) for value in operands)

    def _is_atanh(self, operands: tuple[ir.Value, ...]) -> bool:
        """Return whether the two values are 1 + x and 1 - x for the same x."""
        forms = self._forms
        rests = [
            forms.rests.get(maker) for value in operands if (maker := source(value).producer()) is not None
        ]
        values = [forms.of(rest.value).terms for rest in rests if rest is not None]
        return len(values) == 2 and values[0] == values[1]

    def _is_activation(self, log: ir.Node) -> bool:
        """Return whether a node is the logarithm in a softplus with layers as consumers, as in max(x, 0) +
        log(1 + exp(-|x|)): layers tolerate its error near zero.
        """
        total = addition_before(log)
        rest = self._forms.rests.get(total) if total is not None else None
        if rest is None or not self._forms.is_exponential(rest.value):
            return False
        readers = _readers(log.outputs[0])
        behind = _readers(readers[0].outputs[0]) if len(readers) == 1 and readers[0].op_type == "Add" else ()
        return bool(behind) and all(node.op_type in _LAYERS for node in behind)

    def _is_small(self, node: ir.Node) -> bool:
        """Return whether a difference is known to be small, or may be small and has a sensitive consumer."""
        rest, need = self._forms.rests[node], self._needs.get(node.outputs[0], 0)
        if need & _NEAR_1 or (rest.must and not self._weighs(node, rest)):
            return True
        if not rest.may:
            return False
        is_bounded = self._forms.of(rest.value).bounded
        return bool(need & (_NEAR_0 if is_bounded else _NEAR_0 | _IF_UNBOUNDED)) or self._is_exponential(node)

    def _weighs(self, node: ir.Node, rest: Rest) -> bool:
        """Return whether a difference and its subtrahend are the weights of two terms of a sum: the error of
        one compensates that of the other.
        """
        gate = self._forms.of(rest.value)
        products = _readers(node.outputs[0])
        return bool(products) and all(self._is_beside(product, gate) for product in products)

    def _is_beside(self, product: ir.Node, gate: Form) -> bool:
        totals = _readers(product.outputs[0]) if product.op_type == "Mul" else ()
        if len(totals) != 1 or totals[0].op_type != "Add":
            return False
        makers = (source(value).producer() for value in patterns.operands(totals[0]))
        others = [
            maker for maker in makers if maker is not None and maker is not product and maker.op_type == "Mul"
        ]
        return any(
            self._forms.of(value).terms == gate.terms
            for maker in others
            for value in patterns.operands(maker)
        )

    def _is_saturated(self, end: ir.Node, value: ir.Value) -> bool:
        """Return whether a value saturates where a node needs its digits: 1 for an inverse, 0 for a Log."""
        near = self._forms.known_near(value)
        if near is None or self._forms.of(value).number is not None:
            return False
        if end.op_type in INVERSES:
            return any(abs(abs(point) - 1) <= CLOSE for point in near)
        return end.op_type == "Log" and 0.0 in near

    def _makes(self, node: ir.Node, value: ir.Value) -> bool:
        """Return whether the producer of a value is pinned along with its consumer: up to an operator that
        saturates, or as far as the value is moved, scaled, bounded or squared.
        """
        if node.op_type in PRODUCTS:
            return False
        if node.op_type in LIMITS:
            return (added_before(node) or 0.0) >= SURE
        maker = value.producer()
        if self._forms.known_near(value) is not None or maker is None:
            return True
        computed = {each for each in patterns.operands(maker) if self._forms.of(each).number is None}
        is_scaled = maker.op_type in _SCALES | BOUNDS and len(computed) == 1
        return not maker.domain and (is_scaled or maker.op_type in _MOVES)

    def _behind(self, rests: Iterable[ir.Node]) -> dict[ir.Node, None]:
        """Return the nodes from small differences to the consumers that need their digits."""
        nodes, carriers = dict[ir.Node, None](), dict[ir.Node, None]()
        todo = [node.outputs[0] for node in rests]
        while todo:
            value = todo.pop()
            if value in self._forms.leaving:
                todo.append(self._forms.leaving[value])
            for reader, _ in value.uses():
                if self._ends.get(reader) is value:
                    nodes[reader] = None
                if reader not in carriers and self._passes(reader, value):
                    nodes[reader] = carriers[reader] = None
                    todo.append(reader.outputs[0])
        return nodes

    def _passes(self, reader: ir.Node, value: ir.Value) -> bool:
        need = self._needs.get(reader.outputs[0], 0) if reader.outputs else 0
        return bool(need) and any(
            operand is value and remaining for operand, remaining in self._passed(reader, need)
        )


def _is_logit(quotient: ir.Node) -> bool:
    """Return whether a quotient is read by logarithms only."""
    return [node.op_type for node in _readers(quotient.outputs[0])] == ["Log"]


def _readers(value: ir.Value) -> tuple[ir.Node, ...]:
    """Return the nodes that read a value, rearranged or not; none where it is an output of a graph."""
    readers: dict[ir.Node, None] = {}
    todo = [value]
    while todo:
        value = todo.pop()
        if value.is_graph_output():
            return ()
        for node, _ in value.uses():
            if rearranges(node):
                todo.append(node.outputs[0])
            else:
                readers[node] = None
    return tuple(readers)
