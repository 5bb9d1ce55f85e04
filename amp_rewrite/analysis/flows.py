"""Values that are sensitive to absolute error, however large they are: half has steps of 1/16 at 100.

    angles      Sin(points @ frequencies)                        from inputs of the model
    spectra     Log(Clip(re * re + im * im, 1e-10))              from inputs, which may be small
    integers    Cast(positions) * frequencies                    from integers, or up to integers
    pixels      GridSample(x, grid + flow)                       up to pixel coordinates

Each flow has sources, ends, or both, and operators that propagate a value from one to the other. A flow ends
at a layer: a product of many terms, a Conv. One pass finds from what each unit computes, and by what.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis import long_sums
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import Unit, UnitGraph, read_by
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import numbers, stored_as
from amp_rewrite.model.dataflow import Forward, varying_values
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.model.traversal import nodes_inner_first
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.record import Move, Role, Trait
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_CARRY = catalogue.moving(*Move) | catalogue.having(Trait.ARITHMETIC)
"""Operators that propagate coordinates and integers."""
_LAYERS = catalogue.having(Trait.MULTIPLIES)
_PRODUCTS = _LAYERS | catalogue.having(Trait.TRANSFORMS)
_SUMS = catalogue.having(Trait.AVERAGES | Trait.SQUARES)
_OF_INPUTS = (_CARRY | _PRODUCTS | _SUMS) - catalogue.CONTROL_FLOW
_BOUNDED = catalogue.BOUNDED | {"Sign"}
_KEEP_FLOOR = catalogue.REARRANGES | catalogue.SELECTS | {"Min"}
_PIXELS = (Role.COORDINATES, Role.SCALE)
_POINT = 4
"""Contracted size of a product of a point in homogeneous coordinates; angles of a point have fewer terms."""
_FLOOR = 2.0**-10
"""Least addend or lower bound of a power that masks the rounding error of half."""
_EXACT = (ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)
"""Input types that half represents exactly, and float32, whose Casts lead to other types."""
_SIZES = {ir.DataType.BOOL: 1.0, ir.DataType.UINT8: 255.0, ir.DataType.INT8: 128.0}
_COUNTED = 2**24
"""Limit up to which float32 is exact for integers; beyond it every float32 is an integer."""
_LARGEST: Mapping[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(catalogue.REARRANGES | catalogue.SELECTS | {"Abs", "Div", "Neg"}, itemgetter(0)),
    **dict.fromkeys(("Concat", "Max", "Min", "Pad", "Range", "Shape", "Where"), max),
    **dict.fromkeys(("Add", "Sub"), sum),
    "Mod": itemgetter(1),
    "Mul": math.prod,
}
"""The largest magnitude of an operator's result, from those of its inputs."""

_INPUTS, _INTEGERS, _NOT_INPUTS, _NOT_INTEGERS, _PRODUCT, _SQUARE, _LAYER, _FLOORED = (
    1 << bit for bit in range(8)
)
"""Traits of a value, as bits: it is computed from inputs, from large integers, from anything else than these
and constants; by a product, a square, a layer; and from below it is bounded by _FLOOR.
"""
_FROM_INPUTS = _INPUTS | _NOT_INPUTS
_POWER = _PRODUCT | _SQUARE
_OTHERS = _NOT_INPUTS | _NOT_INTEGERS


def check(graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> Mapping[int, Evidence]:
    """Return the units on such flows; of several reasons the first counts."""
    flows = _Flows(graph, fits, half.integers)
    evidence = functools.partial(Evidence, Authority.RANGE, limit=half.integers, half=half.name)
    return {
        **dict.fromkeys(flows.of_spectra(), evidence(Reason.SPECTRUM)),
        **dict.fromkeys(flows.to_angles(), evidence(Reason.TO_ANGLE)),
        **dict.fromkeys((*flows.to_integers(), *flows.of_integers()), evidence(Reason.INTEGER)),
    }


class _Flows:
    """The flows of a model."""

    def __init__(self, graph: UnitGraph, fits: Mapping[ir.Value, Fit], limit: int) -> None:
        self._graph, self._fits, self._limit = graph, fits, limit
        self._before = graph.predecessors.__getitem__
        self._turns = [unit.index for unit in self._of("Cos", "Sin")]
        self._operators = [effective_op(unit.node) for unit in graph.units]
        inputs = [value for value in graph.root.inputs if not value.is_initializer()]
        readers = (node for value in inputs if value.dtype not in _EXACT for node, _ in value.uses())
        self._inputs = {*inputs, *(node.outputs[0] for node in readers if node.op_type == "Cast")}

    def to_integers(self) -> Iterable[int]:
        """Return the units whose result becomes an integer or a pixel coordinate through arithmetic alone."""
        casts = ((unit.index, unit.node.outputs[0]) for unit in self._of("Cast"))
        ends = [unit for unit, value in casts if self._graph.dtype(value).is_integer()]
        for unit in self._of(*sorted(catalogue.names(lambda each: each.ports(*_PIXELS), None))):
            read = (unit.node.inputs[port : port + 1] for port in record_of(unit.node).ports(*_PIXELS))
            makers = {*self._graph.producers(value for values in read for value in values if value)}
            ends += [maker for maker in makers if self._operators[maker] in _CARRY]
        return self._back(ends, _CARRY)

    def of_integers(self) -> Iterator[int]:
        """Yield the units that compute from large integers and constants alone, up to a bounded result;
        products only on the way to an angle, where they are no layers.
        """
        for unit in self._graph.units if self._counting else ():
            is_layer = unit.index not in self._before_angles and unit.node.op_type in _LAYERS
            is_counted = self._read(unit, self._traits) & (_INTEGERS | _NOT_INTEGERS) == _INTEGERS
            if unit.index in self._counting or (is_counted and not is_layer):
                yield unit.index

    def to_angles(self) -> Iterable[int]:
        """Return the units that compute an angle from inputs; a Sin of an input itself follows its list."""
        ends = set(self._turns)
        way = reach(ends, self._before, lambda unit: self._traits[unit] & (_FROM_INPUTS | _LAYER) == _INPUTS)
        return (*way, *(unit for each in way for unit in self._graph.successors[each] if unit in ends))

    def of_spectra(self) -> Iterable[int]:
        """Return the units that compute the logarithm of a power of inputs, without an addend or lower bound
        before it that masks small numbers.
        """
        logs = [unit for unit in self._of("Log") if unit.index not in self._graph.spelled]
        read = {unit.index: self._read(unit, self._traits) for unit in logs}
        ends = [unit for unit in read if read[unit] & (_FROM_INPUTS | _POWER | _FLOORED) == _INPUTS | _POWER]
        return (*ends, *reach(ends, self._before, lambda unit: self._traits[unit] & _FROM_INPUTS == _INPUTS))

    def _of(self, *names: str) -> list[Unit]:
        graph = self._graph
        return [graph.units[unit] for name in names for unit in graph.by_operator.get(name, ())]

    def _back(self, ends: Collection[int], names: Collection[str]) -> Collection[int]:
        """Return these units, and those that propagate values to them by these operators."""
        return {*ends, *reach(ends, self._before, lambda unit: self._operators[unit] in names)}

    @functools.cached_property
    def _before_angles(self) -> Collection[int]:
        """The units whose result reaches a Sin or Cos through products and arithmetic."""
        return self._back(self._turns, _CARRY | _LAYERS)

    @functools.cached_property
    def _counting(self) -> Collection[int]:
        """The units that read integers that half may not represent."""
        graph, largest = self._graph, _magnitudes(self._graph).of
        casts = {unit.index: graph.dtype(unit.node.inputs[0]) for unit in self._of("Cast")}
        floats = {unit for unit, dtype in casts.items() if dtype.is_floating_point()}
        readers = (unit for unit in self._of("Cast", "Range") if unit.index not in floats)
        found = {unit.index for unit in readers if max(map(largest, unit.node.inputs)) > self._limit}
        for value, fit in self._fits.items():
            is_counted = fit.whole and self._limit < fit.high <= _COUNTED
            if is_counted and not fit.exact and not fit.overflowing:
                found.update(consumer for consumer, _ in self._graph.uses.get(value, ()))
        return found

    @functools.cached_property
    def _traits(self) -> Mapping[int, int]:
        """The traits of what each unit makes; control flow follows its bodies."""
        varying, traits = varying_values(self._graph.nodes, by_sizes=False), dict[int, int]()
        order = {node: at for at, node in enumerate(nodes_inner_first(self._graph.root))}
        for unit in sorted(self._graph.units, key=lambda unit: order[unit.node]):
            read = self._read(unit, traits)
            others = {*unit.node.inputs}.difference(read_by(self._graph, unit.index))
            is_constant = not read and varying.isdisjoint(others)
            traits[unit.index] = self._after(unit, read if read or is_constant else _OTHERS)
        return traits

    def _read(self, unit: Unit, traits: Mapping[int, int]) -> int:
        """Return the traits of all that a unit reads."""
        read = 0
        for value in read_by(self._graph, unit.index):
            found = 0 if value in self._fits else traits.get(self._graph.producer.get(value, -1), _OTHERS)
            read |= found & ~_NOT_INPUTS | _INPUTS if value in self._inputs else found
        return read

    def _after(self, unit: Unit, traits: int) -> int:
        """Return the traits of a unit's result from those of what it reads."""
        node, name = unit.node, self._operators[unit.index]
        if unit.index in self._counting:
            traits = (traits | _INTEGERS) & ~_NOT_INTEGERS
        elif name in _BOUNDED or (name in _LAYERS and unit.index not in self._before_angles):
            traits |= _NOT_INTEGERS
        if name not in _OF_INPUTS:
            return traits | _NOT_INPUTS
        terms = long_sums.terms(node) if name in _PRODUCTS else 0
        if name in _PRODUCTS:
            traits |= _PRODUCT
        if name in _SUMS or terms is None or terms >= _POINT:
            traits |= _LAYER
        if record_of(node).traits & Trait.SQUARES or patterns.square_of(node) is not None:
            traits |= _SQUARE
        if name in ("Add", "Clip", "Max"):  # the third input of a Clip bounds from above
            fits = (self._fits.get(value) for value in patterns.operands(node)[:2])
            is_high = any(fit is not None and fit.low >= _FLOOR for fit in fits)
            return traits | (_FLOORED if is_high else 0)
        return traits if name in _KEEP_FLOOR else traits & ~_FLOORED


def _magnitudes(graph: UnitGraph) -> Forward[float]:
    """Return the largest magnitudes, by types, stored values and static sizes."""

    def unknown(value: ir.Value | None) -> float:
        tensor = stored_as(value)
        is_read = tensor is not None and (tensor.dtype.is_integer() or patterns.scalar(value) is not None)
        if tensor is not None and is_read:
            return float(np.abs(numbers(tensor)).max(initial=0))
        return _SIZES.get(graph.dtype(value), math.inf)

    def transfer(node: ir.Node) -> list[float]:
        rule, read, dtype = _LARGEST.get(node.op_type), patterns.operands(node), graph.dtype(node.outputs[0])
        if rule is None or node.domain or dtype in _SIZES:
            return []
        sizes = read[0].shape or (math.inf,) if node.op_type == "Shape" else map(magnitudes.of, read)
        return [rule([size if isinstance(size, int | float) else math.inf for size in sizes])]

    magnitudes = Forward(unknown, max, transfer)
    if graph.by_operator.keys() & {"Cast", "Range"}:
        magnitudes.visit(graph.root)
    return magnitudes
