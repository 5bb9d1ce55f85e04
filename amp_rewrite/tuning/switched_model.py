"""A float32 model with a switch for every place: one session emulates any choice of half units.

While a switch is on, the readers of its place read the value rounded to half, as in the emulation
(running.emulation).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.loading import Loaded
from amp_rewrite.model.traversal import every_node
from amp_rewrite.numerics.half import HALF_TYPES, Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.options import Options
from amp_rewrite.policy.targets import Accumulation
from amp_rewrite.rewriting.cast_insertion import cast
from amp_rewrite.running import half_accumulation
from amp_rewrite.tuning.sites import Place
from amp_rewrite.tuning.switches import Switches


@dataclass(frozen=True, slots=True)
class SwitchedModel:
    """The model, the name of its additional input, and how many switches that has."""

    loaded: Loaded
    switches: str
    count: int


def switched(analysis: Analysis, places: Sequence[Place]) -> SwitchedModel:
    """The model of an analysis, edited in place, with a switch for each of its places, in their order."""
    analysis.state.is_edited = True
    clamped = {change.stored.value for change in analysis.plan.tensors if change.saturates}
    switches = Switches(analysis.graph.root, len(places))
    of_value = itertools.groupby(enumerate(places), lambda found: found[1].value)
    for value, found in of_value:
        uses = _by_reader(analysis, switches, value)
        rounded = _rounded(switches, value, analysis.options, clamped)
        for at, place in found:
            switches.choose(at, (use for reader in place.readers for use in uses[reader]), rounded, value)
    return SwitchedModel(analysis.loaded, switches.name, len(places))


def _by_reader(analysis: Analysis, switches: Switches, value: ir.Value) -> dict[int | None, list[Use]]:
    """The uses of a value by the units that read it, and with None those by what belongs to none."""
    units = {use: unit for unit, use in analysis.graph.uses.get(value, ())}
    uses: defaultdict[int | None, list[Use]] = defaultdict(list)
    for use in switches.uses(value):
        uses[units.get(use)].append(use)
    return uses


def _rounded(
    switches: Switches, value: ir.Value, options: Options, clamped: Collection[ir.Value]
) -> ir.Value:
    """The value, cast to half and back; stored ones that the plan clamps are clamped before.

    Where the target adds up in half, it is what that comes to.
    """
    half = options.half
    nodes = _clamp(switches, value, half) if value in clamped else []
    exact = value
    if options.target.accumulate is Accumulation.HALF:
        value = half_accumulation.summed(value, half.dtype, switches.opset, switches.names)
    for dtype in (half.dtype, ir.DataType.FLOAT):
        made = cast(nodes[-1].outputs[0] if nodes else value, dtype, switches.names.of_node("Cast"))
        made.outputs[0].name = switches.names.of_value(exact, "rounded")
        nodes.append(made)
    switches.placer.behind(nodes, value)
    return nodes[-1].outputs[0]


def _clamp(switches: Switches, value: ir.Value, half: Half) -> list[ir.Node]:
    nodes: list[ir.Node] = []
    for operator, bound in (("Max", -half.largest), ("Min", half.largest)):
        limit = switches.stored(np.array(bound, np.float32), value)
        nodes.append(switches.node(operator, (nodes[-1].outputs[0] if nodes else value, limit), value))
    return nodes


def switched_emulation(loaded: Loaded) -> tuple[SwitchedModel, list[ir.Value]]:
    """An emulation (running.emulation), edited in place, with a switch for each value that a Cast to half and
    one back round; and these values, in the order of their switches.
    """
    places = list(_places(loaded.model))
    switches = Switches(loaded.model.graph, len(places))
    for at, (exact, rounded) in enumerate(places):
        switches.choose(at, switches.uses(rounded), rounded, exact)
    return SwitchedModel(loaded, switches.name, len(places)), [exact for exact, _ in places]


def _places(model: ir.Model) -> Iterator[tuple[ir.Value, ir.Value]]:
    """What is rounded, and what it is then."""
    types = element_types.infer(model)
    for node in every_node(model.graph):
        half = _cast_from(node)
        exact = _cast_from(half.producer()) if half is not None else None
        if exact is None or half is None or types[half].dtype not in HALF_TYPES:
            continue
        before = types.get(exact)  # None behind an operator of no known schema
        if before is not None and before.dtype == types[node.outputs[0]].dtype == ir.DataType.FLOAT:
            yield exact, node.outputs[0]


def _cast_from(node: ir.Node | None) -> ir.Value | None:
    return node.inputs[0] if node is not None and node.op_type == "Cast" and not node.domain else None
