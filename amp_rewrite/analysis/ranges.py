"""Stored values that half cannot hold, and what they would do there."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.findings import MOVERS, Finding, acts_as
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import blocks
from amp_rewrite.model.constants import Stored, numbers
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Fit, Half

_SOFTMAX = frozenset(("Softmax", "LogSoftmax"))
_ATTENTION = frozenset(("Attention", "MultiHeadAttention", "GroupQueryAttention"))
_COMPARE = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN".split())
_CARRY_HUGE = MOVERS | {"Add", "Neg", "Sub"}
_CARRY_MASK = _CARRY_HUGE | {"Div", "Mul", "Sum"}
_CARRY_EPSILON = MOVERS | {"Add", "Abs", "Clip", "Mul", "Sqrt", "Sub", "Sum"}
_CARRY_BOUND = _CARRY_EPSILON - {"Mul", "Sub"}
_DIVIDE = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0}
"""Where zero is fatal: the operator and the input that must not be zero."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What the stored values mean for colours.

    `fits` says how each stored value fits into half; `findings` which units must stay float32. A mask
    is a huge negative fill on its way to a softmax: `masks` maps its value to the units on that way.
    """

    fits: Mapping[ir.Value, Fit]
    findings: Mapping[int, Finding]
    masks: Mapping[ir.Value, tuple[int, ...]]


def check(graph: UnitGraph, stored: Mapping[ir.Value, Stored], half: Half) -> Ranges:
    """How every stored value that is read fits into `half`, and what follows from it."""
    check_ = _Check(graph, stored, half)
    read = [value for value in stored if graph.readers.get(value)]
    fits = blocks.fits([stored[value].tensor for value in read], half)
    for value, fit in zip(read, fits, strict=True):
        arrivals = [(unit, site.port) for unit, site in graph.readers[value]]
        check_.constant(value, fit, stored[value].tensor.size, arrivals)
    for unit in graph.units:
        if unit.node.op_type == "ConstantOfShape" and unit.node.domain == "":
            check_.fill(unit.index)
    return Ranges(check_.fits, check_.findings, check_.masks)


def fill_of(node: ir.Node) -> NDArray[np.float32]:
    """The one value of a ConstantOfShape node that fills with float32."""
    attribute = node.attributes.get("value")
    return numbers(attribute.as_tensor()) if attribute is not None else np.zeros(1, np.float32)


_SCALES = frozenset(("Div", "Mul", "Pow"))
_SUMS = frozenset(("Add", "Sub", "Sum"))
_COARSE = 2.0
"""Of half's integer bound: four times the unit roundoff, which only subnormal numbers exceed."""

Arrival = tuple[int, int]
"""A unit, and the port of its node at which a value arrives."""


class _Check:
    def __init__(self, graph: UnitGraph, stored: Container[ir.Value], half: Half) -> None:
        self._graph = graph
        self._stored = stored
        self._half = half
        self._leaving = frozenset(graph.root.outputs)
        self.fits: dict[ir.Value, Fit] = {}
        self.findings: dict[int, Finding] = {}
        self.masks: dict[ir.Value, tuple[int, ...]] = {}

    def constant(self, value: ir.Value, fit: Fit, size: int, readers: list[Arrival]) -> None:
        self.fits[value] = fit
        if fit.overflowing:
            self._overflow(value, fit, readers)
        elif max(fit.low, -fit.high) >= self._half.integers:
            self._swallow(value, max(fit.low, -fit.high), readers)
        if fit.flushed:
            self._epsilon(value, fit, readers)
        if size == 1 and not (fit.exact or fit.overflowing):
            self._coarse(value, fit.low, readers)
        if 0 < fit.low == fit.high < 1 / self._half.largest:
            self._inverse(value, fit.low, readers)

    def _swallow(self, value: ir.Value, least: float, readers: list[Arrival]) -> None:
        """Where all numbers of a value are past the integers that half has, sums with it lose fractions."""
        step = 2.0 ** (math.floor(math.log2(least)) + 1) / self._half.integers
        what = f"{least:.6g} in {_named(value)} swallows what it is added to"
        finding = Finding(f"{what}: {self._half.name} has steps of {step:g} there")
        for unit, _ in readers:
            if self._graph.units[unit].node.op_type in _SUMS:
                self.findings.setdefault(unit, finding)

    def _coarse(self, value: ir.Value, number: float, readers: list[Arrival]) -> None:
        """A single factor that half barely holds would scale all that it meets by another number."""
        rounded = float(rounding.convert(np.array([number], np.float32), self._half).astype(np.float32)[0])
        if not number or abs(rounded - number) <= abs(number) * _COARSE / self._half.integers:
            return
        finding = Finding(f"{number:.3g} in {_named(value)} becomes {rounded:.3g} in {self._half.name}")
        for unit, _ in readers:
            if self._graph.units[unit].node.op_type in _SCALES:
                self.findings.setdefault(unit, finding)

    def _inverse(self, value: ir.Value, bound: float, readers: list[Arrival]) -> None:
        """Where a value keeps a divisor of a constant from zero and its inverse is beyond half, the way there
        stays float32, and so do the readers of the quotient.
        """
        finding = Finding(f"1 / {bound:.3g}, which {_named(value)} admits, is beyond {self._half.name}")
        parents: dict[int, int | None] = {}
        todo: list[tuple[Arrival, int | None, float]] = [(arrival, None, bound) for arrival in readers]
        while todo:
            (unit, port), parent, least = todo.pop()
            operator = acts_as(self._graph.units[unit].node)
            if self._inverts(unit, port) and least * self._half.largest < 1:
                parents.setdefault(unit, parent)
                self._mark_back(unit, parents, finding)
                self.findings.update({r: finding for r, _ in self._arrivals(unit) if r not in self.findings})
            elif unit not in parents and operator in _CARRY_BOUND:
                parents[unit] = parent
                after = least**0.5 if operator == "Sqrt" else least
                todo += [(arrival, unit, after) for arrival in self._arrivals(unit)]

    def _inverts(self, unit: int, port: int) -> bool:
        """Whether a unit divides a constant by what arrives at a port."""
        node = self._graph.units[unit].node
        if node.op_type == "Reciprocal":
            return True
        dividend = node.inputs[0] if node.op_type == "Div" and port == 1 else None
        return dividend is not None and dividend in self._stored

    def fill(self, unit: int) -> None:
        node = self._graph.units[unit].node
        value = node.outputs[0]
        fit = halves.fit(fill_of(node), self._half)
        self.constant(value, fit, 1, list(self._arrivals(unit)))
        if unit not in self.findings and self.fits[value].overflowing and value not in self.masks:
            self.findings[unit] = Finding(_too_large(value, self.fits[value], self._half))

    def _overflow(self, value: ir.Value, fit: Fit, readers: list[Arrival]) -> None:
        readers = [arrival for arrival in readers if not self._bounds(arrival, fit)]
        way = self._way_to_softmax(fit, readers)
        if way and value not in self._leaving:
            self.masks[value] = way
            return
        finding = Finding(_too_large(value, fit, self._half))
        for unit in self._flood(readers, _CARRY_HUGE):
            self.findings.setdefault(unit, finding)

    def _bounds(self, arrival: Arrival, fit: Fit) -> bool:
        """Whether a value bounds others so far out that infinity does it as well, as in Max(x, -3.4e38)."""
        unit, port = arrival
        operator = self._graph.units[unit].node.op_type
        below = operator == "Max" or (operator == "Clip" and port == 1)
        above = operator == "Min" or (operator == "Clip" and port == 2)
        largest = self._half.largest
        return (below and fit.high < -largest) or (above and fit.low > largest)

    def _way_to_softmax(self, fit: Fit, readers: list[Arrival]) -> tuple[int, ...]:
        """The units on the way of a mask, or none when the value also goes elsewhere.

        A fill must arrive at the softmax negative; a product with 0 and 1, or 0 and -1, sees to that.
        """
        largest = self._half.largest
        if fit.low < -largest and fit.high > largest:
            return ()
        start = -1 if fit.low < -largest else 1
        seen: dict[tuple[int, int], None] = {}
        todo = [(arrival, start) for arrival in readers]
        masking = False
        while todo:
            (unit, port), sign = todo.pop()
            if (unit, sign) in seen:
                continue
            seen[unit, sign] = None
            operator = acts_as(self._graph.units[unit].node)
            if operator in _SOFTMAX or operator in _ATTENTION:
                masking = True
                if sign > 0:
                    return ()
            elif operator in _CARRY_MASK and not self._leaves(unit) and (operator, port) != ("Div", 1):
                after = _sign_after(operator, port, sign)
                todo += [(arrival, after) for arrival in self._arrivals(unit)]
            elif operator not in _COMPARE:
                return ()
        return tuple(dict.fromkeys(unit for unit, _ in seen)) if masking else ()

    def _epsilon(self, value: ir.Value, fit: Fit, readers: list[Arrival]) -> None:
        """Every unit between a value that becomes zero and a division by it stays float32."""
        tiny = fit.low * fit.high > 0 and max(-fit.low, fit.high) < self._half.smallest
        what = f"{fit.high:.3g}" if tiny else "a number"
        finding = Finding(f"{what} in {_named(value)} becomes 0 in {self._half.name}, and is divided by")
        parents: dict[int, int | None] = {}
        todo: list[tuple[Arrival, int | None]] = [(arrival, None) for arrival in readers]
        while todo:
            (unit, port), parent = todo.pop()
            operator = acts_as(self._graph.units[unit].node)
            if _DIVIDE.get(operator) == port:
                parents.setdefault(unit, parent)
                self._mark_back(unit, parents, finding)
            elif tiny and unit not in parents and operator in _CARRY_EPSILON:
                parents[unit] = parent
                todo += [(arrival, unit) for arrival in self._arrivals(unit)]

    def _mark_back(self, unit: int, parents: Mapping[int, int | None], finding: Finding) -> None:
        step: int | None = unit
        while step is not None:
            self.findings.setdefault(step, finding)
            step = parents[step]

    def _flood(self, readers: list[Arrival], through: frozenset[str]) -> Iterator[int]:
        seen: set[int] = set()
        todo = [unit for unit, _ in readers]
        while todo:
            unit = todo.pop()
            if unit in seen:
                continue
            seen.add(unit)
            yield unit
            if acts_as(self._graph.units[unit].node) in through:
                todo += self._graph.consumers[unit]

    def _arrivals(self, unit: int) -> Iterator[Arrival]:
        for value in self._graph.units[unit].makes:
            for reader, site in self._graph.readers.get(value, ()):
                yield reader, site.port

    def _leaves(self, unit: int) -> bool:
        """Whether something that the unit makes is an output of the model."""
        return not self._leaving.isdisjoint(self._graph.units[unit].makes)


def _sign_after(operator: str, port: int, sign: int) -> int:
    """-1, +1, or 0 for "as the mask says"."""
    if operator == "Mul":
        return 0
    flips = operator == "Neg" or (operator == "Sub" and port == 1)
    return -sign if flips else sign


def _named(value: ir.Value) -> str:
    return f"'{value.name}'" if value.name else "a stored value"


def _too_large(value: ir.Value, fit: Fit, half: Half) -> str:
    worst = fit.low if -fit.low > fit.high else fit.high
    return f"{worst:.6g} in {_named(value)} is beyond {half.name}'s {half.largest:.6g}"
