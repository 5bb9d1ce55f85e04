"""Metrics of the user's own: of the original outputs, the rewritten outputs and the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.escaping import shortened
from amp_rewrite.running import bound_text
from amp_rewrite.running.comparison import Runs

Outputs = Sequence[Mapping[str, Any]]
"""The outputs, or inputs, of every sample by name, in the order of the samples."""

MetricFunction = Callable[[Any, Any, Any], Any]
"""A number from the outputs of the original, those of the rewritten model, and the samples (Outputs)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of the user's own, and its bounds: the value is to be from `least` to `most`.

    `function` is called once, with three lists that have a mapping for each sample: the outputs of the
    original, those of the rewritten model, and the inputs, as arrays by name. While there is a metric, all of
    these are kept in memory. Without bounds the value is shown, and judges nothing.
    Raises OptionError for a function that is not callable, and for bounds that are no numbers or cross.

    Examples:
        >>> from amp_rewrite import Metric, verify
        >>> from amp_rewrite.demo import feeds, network
        >>> def same_class(original, rewritten, samples):
        ...     before, after = (runs[0]['probabilities'].argmax(1) for runs in (original, rewritten))
        ...     return (before == after).mean()
        >>> verdict = verify(network(), network(), feeds(), metrics=Metric(same_class, least=0.99))
        >>> verdict.metrics[0].value
        1.0
    """

    function: MetricFunction
    name: str = ""
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise arguments.refused("Metric.function", f"{arguments.shown(self.function)} is not callable")
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "name", arguments.texts("Metric.name", name)[0])
        for field in ("least", "most"):
            bound = getattr(self, field)
            if bound is not None and (not arguments.is_number(bound) or math.isnan(bound)):
                raise arguments.refused(f"Metric.{field}", f"{arguments.shown(bound)} is not a number")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise arguments.refused(
                "Metric", f"the bounds of {self.name} cross: {self.least:g} to {self.most:g}", "swap them"
            )

    @property
    def is_bounded(self) -> bool:
        """Whether it has a bound."""
        return self.least is not None or self.most is not None


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a metric of the user's own with its bounds.

    `value` is None where the function raised or returned no number; `problem` says so then.
    """

    name: str
    value: float | None
    least: float | None
    most: float | None
    problem: str = ""

    @property
    def fault(self) -> str:
        """Which bound is violated, or the problem, in words; empty if there is nothing wrong."""
        if self.value is None:
            return f"{self.name}: {self.problem}"
        if self.least is not None and self.value < self.least:
            return bound_text.below(self.name, self.value, self.least)
        if self.most is not None and self.value > self.most:
            return bound_text.above(self.name, self.value, self.most)
        return ""


def several(given: Metric | MetricFunction | Iterable[Metric | MetricFunction]) -> tuple[Metric, ...]:
    """Metrics, which may be given as functions; a single one need not be in a list.

    Raises OptionError for anything else, and for two of one name.
    """
    listed: Any = (given,) if isinstance(given, Metric) or callable(given) else given
    if not isinstance(listed, Iterable):
        raise arguments.refused("metrics", f"{arguments.shown(given)} is neither a function nor a Metric")
    found = tuple(metric if isinstance(metric, Metric) else Metric(metric) for metric in listed)
    names = [metric.name for metric in found]
    for name in names:
        if names.count(name) > 1:
            raise arguments.refused("metrics", f"two metrics are called {name}", "name one of them otherwise")
    return found


def measure(metrics: Iterable[Metric], runs: Sequence[Runs]) -> tuple[Measured, ...]:
    """The value of each metric on all samples, or why it has none."""
    before, after, samples = ([getattr(run, side) for run in runs] for side in _SIDES)
    return tuple(_measure(metric, before, after, samples) for metric in metrics)


_SIDES = ("original", "rewritten", "feeds")


def _measure(metric: Metric, before: Outputs, after: Outputs, samples: Outputs) -> Measured:
    try:
        value = metric.function(list(before), list(after), list(samples))
    except (Exception, SystemExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Measured(metric.name, None, metric.least, metric.most, f"raised {shortened(said, _LONGEST)}")
    number = _number(value)
    problem = "" if number is not None else f"returned {arguments.shown(value)}, which is not a number"
    return Measured(metric.name, number, metric.least, metric.most, problem)


_LONGEST = 200


def _number(value: Any) -> float | None:
    """A real number, also in an array of one element; None for anything else, and for NaN."""
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):
        value = value.item()
    if not arguments.is_number(value):
        return None
    return None if math.isnan(value) else float(value)
