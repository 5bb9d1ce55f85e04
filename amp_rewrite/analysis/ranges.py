"""Constants that half does not represent well, and the units that must stay float32 for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis import absorption, floors
from amp_rewrite.analysis.constant import Constant, Context, beyond, overflow
from amp_rewrite.analysis.masks import MaskUses
from amp_rewrite.analysis.propagation import UnitUse, uses_of
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor, dims, numbers
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.policy.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Ranges:
    """The fit of each constant into half (`fits`), and the units that must stay float32 (`findings`).

    A mask is a huge negative fill that reaches a softmax. `floors` are bounds of norms that half would make
    0, and may be its least number instead.
    """

    fits: dict[ir.Value, Fit]
    findings: dict[int, Evidence]
    masks: MaskUses
    floors: set[ir.Value] = field(default_factory=set[ir.Value])


def check(graph: UnitGraph, stored_tensors: Mapping[ir.Value, StoredTensor], half: Half) -> Ranges:
    """Return the fit of every constant with uses into `half`, and the units that must stay float32."""
    values = [value for value in stored_tensors if graph.uses.get(value)]
    tensors = [stored_tensors[value].tensor for value in values]
    fits = dict(zip(values, constants.fits(tensors, half), strict=True))
    context, found = Context(graph, dict(fits), half), list[Constant]()
    for value, tensor in zip(values, tensors, strict=True):
        uses = tuple(UnitUse(unit, site.port) for unit, site in graph.uses[value])
        found.append(Constant(value, fits[value], prod(dims(tensor)), uses))
    fills = {unit.node.outputs[0]: unit for unit in graph.units_of("ConstantOfShape")}
    for value, unit in fills.items():
        fits[value] = halves.fit(fill_of(unit.node), half)
        found.append(Constant(value, fits[value], 1, tuple(uses_of(graph, unit.index))))
    result = Ranges(fits, {}, MaskUses((each for each in found if each.fit.overflowing), context))
    followed = set[UnitUse]()
    for constant in found:
        _look_at(constant, context, result, followed)
        unit = fills.get(constant.value)
        if unit is not None and constant.fit.overflowing and constant.value not in result.masks.clamped:
            _keep({unit.index: beyond(constant, context)}, result)
    return result


def fill_of(node: ir.Node) -> NDArray[np.float32]:
    """Return the fill value of a ConstantOfShape node of float32."""
    attribute = node.attributes.get("value")
    return numbers(attribute.as_tensor()) if attribute is not None else np.zeros(1, np.float32)


def _look_at(constant: Constant, context: Context, result: Ranges, followed: set[UnitUse]) -> None:
    """Add the evidence from a constant; `followed` are uses that others need in float32."""
    if constant.value in result.masks.others:
        units = result.masks.new_units(constant.value, followed)
        _keep(dict.fromkeys(units, beyond(constant, context)), result)
    elif constant.fit.overflowing and constant.value not in result.masks.clamped:
        _keep(overflow(constant, context), result)
    if floors.is_floor_of_norm(constant, context):
        result.floors.add(constant.value)
        return
    for find in (absorption.find, floors.find):
        _keep(find(constant, context), result)


def _keep(findings: Mapping[int, Evidence], result: Ranges) -> None:
    for unit, finding in findings.items():
        result.findings.setdefault(unit, finding)
