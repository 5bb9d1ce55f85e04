"""What becomes of a painting where times are predicted: pruned, foreseen, and gated if asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring import pruning
from amp_rewrite.colouring.painting import Colour, Painting
from amp_rewrite.costs import prices
from amp_rewrite.costs.prediction import Prediction
from amp_rewrite.costs.prices import Prices
from amp_rewrite.policy.options import Options


@dataclass(frozen=True, slots=True)
class Priced:
    """A painting with its prediction and the prices that this rests on; both None where nothing is half.

    `gated` holds where the prediction made everything FULL.
    """

    painting: Painting
    prices: Prices | None = None
    prediction: Prediction | None = None
    gated: bool = False


def settle(graph: UnitGraph, painting: Painting, options: Options, *, decided: bool) -> Priced:
    """What is left of a painting, with its prediction; one that is `decided` stays as it is."""
    found = Priced(painting) if decided else pruned(graph, painting, options)
    if not _is_half_anywhere(found.painting):
        return found
    known = found.prices or prices.measure(graph, options)
    predicted = known.predict([paint.colour is Colour.HALF for paint in found.painting.paints])
    found = replace(found, prices=known, prediction=predicted)
    if decided or not options.gate or not predicted.is_slower:
        return found
    return replace(found, painting=pruning.gate(found.painting, predicted), gated=True)


def pruned(graph: UnitGraph, painting: Painting, options: Options, known: Prices | None = None) -> Priced:
    """What pruning leaves of a painting, where the options have it; `known` are prices for these options."""
    if not options.prunes or not _is_half_anywhere(painting):
        return Priced(painting)
    found = known or prices.measure(graph, options)
    return Priced(pruning.prune(found, painting), found)


def _is_half_anywhere(painting: Painting) -> bool:
    return any(paint.colour is Colour.HALF for paint in painting.paints)
