"""A float32 model with a switch for every site: one session emulates any choice of half units.

While a switch is on, all that reads the value of its site reads it rounded to half, as in the emulation
(running.emulation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.loading import Loaded
from amp_rewrite.model.traversal import graphs
from amp_rewrite.numerics.half import HALF_TYPES, Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.accumulation import Accumulation
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting.cast_insertion import cast
from amp_rewrite.running import half_accumulation
from amp_rewrite.tuning.sites import Site
from amp_rewrite.tuning.switches import Switches


@dataclass(frozen=True, slots=True)
class SwitchedModel:
    """The model, the name of its additional input, and how many switches that has."""

    loaded: Loaded
    switches: str
    count: int


def switched(analysis: Analysis, sites: Sequence[Site]) -> SwitchedModel:
    """The model of an analysis, edited in place, with a switch for each of its sites, in their order."""
    analysis.state.is_edited = True
    clamped = {change.stored.value for change in analysis.plan.tensors if change.saturates}
    switches = Switches(analysis.graph.root, len(sites))
    for at, site in enumerate(sites):
        uses = switches.uses(site.value)
        rounded = _rounded(switches, site.value, analysis.options, clamped)
        switches.choose(at, uses, rounded, site.value)
    return SwitchedModel(analysis.loaded, switches.name, len(sites))


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
    for graph in graphs(model.graph):
        for node in graph:
            half = _cast_from(node)
            exact = _cast_from(half.producer()) if half is not None else None
            if exact is None or half is None or types[half].dtype not in HALF_TYPES:
                continue
            before = types.get(exact)  # None behind an operator of no known schema
            if before is not None and before.dtype == types[node.outputs[0]].dtype == ir.DataType.FLOAT:
                yield exact, node.outputs[0]


def _cast_from(node: ir.Node | None) -> ir.Value | None:
    return node.inputs[0] if node is not None and node.op_type == "Cast" and not node.domain else None
