"""Refinement of a painting by predicted times: the rule `prune`, the prediction, and the gate on request.

`prune` makes half units that cost more than they save FULL, except those that a pin or an override decides,
arithmetic in a search that maximises it, and any at level `unsafe-force-all`. Sizes count as large
(ModelCosts.large), and as larger still where nothing would be left; where nothing is then either, nothing is
pruned: the report says that it does not pay, and the gate undoes it. Keeping more in float32 never saves a
unit from pruning (costs.unpaid_parts), unless it removes the last part that pays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from amp_rewrite.analysis import runtimes
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring import classification, rules
from amp_rewrite.colouring.classification import Findings
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.costs import model_costs, unpaid_parts
from amp_rewrite.costs.model_costs import Prediction, Prices
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Options


@dataclass(frozen=True, slots=True)
class Priced:
    """A painting with its prediction and the underlying prices; both None where nothing is half.

    `gated` is True where the prediction made everything FULL, also in a saved plan.
    """

    painting: Painting
    prices: Prices | None = None
    prediction: Prediction | None = None
    gated: bool = False


MOST_GUESSED = 50_000
"""The most units of a model with guessed sizes for unknown shapes; in larger models, whose shapes are not
inferred either (preparing.value_shapes), it would take a fifth of a rewrite, with little accuracy.
"""


def settle(
    graph: UnitGraph, painting: Painting, options: Options, unpruned: Collection[int] = (), *, decided: bool
) -> Priced:
    """Prune a painting, except the units in `unpruned`, and predict it; a `decided` one stays unchanged.

    There is no prediction for a very large model with mostly unknown shapes, unless the gate is requested.
    """
    has_gate = any(paint.rule is Rule.GATE for paint in painting.paints)
    priced = Priced(painting, gated=has_gate and not any(painting.halves))  # a plan may be edited
    if _is_guesswork(graph, options):
        return priced
    if not decided:
        priced = pruned(graph, painting, options, unpruned=unpruned)
    if not any(priced.painting.halves):
        return priced
    prices = priced.prices or model_costs.measure_prices(graph, options)
    predicted = prices.predict(priced.painting.halves)
    priced = replace(priced, prices=prices, prediction=predicted)
    if decided or not options.gate or not predicted.is_slower:
        return priced
    return replace(priced, painting=gate(priced.painting, predicted), gated=True)


def pruned(
    graph: UnitGraph,
    painting: Painting,
    options: Options,
    prices: Prices | None = None,
    unpruned: Collection[int] = (),
) -> Priced:
    """Prune a painting if the options request it, except the units in `unpruned`.

    `prices` are those for these options, measured if None. Linear in units and edges.
    """
    if not options.prunes or not any(painting.halves) or _is_guesswork(graph, options):
        return Priced(_settle_sequences(graph, painting, options))
    prices = prices or model_costs.measure_prices(graph, options)
    larger, unpaid = find(prices, painting, unpruned)
    if unpaid:
        costs = prices.costs.at(larger)
        islands = unpaid_parts.find_islands(graph, costs, prices.borders, painting.halves, unpaid)
        painting = _settle(graph, _full(painting, islands, Rule.PRUNE), painting)
    return Priced(_settle_sequences(graph, painting, options), prices)


def beside_pins(
    graph: UnitGraph,
    findings: Findings,
    proven: Findings,
    painting: Painting,
    options: Options,
    prices: Prices | None = None,
) -> tuple[Painting, Collection[int]]:
    """Return a painting in which pins keep only their own units in float32, and the units that are half
    without them, which are not pruned: islands are priced without pins.
    """
    if not options.pins.keep_full or options.only_lists:
        return painting, ()
    unpinned = replace(options, pins=replace(options.pins, keep_full=()))
    entries = classification.classify(graph, findings, unpinned, proven)
    whole = rules.paint(graph, entries, follow=options.follows, level=options.level)
    halves = pruned(graph, whole, unpinned, prices).painting.halves
    paid = [unit for unit, is_half in enumerate(halves) if is_half]
    return rules.paint(graph, painting.entries, paid, follow=options.follows, level=options.level), paid


def find(prices: Prices, painting: Painting, unpruned: Collection[int] = ()) -> tuple[int, frozenset[int]]:
    """Return the first factor of sizes at which any unit pays, and the units that do not; 0 and none if none
    ever pays.
    """
    kept = [u for u, entry in enumerate(painting.entries) if entry.authority in _BY_USER or u in unpruned]
    has_half = any(kind.dtype == prices.costs.half.dtype for kind in prices.graph.types.values())
    allowed = {
        unit
        for unit, entry in enumerate(painting.entries)
        if entry.kind is Kind.ALLOW and painting.is_half(unit) and prices.is_run(unit)
    }
    for larger in _LARGER:
        costs = prices.costs.at(larger)
        unpaid = unpaid_parts.find_unpaid_parts(prices.graph, costs, prices.borders, painting.halves, kept)
        if not unpaid or has_half or allowed - unpaid:
            return larger, unpaid
    return 0, frozenset()


_BY_USER = (Authority.PIN, Authority.OVERRIDE)
_LARGER = (1, 8, 64)
"""The factors of sizes, tried in turn until something pays."""


def gate(painting: Painting, predicted: Prediction) -> Painting:
    """Return the painting with every unit FULL, as the model is predicted to be no faster."""
    evidence = Evidence(
        Authority.PREDICTION,
        Reason.GATED,
        subject=predicted.device,
        number=predicted.speedup,
        half=predicted.half,
    )
    halves = (unit for unit in range(len(painting.paints)) if painting.is_half(unit))
    return _full(painting, dict.fromkeys(halves, evidence), Rule.GATE)


def _full(painting: Painting, evidence: Mapping[int, Evidence], rule: Rule) -> Painting:
    """Paint these units FULL."""
    paints, entries = list(painting.paints), list(painting.entries)
    for unit, reason in evidence.items():
        paints[unit] = Paint(Colour.FULL, rule)
        entries[unit] = replace(entries[unit], evidence=reason)
    return Painting(tuple(paints), tuple(entries))


def _settle(graph: UnitGraph, pruned_units: Painting, before: Painting) -> Painting:
    """Paint FULL the Casts next to FULL units, and replace causes that are FULL now by their own."""
    paints = list(pruned_units.paints)
    casts = [unit for unit in graph.by_operator.get("Cast", ()) if paints[unit].rule is Rule.SETTLE]
    for unit in (*casts, *reversed(casts)):  # what consumes, then what produces
        beside = (*graph.predecessors[unit], *graph.successors[unit])
        if any(paints[other].colour is Colour.FULL for other in beside):
            paints[unit] = Paint(Colour.FULL, Rule.LEFT)
    causes = [paint.cause for paint in before.paints]
    for unit, paint in enumerate(paints):
        chain = [unit] if paint.colour is Colour.HALF else []
        while chain and (cause := causes[chain[-1]]) is not None and paints[cause].colour is Colour.FULL:
            chain.append(cause)
        for link in chain:
            causes[link] = causes[chain[-1]]
        paints[unit] = replace(paint, cause=causes[unit]) if chain else paint
    return replace(pruned_units, paints=tuple(paints))


def _settle_sequences(graph: UnitGraph, painting: Painting, options: Options) -> Painting:
    """Paint FULL what `runtimes.widened_sequences` names, but for what the user forces to half."""
    paints = list(painting.paints)
    for unit, cause in runtimes.widened_sequences(graph, painting.halves, options.target).items():
        if painting.entries[unit].authority is not Authority.PIN:
            paints[unit] = Paint(Colour.FULL, Rule.SETTLE, cause)
    return replace(painting, paints=tuple(paints))


def _is_guesswork(graph: UnitGraph, options: Options) -> bool:
    if options.gate or len(graph.units) <= MOST_GUESSED:
        return False
    shaped_values = sum(value.shape is not None for unit in graph.units for value in unit.defs)
    return shaped_values < len(graph.units) / 2
