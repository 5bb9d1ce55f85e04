"""Tolerances: the bounds of a verdict, and their violations."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.running.comparison import Runs
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.text import nearest, shortened

# Violated bounds in words.

_MOST_DIGITS = 17
"""The digits after which any two numbers differ."""


def above(name: str, value: float, bound: float) -> str:
    """Return a message that a value is above its bound."""
    text, most = _apart(value, bound, 3)
    return f"{name} {text} is above {most}"


def below(name: str, value: float, bound: float) -> str:
    """Return a message that a value is below its bound."""
    text, least = _apart(value, bound, 4)
    return f"{name} {text} is below {least}"


def _apart(value: float, bound: float, digits: int) -> tuple[str, str]:
    """Format both numbers with the fewest significant digits that distinguish them."""
    texts = f"{value:.{digits}g}", f"{bound:.{digits}g}"
    return texts if texts[0] != texts[1] or digits >= _MOST_DIGITS else _apart(value, bound, digits + 1)


# User-defined metrics of the original outputs, the rewritten outputs and the samples.

Outputs = Sequence[Mapping[str, Any]]
"""The outputs, or inputs, of every sample by name, in the order of the samples."""

MetricFunction = Callable[[Any, Any, Any], Any]
"""A function of original outputs, rewritten outputs, and samples (Outputs) that returns a number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A user-defined metric with bounds: its value must be in `least`..`most`.

    `function` is called once, with three lists that have a mapping for each sample: the outputs of the
    original, those of the rewritten model, and the inputs, as arrays by name. With a metric, all of
    these stay in memory. Without bounds the value is only reported.
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
            raise arguments.refused("Metric.function", f"{arguments.describe(self.function)} is not callable")
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "name", arguments.texts("Metric.name", name)[0])
        for field in ("least", "most"):
            bound = getattr(self, field)
            if bound is not None and (not arguments.is_number(bound) or math.isnan(bound)):
                raise arguments.refused(f"Metric.{field}", f"{arguments.describe(bound)} is not a number")
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
    """The value of a user-defined metric with its bounds.

    `value` is None if the function raised or returned no number, as `problem` then explains.
    """

    name: str
    value: float | None
    least: float | None
    most: float | None
    problem: str = ""

    @property
    def fault(self) -> str:
        """The violated bound or the problem, in words; empty if there is none."""
        if self.value is None:
            return f"{self.name}: {self.problem}"
        if self.least is not None and self.value < self.least:
            return below(self.name, self.value, self.least)
        if self.most is not None and self.value > self.most:
            return above(self.name, self.value, self.most)
        return ""


def several(source: Metric | MetricFunction | Iterable[Metric | MetricFunction]) -> tuple[Metric, ...]:
    """Return metrics from metrics or functions; a single one need not be in a list.

    Raises OptionError for anything else, and for two of one name.
    """
    items: Any = (source,) if isinstance(source, Metric) or callable(source) else source
    if not isinstance(items, Iterable):
        raise arguments.refused("metrics", f"{arguments.describe(source)} is neither a function nor a Metric")
    metrics = tuple(metric if isinstance(metric, Metric) else Metric(metric) for metric in items)
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            raise arguments.refused("metrics", f"two metrics are called {name}", "name one of them otherwise")
    return metrics


def measure(metrics: Iterable[Metric], runs: Sequence[Runs]) -> tuple[Measured, ...]:
    """Evaluate each metric on all samples; a failure is reported as its problem."""
    before, after, samples = ([getattr(run, side) for run in runs] for side in _SIDES)
    return tuple(_measure(metric, before, after, samples) for metric in metrics)


_SIDES = ("original", "rewritten", "feeds")


def _measure(metric: Metric, before: Outputs, after: Outputs, samples: Outputs) -> Measured:
    try:
        value = metric.function(list(before), list(after), list(samples))
    except (Exception, SystemExit) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return Measured(
            metric.name, None, metric.least, metric.most, f"raised {shortened(message, _LONGEST)}"
        )
    number = _number(value)
    problem = "" if number is not None else f"returned {arguments.describe(value)}, which is not a number"
    return Measured(metric.name, number, metric.least, metric.most, problem)


_LONGEST = 200


def _number(value: Any) -> float | None:
    """Return a real number, also from an array of one element; None for anything else, and for NaN."""
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):
        value = value.item()
    if not arguments.is_number(value):
        return None
    return None if math.isnan(value) else float(value)


class _Default(float):
    """A default bound, as opposed to one that the user set."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The bounds of a verdict; None is no bound.

    `error` (Output.error) is twenty times float16's unit roundoff (2**-11), for the accumulation in a deep
    network, and 8 times as much for a result in bfloat16, whose roundoff is 8 times as large; a bound on
    `relative_l2`, which is that of the worst sample, replaces this default. `agreement` applies to outputs
    that are not float, `top1` to the arg-max of float outputs. `atol` is no bound but the
    scale below which `error` counts an output as zero.
    Raises OptionError for a bound that is not a number, or outside of the metric's range.

    Examples:
        >>> from amp_rewrite import Tolerances, verify
        >>> from amp_rewrite.demo import feeds, network
        >>> verify(network(), network(seed=1), feeds(), Tolerances(cosine=0.999)).ok
        False
        >>> Tolerances(cosine=2)
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.OptionError: Tolerances.cosine: 2 is not from -1 to 1
    """

    error: float | None = _Default(1e-2)
    relative_l2: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    cosine: float | None = None
    snr_db: float | None = None
    agreement: float | None = 0.99
    top1: float | None = None
    non_finite: int | None = 0
    atol: float | None = None

    def __post_init__(self) -> None:
        for name in NAMES:
            _check_bound(name, getattr(self, name))
        if isinstance(self.error, _Default):
            object.__setattr__(self, "error", self.error if self.relative_l2 is None else None)

    def of(self, half: Half | None) -> Tolerances:
        """Return these bounds for a half type: default bounds scale with its unit roundoff.

        Examples:
            >>> from amp_rewrite import Tolerances
            >>> from amp_rewrite.numerics.half import BFLOAT16
            >>> Tolerances().of(BFLOAT16).error
            0.08
        """
        coarser = FLOAT16.integers / half.integers if half is not None else 1
        return replace(self, error=self.error * coarser) if isinstance(self.error, _Default) else self

    def removed(self, *, is_float: bool) -> tuple[str, ...]:
        """Return the default bounds that were removed for such an output. An `error` bound above 1 counts as
        removed, as unrelated outputs meet it.

        Examples:
            >>> from amp_rewrite import Tolerances
            >>> Tolerances(error=None).removed(is_float=True)
            ('error',)
        """
        errors = min(math.inf if bound is None else bound for bound in (self.error, self.relative_l2))
        lacking = {"error": errors > 1, "non_finite": self.non_finite is None}
        lacking = lacking if is_float else {"agreement": not self.agreement}
        return tuple(name for name, is_lacking in lacking.items() if is_lacking)

    @property
    def is_empty(self) -> bool:
        """Whether there is no bound at all."""
        return all(getattr(self, name) is None for name in NAMES if name != "atol")


NAMES = tuple(field.name for field in fields(Tolerances))
"""The names of all tolerances."""


def _check_bound(name: str, bound: object) -> None:
    where, text = f"Tolerances.{name}", arguments.describe(bound)
    if bound is None:
        return
    if not arguments.is_number(bound):
        raise arguments.refused(where, f"{text} is not a number", "give a number, or None for no bound")
    if name == "non_finite":
        arguments.whole(where, bound)
    low, high = _RANGES.get(name, _DISTANCES)
    if not low <= bound <= high:
        raise arguments.refused(where, f"{text} is not from {low:g} to {high:g}")


_DISTANCES = (0.0, math.inf)
_RANGES = {
    "cosine": (-1.0, 1.0),
    "snr_db": (-math.inf, math.inf),
    "agreement": (0.0, 1.0),
    "top1": (0.0, 1.0),
    "atol": (0.0, sys.float_info.max),
}
"""The valid range of each bound; _DISTANCES for the others."""


def parse_tolerances(texts: tuple[str, ...], others: Sequence[Metric] = ()) -> Tolerances:
    """Return the defaults with changes of the form `name=bound`; `name=none` removes a bound, and for
    `relative_l2` also the default of `error`.

    Raises OptionError for an invalid text, for two different bounds of one name, and if no bound remains,
    including `others`.
    """
    bounds: dict[str, Any] = {}
    names = (*NAMES, *(metric.name for metric in others))
    for name, bound in (_parse(text, names) for text in texts):
        if bounds.setdefault(name, bound) != bound:
            raise OptionError(f"the tolerance {name} has two bounds", remedy="give it once")
    if "relative_l2" in bounds:
        bounds.setdefault("error", None)
    tolerances = Tolerances(**bounds)
    if tolerances.is_empty and not any(metric.is_bounded for metric in others):
        raise OptionError("no tolerance is left: any output would pass", remedy="keep one")
    return tolerances


def _parse(text: str, names: Sequence[str]) -> tuple[str, Any]:
    name, _, bound = text.partition("=")
    if name not in NAMES:
        number = re.split("[=:]", text)[-1]
        example = f"error={number}" if _NUMBER.fullmatch(number) else "error=0.001"
        remedy = f"write NAME=BOUND, as in {example}, with one of the names {', '.join(names)}"
        near = nearest(name, names)
        raise OptionError(f"there is no tolerance {name}", remedy=f"did you mean {near}?" if near else remedy)
    if bound == "none":
        return name, None
    try:
        number = int(bound) if name == "non_finite" else float(bound)
    except ValueError as error:
        remedy = f"write {name}=0.01, or {name}=none"
        raise OptionError(f"the tolerance {text} is not a number", remedy=remedy) from error
    low, high = _RANGES.get(name, _DISTANCES)
    if not low <= number <= high:
        raise OptionError(f"the tolerance {text} is out of range", remedy=f"give {name} {low:g} to {high:g}")
    return name, number


_NUMBER = re.compile(r"[\d.]+(?:[eE][+-]?\d+)?")


def violations(metrics: Metrics, error: float | None, bounds: Tolerances) -> Iterator[str]:
    """Return the violated bounds of an output, in words; if it is not float, it has no `error`, and only
    `agreement` applies.
    """
    is_float = error is not None
    for name in _UPPER if is_float else ():
        value, bound = getattr(metrics, name), getattr(bounds, name)
        if name == "error" and error is not None:
            value = error
        if bound is not None and not value <= bound:
            yield above(name, value, bound)
    for name, metric in (_LOWER if is_float else {"agreement": "agreement"}).items():
        value, bound = getattr(metrics, metric), getattr(bounds, name)
        if bound is not None and value is not None and not value >= bound:
            yield below(name, value, bound)


_UPPER = ("non_finite", "error", "relative_l2", "max_abs", "mean_abs")
_LOWER = {"cosine": "cosine", "snr_db": "snr_db", "top1": "agreement"}
"""Bounds of float outputs: upper ones, and lower ones with the metric that they apply to."""
