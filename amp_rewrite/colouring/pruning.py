"""The rule `prune`, and the gate: half units that cost more than they save become FULL.

| not pruned                               | why                                            |
|------------------------------------------|------------------------------------------------|
| units decided by a pin or an override    | the user knows better                          |
| arithmetic, in a search that maximises   | it was requested at any price                  |
| any unit at level `unsafe-force-all`     | all of them were requested                     |
| any unit, where nothing would be left    | the user requested half; the report says that  |
|                                          | it does not pay, and the gate is the option to |
|                                          | undo it                                        |

Sizes count as large (ModelCosts.large), and as larger still where nothing would be left. Keeping more in
float32 never saves a unit from pruning (costs.unpaid_parts), unless it removes the last part that pays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.costs import unpaid_parts
from amp_rewrite.costs.model_costs import Prediction, Prices
from amp_rewrite.costs.unpaid_parts import Island
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Entry, Kind

_BY_USER = (Authority.PIN, Authority.OVERRIDE)


def prune(prices: Prices, painting: Painting, unpruned: Collection[int] = ()) -> Painting:
    """Paint FULL the units that do not pay, except those in `unpruned`; linear in units and edges."""
    cut = find(prices, painting, unpruned)
    if cut is None or not cut.unpaid:
        return painting
    remaining = [is_half and unit not in cut.unpaid for unit, is_half in enumerate(_halves(painting))]
    costs = prices.costs.at(cut.larger)
    return _without(
        prices,
        painting,
        unpaid_parts.find_islands(prices.graph, costs, prices.borders, remaining, cut.unpaid),
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """The half units that do not pay with sizes multiplied by `larger`."""

    larger: int
    unpaid: frozenset[int]


def find(prices: Prices, painting: Painting, unpruned: Collection[int] = ()) -> Cut | None:
    """Return the units that do not pay, at the first size at which any unit pays; None if none ever does."""
    halves = _halves(painting)
    exempt = [
        unit for unit, entry in enumerate(painting.entries) if entry.authority in _BY_USER or unit in unpruned
    ]
    running = [is_half and prices.is_run(unit) for unit, is_half in enumerate(halves)]
    has_half = any(kind.dtype == prices.costs.half.dtype for kind in prices.graph.types.values())
    for larger in _LARGER:
        unpaid = unpaid_parts.find_unpaid_parts(
            prices.graph, prices.costs.at(larger), prices.borders, halves, exempt
        )
        remaining = [unit not in unpaid and is_half for unit, is_half in enumerate(running)]
        if not unpaid or has_half or _has_allowed(painting.entries, remaining):
            return Cut(larger, unpaid)
    return None


def _halves(painting: Painting) -> list[bool]:
    return [paint.colour is Colour.HALF for paint in painting.paints]


_LARGER = (1, 8, 64)
"""The factors of sizes, tried in turn until something pays."""


def _without(prices: Prices, painting: Painting, islands: Mapping[int, Island]) -> Painting:
    paints, entries = list(painting.paints), list(painting.entries)
    for unit, island in islands.items():
        paints[unit] = Paint(Colour.FULL, Rule.PRUNE)
        entries[unit] = replace(entries[unit], evidence=_evidence(island, prices.costs.device.name))
    _settle_casts(prices.graph, paints)
    _settle_causes(prices.graph, paints)
    return Painting(tuple(paints), tuple(entries))


def _evidence(island: Island, device: str) -> Evidence:
    return Evidence(
        Authority.PREDICTION,
        Reason.ISLAND,
        subject=device,
        number=island.times,
        nodes=island.nodes,
        casts=island.casts,
    )


def gate(painting: Painting, predicted: Prediction) -> Painting:
    """Return the painting with every unit FULL, as the model is predicted to be no faster."""
    evidence = Evidence(
        Authority.PREDICTION,
        Reason.GATED,
        subject=predicted.device,
        number=predicted.speedup,
        half=predicted.half,
    )
    pairs = tuple(zip(painting.paints, painting.entries, strict=True))
    gated = Paint(Colour.FULL, Rule.GATE)
    paints = (gated if paint.colour is Colour.HALF else paint for paint, _ in pairs)
    entries = (
        replace(entry, evidence=evidence) if paint.colour is Colour.HALF else entry for paint, entry in pairs
    )
    return Painting(tuple(paints), tuple(entries))


def _has_allowed(entries: Sequence[Entry], halves: Sequence[bool]) -> bool:
    """Whether any half unit is ALLOW by its own kind."""
    pairs = zip(entries, halves, strict=True)
    return any(is_half and entry.kind is Kind.ALLOW for entry, is_half in pairs)


def _settle_casts(graph: UnitGraph, paints: list[Paint]) -> None:
    """Paint FULL the Casts next to pruned units: consumers of these, then producers."""
    casts = [unit for unit in graph.by_operator.get("Cast", ()) if paints[unit].rule is Rule.SETTLE]
    for reads, order in ((True, casts), (False, casts[::-1])):
        for unit in order:
            if bool(graph.units[unit].uses) is reads:
                beside = graph.predecessors[unit] if reads else graph.successors[unit]
                if any(paints[other].colour is Colour.FULL for other in beside):
                    paints[unit] = Paint(Colour.FULL, Rule.LEFT)


def _settle_causes(graph: UnitGraph, paints: list[Paint]) -> None:
    """Replace pruned causes of HALF units by a HALF neighbour, on the side on which their rule walks; without
    one, by the first HALF unit in the chain of causes.
    """
    halves = [unit for unit, paint in enumerate(paints) if paint.colour is Colour.HALF]
    pruned_units = {
        unit for unit in halves if (cause := paints[unit].cause) is not None and not _is_half(paints, cause)
    }

    def next_to(unit: int) -> Iterator[int]:
        yield from (
            u for u in graph.successors[unit] if u in pruned_units and paints[u].rule in _FROM_PRODUCERS
        )
        yield from (
            u for u in graph.predecessors[unit] if u in pruned_units and paints[u].rule in _FROM_CONSUMERS
        )

    causes = reach([unit for unit in halves if unit not in pruned_units], next_to, pruned_units.__contains__)
    for unit in pruned_units:
        cause = causes[unit] if unit in causes else _first_half(paints, unit)
        paints[unit] = replace(paints[unit], cause=cause)


_FROM_PRODUCERS = (Rule.FOLLOW, Rule.SPREAD)
_FROM_CONSUMERS = (Rule.BETWEEN, Rule.LEAD, Rule.SPREAD)


def _first_half(paints: Sequence[Paint], unit: int) -> int | None:
    cause = paints[unit].cause
    while cause is not None and not _is_half(paints, cause):
        cause = paints[cause].cause
    return cause


def _is_half(paints: Sequence[Paint], unit: int) -> bool:
    return paints[unit].colour is Colour.HALF
