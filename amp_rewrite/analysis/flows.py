"""Values that are sensitive to absolute error, however large they are: half has steps of 1/16 at 100.

    angles      Sin(points @ frequencies)                        from inputs of the model
    spectra     Log(Clip(re * re + im * im, 1e-10))              from inputs, which may be faint
    integers    Cast(positions) * frequencies                    from integers, or up to integers
    pixels      GridSample(x, grid + flow)                       up to pixel coordinates

Each flow has sources, ends, or both, and operators that propagate a value from one to the other. A flow ends
at a layer: a product of many terms, a Conv.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis import long_sums
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, read_by
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import constant, numbers
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.onnx_facts.operators import (
    ARITHMETIC,
    AVERAGES,
    CONTROL_FLOW,
    COORDINATES,
    LIMITS,
    MOVERS,
    PRODUCTS,
    REARRANGES,
    SELECTS,
    TRANSFORMS,
)
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_CARRY = MOVERS | ARITHMETIC | {"Cast"}
"""Operators that propagate coordinates and integers."""
_TO_ANGLES = _CARRY | PRODUCTS
_SQUARES = frozenset(("ReduceL2", "ReduceSumSquare"))
_OF_INPUTS = (_TO_ANGLES | TRANSFORMS | _SQUARES | AVERAGES) - CONTROL_FLOW
_ANGLES = ("Cos", "Sin")
_BOUNDED = LIMITS.keys() - {"Exp"} | {"Sign"}
_POINT = 4
"""Contracted size of a product that transforms a point in homogeneous coordinates; one that computes angles
of a point has fewer terms, one of features has more.
"""
_FLOOR = 2.0**-10
"""Least addend or lower bound of a power that masks the rounding error of half."""
_EXACT = (ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)
"""Input types that half represents exactly, and float32, whose Casts lead to other types."""
_SIZES = {ir.DataType.BOOL: 1.0, ir.DataType.UINT8: 255.0, ir.DataType.INT8: 128.0}
_COUNTED = 2**24
"""Limit up to which float32 is exact for integers; beyond it every float32 is an integer, so that the type
tells nothing.
"""
_LAYER, _PRODUCT, _SQUARE, _FLOORED, _PROJECTED = 1, 2, 4, 8, 16
"""Operators between the inputs and a value, as bits."""


def check(graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> Mapping[int, Evidence]:
    """Return the units on such flows; of several reasons the first counts."""
    flows = _Flows(graph, fits, half)
    findings: dict[int, Evidence] = {}
    for reason, flow in (
        (Reason.INTEGER, flows.to_integers),
        (Reason.INTEGER, flows.to_pixels),
        (Reason.INTEGER, flows.from_integers),
        (Reason.TO_ANGLE, flows.to_angles),
        (Reason.SPECTRUM, flows.of_spectra),
    ):
        evidence = Evidence(Authority.RANGE, reason, limit=half.integers, half=half.name)
        findings = {**dict.fromkeys(flow(), evidence), **findings}
    return findings


class _Flows:
    """The flows of a model, each traversed backwards from its ends or forwards from its sources."""

    def __init__(self, graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> None:
        self._graph = graph
        self._fits = fits
        self._limit = half.integers
        self._integers = _Integers(graph)

    def to_integers(self) -> Iterable[int]:
        """Return the units whose result becomes an integer through arithmetic alone."""
        return self._back(u for u in self._of("Cast") if _casts_to_integer(self._graph.units[u].node))

    def to_pixels(self) -> Iterable[int]:
        """Return the units whose result becomes a pixel coordinate through arithmetic alone."""
        uses = (
            (self._graph.units[unit].node.inputs, port)
            for operator, ports in COORDINATES.items()
            for unit in self._of(operator)
            for port in ports
        )
        makers = (self._maker(inputs[port]) for inputs, port in uses if port < len(inputs))
        return self._back(unit for unit in makers if unit is not None and self._operators[unit] in _CARRY)

    def from_integers(self) -> Iterable[int]:
        """Return the units that compute from large integers and constants alone, up to a bounded result;
        products only on the way to an angle, where they are no layers.
        """

        def carries(unit: int) -> bool:
            operator = self._operators[unit]
            return operator not in _BOUNDED and (operator not in PRODUCTS or unit in self._before_angles)

        return self._with_ends(self._spread(dict.fromkeys(self._counting()), (), carries), _BOUNDED)

    def to_angles(self) -> Iterable[int]:
        """Return the units that compute an angle from inputs; a Sin of an input itself follows its list."""
        ends = set(self._of(*_ANGLES))
        way = reach(ends, self._graph.predecessors.__getitem__, self._is_of_a_point) if ends else ()
        return (*way, *(unit for each in way for unit in self._graph.successors[each] if unit in ends))

    def of_spectra(self) -> Iterable[int]:
        """Return the units that compute the logarithm of a power of inputs, without an addend or lower bound
        before it that masks faint numbers.
        """
        before = self._graph.predecessors
        logs = [unit for unit in self._of("Log") if unit not in self._graph.spelled]
        ends = [unit for unit in logs if before[unit] and self._is_power(before[unit])]
        return (*ends, *reach(ends, before.__getitem__, self._of_inputs.__contains__))

    @functools.cached_property
    def _operators(self) -> Sequence[str]:
        """The operator of each unit."""
        return [effective_op(unit.node) for unit in self._graph.units]

    def _of(self, *operators: str) -> list[int]:
        """Return the units of these operators."""
        return [unit for operator in operators for unit in self._graph.by_operator.get(operator, ())]

    def _maker(self, value: ir.Value | None) -> int | None:
        return None if value is None else self._graph.producer.get(value)

    def _back(self, ends: Iterable[int]) -> Iterable[int]:
        """Return these units, and the ones that propagate values to them."""
        ends = list(ends)
        before = self._graph.predecessors.__getitem__
        return (*ends, *reach(ends, before, lambda unit: self._operators[unit] in _CARRY))

    def _spread(
        self, units: dict[int, None], sources: Collection[ir.Value], carries: Callable[[int], bool]
    ) -> dict[int, None]:
        """Return the units of the sources, and those that compute from these and constants alone, each after
        its producers.
        """
        graph = self._graph
        todo = [other for unit in units for other in graph.successors[unit]]
        todo += [unit for value in sources for unit, _ in graph.uses.get(value, ())]
        while todo:
            unit = todo.pop()
            if unit not in units and carries(unit) and self._reads_only(unit, units, sources):
                units[unit] = None
                todo += graph.successors[unit]
        return units

    def _reads_only(self, unit: int, units: Collection[int], sources: Collection[ir.Value] = ()) -> bool:
        return all(
            self._graph.producer.get(value) in units or value in sources or value in self._constants
            for value in read_by(self._graph, unit)
        )

    def _with_ends(self, units: dict[int, None], operators: Collection[str]) -> Iterable[int]:
        """Return these units, and those of some operators that read only these and constants."""
        behind = {other for unit in units for other in self._graph.successors[unit]} - units.keys()
        ends = (unit for unit in behind if self._operators[unit] in operators)
        return (*units, *(unit for unit in ends if self._reads_only(unit, units)))

    @functools.cached_property
    def _constants(self) -> Collection[ir.Value]:
        """The values that are computed from constants and shapes alone."""
        values = set(self._fits)
        for nodes in self._graph.nodes.values():
            for node in nodes:
                if node.op_type in _CONSTANT or (
                    node.op_type in _KEEP_CONSTANT
                    and all(v is None or v in values or _is_stored(v) for v in node.inputs)
                ):
                    values.update(node.outputs)
        return values

    @functools.cached_property
    def _before_angles(self) -> Collection[int]:
        """The units whose result reaches a Sin or Cos through products and arithmetic."""
        before = self._graph.predecessors.__getitem__
        return reach(self._of(*_ANGLES), before, lambda unit: self._operators[unit] in _TO_ANGLES)

    @functools.cached_property
    def _of_inputs(self) -> Mapping[int, int]:
        """The units that compute from inputs of the model without a default, and the operators between, as
        bits; a Cast from a type that half may not represent counts as an input (half, 16-bit audio).
        """
        inputs = [value for value in self._graph.root.inputs if not value.is_initializer()]
        casts = (
            node.outputs[0]
            for value in inputs
            if value.dtype not in _EXACT
            for node, _ in value.uses()
            if node.op_type == "Cast"
        )
        sources = dict.fromkeys((*inputs, *casts))
        units = self._spread({}, sources, lambda unit: self._operators[unit] in _OF_INPUTS)
        traits: dict[int, int] = {}
        for unit in units:
            before = 0
            for each in self._graph.predecessors[unit]:
                before |= traits.get(each, 0)
            traits[unit] = self._went_through(unit, before)
        return traits

    def _went_through(self, unit: int, before: int) -> int:
        """Return the bits of a unit's output from those of its inputs."""
        node, operator = self._graph.units[unit].node, self._operators[unit]
        if operator in PRODUCTS | TRANSFORMS:
            terms = long_sums.terms(node)
            is_layer = terms is None or terms > _POINT
            before |= _PRODUCT | (_LAYER if is_layer else _PROJECTED if terms == _POINT else 0)
        elif operator in _SQUARES or patterns.square_of(node) is not None:
            before |= _SQUARE | (_LAYER if operator in _SQUARES else 0)
        elif operator in AVERAGES:
            before |= _LAYER
        if operator in ("Add", "Clip", "Max"):  # the third input of a Clip bounds from above
            fits = (self._fits.get(value) for value in patterns.operands(node)[:2])
            is_high = any(fit is not None and fit.low >= _FLOOR for fit in fits)
            return before | (_FLOORED if is_high else 0)
        return before if operator in REARRANGES | SELECTS | {"Min"} else before & ~_FLOORED

    def _is_of_a_point(self, unit: int) -> bool:
        return not self._of_inputs.get(unit, _LAYER) & (_LAYER | _PROJECTED)

    def _is_power(self, units: Collection[int]) -> bool:
        """Return whether these are of inputs, transformed and squared, and nothing masks faint values."""
        through = functools.reduce(lambda bits, unit: bits | self._of_inputs.get(unit, 0), units, 0)
        is_spectrum = through & (_PRODUCT | _SQUARE | _FLOORED) == _PRODUCT | _SQUARE
        return is_spectrum and all(unit in self._of_inputs for unit in units)

    def _counting(self) -> Iterator[int]:
        """Return the units that read integers that half may not represent."""
        for unit in self._of("Cast", "Range"):
            each = self._graph.units[unit]
            if each.defs and self._integers.make_large(each.node, self._limit):
                yield unit
        for value, fit in self._fits.items():
            counts = fit.whole and self._limit < fit.high <= _COUNTED
            if counts and not fit.exact and not fit.overflowing:
                yield from (consumer for consumer, _ in self._graph.uses.get(value, ()))


_CONSTANT = ("Constant", "Shape")
_KEEP_CONSTANT = (_CARRY - CONTROL_FLOW) | {"ConstantOfShape", "Exp", "Reciprocal"}


def _is_stored(value: ir.Value) -> bool:
    return value.const_value is not None and not value.is_graph_input()


def _casts_to_integer(node: ir.Node) -> bool:
    typed = schema.of(node)
    to = schema.declared(node, typed) if typed is not None else None
    return to is not None and to.is_integer()


class _Integers:
    """Upper bounds of the magnitudes of integer values, each computed once."""

    def __init__(self, graph: UnitGraph) -> None:
        self._types = graph.types
        self._bounds: dict[ir.Value, float] = {}

    def make_large(self, node: ir.Node, limit: float) -> bool:
        """Return whether a Cast from an integer or a Range may exceed a limit."""
        inputs = [value for value in node.inputs[:2] if value is not None]
        if node.op_type == "Cast":
            kind = self._types.get(inputs[0])
            dtype = kind.dtype if kind is not None else ir.DataType.UNDEFINED
            if not dtype.is_integer() and dtype != ir.DataType.BOOL:
                return False
        return any(self._bound(value) > limit for value in inputs)

    def _bound(self, value: ir.Value) -> float:
        todo = [value]
        while todo:
            at = todo[-1]
            if at in self._bounds:
                todo.pop()
                continue
            bound = self._direct(at)
            node = at.producer()
            if bound is None and node is not None:
                operands = patterns.operands(node)
                missing = [each for each in operands if each not in self._bounds]
                if missing:
                    todo += missing
                    continue
                bound = _LARGEST[node.op_type](node, [self._bounds[each] for each in operands])
            self._bounds[at] = math.inf if bound is None else bound
        return self._bounds[value]

    def _direct(self, value: ir.Value) -> float | None:
        """Return the bound of a value from its type or its constant, infinity where nothing is known; None
        where it follows from its producer's inputs.
        """
        kind = self._types.get(value)
        if kind is not None and kind.dtype in _SIZES:
            return _SIZES[kind.dtype]
        node = value.producer()
        tensor = value.const_value if value.const_value is not None or node is None else constant(node)
        if tensor is not None:
            is_number = tensor.dtype.is_integer() or tensor.dtype.is_floating_point()
            return float(np.abs(numbers(tensor)).max(initial=0)) if is_number else math.inf
        if node is None or node.domain or node.op_type not in _LARGEST or None in node.inputs:
            return math.inf
        return None


def _longest(node: ir.Node, _bounds: list[float]) -> float:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    is_static = shape is not None and all(isinstance(dim, int) for dim in shape)
    return (
        max((int(dim) for dim in shape or () if isinstance(dim, int)), default=0) if is_static else math.inf
    )


_LARGEST: Mapping[str, Callable[[ir.Node, list[float]], float]] = {
    **dict.fromkeys(REARRANGES | SELECTS | {"Abs", "Div", "Neg"}, lambda _, bounds: bounds[0]),
    **dict.fromkeys(("Concat", "Max", "Min", "Pad"), lambda _, bounds: max(bounds)),
    **dict.fromkeys(("Add", "Sub"), lambda _, bounds: sum(bounds)),
    "Where": lambda _, bounds: max(bounds[1:]),
    "Mul": lambda _, bounds: math.prod(bounds),
    "Mod": lambda _, bounds: bounds[1],
    "Range": lambda _, bounds: max(bounds[:2]),
    "Shape": _longest,
}
"""Bound of an operator's result, computed from the bounds of its inputs."""
