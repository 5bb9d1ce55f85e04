"""The rule `prune`: half units whose Casts cost more than they save become FULL. It makes nothing half.

| not pruned                                | why                                                         |
|-------------------------------------------|-------------------------------------------------------------|
| what a pin or an override decided         | the user knows better                                       |
| anything at the level `unsafe-force-all`  | it was asked for everything                                 |
| anything, where nothing would be left     | who asks for half gets half; the prediction says that it    |
|                                           | does not pay, and the gate is for who wants it that way     |

Sizes count as large (`ModelCosts.large`). Keeping more in float32 leaves half no unit that would be pruned
without (costs.unpaid_parts), but for one case: where it takes the last part that pays, nothing is pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.costs import islands, unpaid_parts
from amp_rewrite.costs.borders import Border
from amp_rewrite.costs.model_costs import ModelCosts
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.operator_lists import Entry, Kind

_BY_USER = (Authority.PIN, Authority.OVERRIDE)


def prune(graph: UnitGraph, costs: ModelCosts, painting: Painting, found: Sequence[Border]) -> Painting:
    """The painting with what does not pay in float32; `found` are all borders of the model.

    Linear in units and edges.
    """
    halves = [paint.colour is Colour.HALF for paint in painting.paints]
    kept = [unit for unit, entry in enumerate(painting.entries) if entry.authority in _BY_USER]
    unpaid = unpaid_parts.find(graph, costs, found, halves, kept)
    left = [is_half and unit not in unpaid for unit, is_half in enumerate(halves)]
    if not unpaid or not _has_allowed(painting.entries, left):
        return painting
    paints = list(painting.paints)
    for unit, island in islands.find(graph, costs, found, left, unpaid).items():
        paints[unit] = Paint(Colour.FULL, Rule.PRUNE, island=island)
    _settle_casts(graph, paints)
    return replace(painting, paints=tuple(paints))


def _has_allowed(entries: Sequence[Entry], halves: Sequence[bool]) -> bool:
    """Whether something that is half was allowed on its own account."""
    pairs = zip(entries, halves, strict=True)
    return any(is_half and entry.kind is Kind.ALLOW for entry, is_half in pairs)


def _settle_casts(graph: UnitGraph, paints: list[Paint]) -> None:
    """Casts that went with what is FULL now: those that read it, then those that it reads."""
    casts = [unit for unit in graph.by_operator.get("Cast", ()) if paints[unit].rule is Rule.SETTLE]
    for reads, order in ((True, casts), (False, casts[::-1])):
        for unit in order:
            if bool(graph.units[unit].uses) is reads:
                beside = graph.predecessors[unit] if reads else graph.successors[unit]
                if any(paints[other].colour is Colour.FULL for other in beside):
                    paints[unit] = Paint(Colour.FULL, Rule.LEFT)
