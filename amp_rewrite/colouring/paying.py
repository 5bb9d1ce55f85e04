"""Refinement of a painting by predicted times: pruning, the prediction, and the gate on request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from amp_rewrite.analysis import runtimes
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring import classification, pruning, rules
from amp_rewrite.colouring.classification import Findings
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.costs import model_costs
from amp_rewrite.costs.model_costs import Prediction, Prices
from amp_rewrite.policy.evidence import Authority
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
    as_it_is = Priced(painting, gated=_is_gated(painting))
    if _is_guesswork(graph, options):
        return as_it_is
    priced = as_it_is if decided else pruned(graph, painting, options, unpruned=unpruned)
    if not any(priced.painting.halves):
        return priced
    prices = priced.prices or model_costs.measure_prices(graph, options)
    predicted = prices.predict(priced.painting.halves)
    priced = replace(priced, prices=prices, prediction=predicted)
    if decided or not options.gate or not predicted.is_slower:
        return priced
    return replace(priced, painting=pruning.gate(priced.painting, predicted), gated=True)


def pruned(
    graph: UnitGraph,
    painting: Painting,
    options: Options,
    prices: Prices | None = None,
    unpruned: Collection[int] = (),
) -> Priced:
    """Prune a painting if the options request it, except the units in `unpruned`.

    `prices` are those for these options, measured if None.
    """
    if not options.prunes or not any(painting.halves) or _is_guesswork(graph, options):
        return Priced(_settle_sequences(graph, painting, options))
    measured = prices or model_costs.measure_prices(graph, options)
    painting = pruning.prune(measured, painting, unpruned)
    return Priced(_settle_sequences(graph, painting, options), measured)


def _settle_sequences(graph: UnitGraph, painting: Painting, options: Options) -> Painting:
    """Paint FULL what `runtimes.widened_sequences` names, but for what the user forces to half."""
    causes = runtimes.widened_sequences(graph, painting.halves, options.target)
    if not causes:
        return painting
    paints = list(painting.paints)
    for unit, cause in causes.items():
        if painting.entries[unit].authority is not Authority.PIN:
            paints[unit] = Paint(Colour.FULL, Rule.SETTLE, cause)
    return replace(painting, paints=tuple(paints))


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


def _is_gated(painting: Painting) -> bool:
    """Whether a plan is gated; an edited one may have half units again."""
    has_gate = any(paint.rule is Rule.GATE for paint in painting.paints)
    return has_gate and not any(painting.halves)


def _is_guesswork(graph: UnitGraph, options: Options) -> bool:
    if options.gate or len(graph.units) <= MOST_GUESSED:
        return False
    shaped_values = sum(value.shape is not None for unit in graph.units for value in unit.defs)
    return shaped_values < len(graph.units) / 2
