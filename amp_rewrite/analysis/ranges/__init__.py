"""Stored values that half does not represent well, and the effects: a module for each rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.propagation import UnitUse, uses_of
from amp_rewrite.analysis.ranges import (
    absorption,
    epsilons,
    faint_factor,
    inexact_factor,
    masks,
    overflow,
    reciprocal_overflow,
    rests,
)
from amp_rewrite.analysis.ranges.constant import Constant, Context, magnitude
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants, patterns
from amp_rewrite.model.constants import StoredTensor, dims, numbers
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.policy.evidence import Evidence

_RULES = (
    absorption.find,
    epsilons.find,
    rests.find,
    inexact_factor.find,
    faint_factor.find,
    reciprocal_overflow.find,
)
"""The rules besides overflow, by precedence: the first that finds something for a unit counts."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """How each stored value fits into half (`fits`), and the units that must stay float32 (`findings`).

    A mask is a huge negative fill that reaches a softmax: `masks` maps its value to the units on that path.
    """

    fits: Mapping[ir.Value, Fit]
    findings: Mapping[int, Evidence]
    masks: Mapping[ir.Value, tuple[int, ...]]


def check(graph: UnitGraph, stored: Mapping[ir.Value, StoredTensor], half: Half) -> Ranges:
    """How every stored value with uses fits into `half`, and the units that must stay float32."""
    read = [value for value in stored if graph.uses.get(value)]
    tensors = [stored[value].tensor for value in read]
    fits = dict(zip(read, constants.fits(tensors, half), strict=True))
    found = _Found(_context(graph, fits, half), fits)
    for value, tensor in zip(read, tensors, strict=True):
        uses = (UnitUse(unit, site.port) for unit, site in graph.uses[value])
        found.constant(Constant(value, fits[value], prod(dims(tensor)), tuple(uses)))
    for unit in graph.by_operator.get("ConstantOfShape", ()):
        if graph.units[unit].node.domain == "":
            found.fill(unit)
    return Ranges(found.fits, found.findings, found.masks)


def fill_of(node: ir.Node) -> NDArray[np.float32]:
    """The fill value of a ConstantOfShape node of float32."""
    attribute = node.attributes.get("value")
    return numbers(attribute.as_tensor()) if attribute is not None else np.zeros(1, np.float32)


def _context(graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> Context:
    dividends = {value: magnitude(fits[value]) for value in _dividends(graph, fits)}
    largest = max(1.0, *dividends.values()) if dividends else 1.0
    exponents = (patterns.scalar(graph.units[u].node.inputs[1]) for u in graph.by_operator.get("Pow", ()))
    highest = max((-each for each in exponents if each is not None), default=0.0)
    powers = max(_SQUARES, highest)
    ending = absorption.at_end(graph, fits)
    return Context(graph, half, fits, frozenset(graph.root.outputs), ending, dividends, largest, powers)


_SQUARES = 8.0
"""The power that squares of squares make."""


def _dividends(graph: UnitGraph, stored: Mapping[ir.Value, Fit]) -> Iterator[ir.Value]:
    for value in stored:
        divided = (unit for unit, site in graph.uses[value] if site.port == 0)
        if any(graph.units[unit].node.op_type == "Div" for unit in divided):
            yield value


class _Found:
    def __init__(self, context: Context, fits: Mapping[ir.Value, Fit]) -> None:
        self._context = context
        self.fits = dict(fits)
        self.findings: dict[int, Evidence] = {}
        self.masks: dict[ir.Value, tuple[int, ...]] = {}

    def constant(self, constant: Constant) -> None:
        if constant.fit.overflowing:
            self._overflow(constant)
        for find in _RULES:
            self._keep(find(constant, self._context))

    def fill(self, unit: int) -> None:
        node = self._context.node(unit)
        value, fit = node.outputs[0], halves.fit(fill_of(node), self._context.half)
        constant = Constant(value, fit, 1, tuple(uses_of(self._context.graph, unit)))
        self.fits[value] = fit
        self.constant(constant)
        if fit.overflowing and value not in self.masks:
            self._keep({unit: overflow.evidence(constant, self._context)})

    def _overflow(self, constant: Constant) -> None:
        mask = masks.find(constant, self._context)
        if mask.may_be_clamped:
            self.masks[constant.value] = mask.units
        elif mask.units:
            self._keep(dict.fromkeys(mask.units, overflow.evidence(constant, self._context)))
        else:
            self._keep(overflow.find(constant, self._context))

    def _keep(self, findings: Mapping[int, Evidence]) -> None:
        for unit, finding in findings.items():
            self.findings.setdefault(unit, finding)
