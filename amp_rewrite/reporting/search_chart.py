"""The plans that a search measured: predicted time against error, and what no other plan beats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.reporting.pictures import WIDTH, Anchor, Dot, Drawable, Line, Picture, Text, Tone


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was measured: its predicted seconds, its error, and its number of half units."""

    seconds: float
    error: float
    half: int


@dataclass(frozen=True, slots=True)
class Search:
    """The plans, the default one first, the error to stay within, and what rounding adds by node."""

    plans: Sequence[Plan] = ()
    target: float = 0.0
    sensitivity: Mapping[str, float] = field(default_factory=dict[str, float])


_HEIGHT, _LEFT, _RIGHT = 180, 46, 8
_LOWEST = -8
"""The power of ten at which the scale ends; what is below is drawn there."""


def chart(search: Search) -> Picture:
    """A dot for each plan, to the right by time and up by error; those on the hull are joined."""
    axes = _Axes(search)
    shapes = (*_grid(axes), *_hull(search.plans, axes), *(_dot(plan, axes) for plan in search.plans))
    return Picture("Plans of the search: error by predicted time", WIDTH, _HEIGHT + 24, shapes)


class _Axes:
    """Where times and errors are drawn."""

    def __init__(self, search: Search) -> None:
        times = [plan.seconds for plan in search.plans]
        self.first, self.last, self.target = min(times), max(times), search.target
        errors = [_power(plan.error) for plan in search.plans if math.isfinite(plan.error)]
        self.highest = max(math.ceil(max([*errors, _power(search.target)])), _LOWEST + 1)

    def x(self, seconds: float) -> float:
        share = (seconds - self.first) / (self.last - self.first or 1.0)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, error: float) -> float:
        found = min(_power(error), self.highest) if math.isfinite(error) else self.highest
        return _HEIGHT * (self.highest - found) / (self.highest - _LOWEST)


def _power(error: float) -> float:
    """The power of ten of an error, at least the lowest one that is drawn."""
    return max(math.log10(error), _LOWEST) if error > 0 else _LOWEST


def _grid(axes: _Axes) -> Iterator[Drawable]:
    for exponent in range(_LOWEST, axes.highest + 1, 2):
        y = axes.y(10.0**exponent)
        yield Line(_LEFT, y, WIDTH - _RIGHT, y, Tone.LIGHT)
        yield Text(_LEFT - 8, y + 4, f"1e{exponent}", Anchor.END, tone=Tone.MUTED)
    y = axes.y(axes.target)
    yield Line(_LEFT, y, WIDTH - _RIGHT, y, Tone.BAD, dash=True)
    yield Text(WIDTH - _RIGHT, _HEIGHT + 18, "predicted time", Anchor.END, tone=Tone.MUTED)


def hull(plans: Iterable[Plan]) -> list[Plan]:
    """The plans than which none is both faster and nearer, by time."""
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda each: (each.seconds, each.error)):
        if not best or plan.error < best[-1].error:
            best.append(plan)
    return best


def _hull(plans: Iterable[Plan], axes: _Axes) -> Iterator[Drawable]:
    best = hull(plans)
    for one, other in itertools.pairwise(best):
        yield Line(
            axes.x(one.seconds), axes.y(one.error), axes.x(other.seconds), axes.y(other.error), Tone.INK
        )


def _dot(plan: Plan, axes: _Axes) -> Dot:
    tone = Tone.HALF if plan.error <= axes.target else Tone.GREY
    title = f"error {plan.error:.1e}, {plan.seconds * 1e3:.3g} ms, {plural(plan.half, 'unit')} in half"
    return Dot(axes.x(plan.seconds), axes.y(plan.error), 2.6, tone, title)
