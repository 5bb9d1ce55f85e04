"""How far an output is from what it should be, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite import arguments
from amp_rewrite.errors import OptionError


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far an output is from the original's, over the values that are finite there.

    `max_abs` and `mean_abs` are the largest and the mean absolute difference, `relative_l2` the L2 norm of
    the difference over that of the original, `cosine` that of the angle between the two, `snr_db` the
    signal-to-noise ratio in decibels (infinite for equal outputs). `agreement` is the share of equal
    values for outputs that are no floats, and for those of two or three axes the share of rows whose largest
    value is at the same place; None where it means nothing: without values, or without a row that has a
    largest value. A place counts as the same where the original's value there ties with its largest (TIE).
    `non_finite` counts values that are NaN or infinite in one of the two alone, or infinite with another
    sign; `compared` those that say anything: finite in the original, or no floats.
    """

    max_abs: float
    mean_abs: float
    relative_l2: float
    cosine: float
    snr_db: float
    agreement: float | None
    non_finite: int
    compared: int


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The bounds of a verdict; None is no bound.

    `relative_l2` is twenty times float16's unit roundoff (2**-11): what a deep network piles up.
    `agreement` bounds outputs that are no floats; `top1` does so for the arg-max of those that are.
    Raises OptionError for a bound that is no number, or that no output can keep or break.
    """

    relative_l2: float | None = 1e-2
    max_abs: float | None = None
    mean_abs: float | None = None
    cosine: float | None = None
    snr_db: float | None = None
    agreement: float | None = 0.99
    top1: float | None = None
    non_finite: int | None = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _refuse_bound(field.name, getattr(self, field.name))


def _refuse_bound(name: str, bound: object) -> None:
    where, shown = f"Tolerances.{name}", arguments.shown(bound)
    if bound is None:
        return
    if not arguments.is_number(bound):
        raise arguments.refused(where, f"{shown} is not a number", "give a number, or None for no bound")
    if name == "non_finite":
        arguments.whole(where, bound)
    low, high = _range(name)
    if not low <= bound <= high:
        raise arguments.refused(where, f"{shown} is not from {low:g} to {high:g}")


def tolerances(asked: tuple[str, ...]) -> Tolerances:
    """The defaults with `name=bound` changed; `name=none` takes a bound away.

    Raises OptionError, also where one name gets two bounds, or no bound is left.
    """
    bounds: dict[str, Any] = {}
    for name, bound in map(_bound, asked):
        if bounds.setdefault(name, bound) != bound:
            raise OptionError(f"the tolerance {name} has two bounds", remedy="give it once")
    made = Tolerances(**bounds)
    if all(getattr(made, field.name) is None for field in fields(made)):
        raise OptionError("no tolerance is left: every result would pass", remedy="keep one")
    return made


def _bound(text: str) -> tuple[str, Any]:
    name, _, bound = text.partition("=")
    known = [field.name for field in fields(Tolerances)]
    if name not in known:
        raise OptionError(f"there is no tolerance {name}", remedy=f"choose one of {', '.join(known)}")
    if bound == "none":
        return name, None
    try:
        number = int(bound) if name == "non_finite" else float(bound)
    except ValueError as error:
        raise OptionError(
            f"the tolerance {text} is not a number", remedy=f"write {name}=0.01, or {name}=none"
        ) from error
    low, high = _range(name)
    if not low <= number <= high:
        raise OptionError(
            f"the tolerance {text} is out of range", remedy=f"give {name} a value from {low:g} to {high:g}"
        )
    return name, number


_DISTANCES = (0.0, math.inf)
_RANGES = {
    "cosine": (-1.0, 1.0),
    "snr_db": (-math.inf, math.inf),
    "agreement": (0.0, 1.0),
    "top1": (0.0, 1.0),
}


def _range(name: str) -> tuple[float, float]:
    return _RANGES.get(name, _DISTANCES)


def measure(expected: NDArray[Any], actual: NDArray[Any]) -> Metrics:
    """How far `actual` is from `expected`; both of one shape."""
    if not (_is_number(expected) and _is_number(actual)):
        return _equality(expected, actual)
    finite = np.isfinite(expected)
    wanted, got = expected[finite].astype(np.float64), actual[finite].astype(np.float64)
    lost = ~np.isfinite(got)
    got = np.where(lost, 0.0, got)
    apart = np.abs(got - wanted)
    signal, noise = float(np.linalg.norm(wanted)), float(np.linalg.norm(apart))
    return Metrics(
        max_abs=float(apart.max(initial=0.0)),
        mean_abs=float(apart.mean()) if apart.size else 0.0,
        relative_l2=noise / signal if signal else noise,
        cosine=_cosine(wanted, got),
        snr_db=20 * math.log10(signal / noise) if signal and noise else (0.0 if noise else math.inf),
        agreement=_top1(expected, actual) if is_float(expected) else _share_equal(expected, actual),
        non_finite=int(np.count_nonzero(lost)) + _gained(expected[~finite], actual[~finite]),
        compared=int(wanted.size),
    )


def _gained(expected: NDArray[Any], actual: NDArray[Any]) -> int:
    """How many values are NaN or infinite in the original alone, or infinite with the other sign."""
    same = np.isnan(expected) & ~np.isfinite(actual)
    same |= np.isinf(expected) & (np.isnan(actual) | (actual == expected))
    return int(np.count_nonzero(~same))


def is_float(array: NDArray[Any]) -> bool:
    """Whether an array is of floating-point numbers, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_number(array: NDArray[Any]) -> bool:
    return is_float(array) or array.dtype.kind in "iub"


def _equality(expected: NDArray[Any], actual: NDArray[Any]) -> Metrics:
    """What there is to say of texts and other things that are no numbers."""
    return Metrics(0.0, 0.0, 0.0, 1.0, math.inf, _share_equal(expected, actual), 0, expected.size)


def _share_equal(expected: NDArray[Any], actual: NDArray[Any]) -> float | None:
    return float(np.mean(expected == actual)) if expected.size else None


def _cosine(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(wanted) * np.linalg.norm(got))
    if not norms:
        return 1.0 if np.array_equal(wanted, got) else 0.0
    return float(np.dot(wanted.ravel(), got.ravel())) / norms


def _top1(expected: NDArray[Any], actual: NDArray[Any]) -> float | None:
    """How often the largest value of a row is at the same place, over the rows that have a largest one.

    Rows are scores, [batch, class] or [batch, token, class]; of what has more axes, or one, they are not.
    """
    if expected.ndim not in (2, 3) or not expected.size:
        return None
    top = expected.max(axis=-1)  # NaN where any value is, and then no row to compare
    telling = top > expected.min(axis=-1)
    if not telling.any():
        return None
    places = np.expand_dims(actual.argmax(axis=-1), -1)
    there = np.take_along_axis(expected, places, axis=-1).squeeze(-1)
    return float(np.mean(_ties(top[telling], there[telling])))


TIE = 2.0**-8
"""Numbers that differ by no more than this share of the larger one tie: bfloat16, the coarser half, rounds by
as much, so that which of them comes out larger is chance.
"""


def _ties(top: NDArray[Any], there: NDArray[Any]) -> NDArray[np.bool_]:
    wanted, got = top.astype(np.float64), there.astype(np.float64)
    near = np.isfinite(wanted)
    near[near] = wanted[near] - got[near] <= TIE * np.abs(wanted[near])
    return near | (wanted == got)


def broken(metrics: Metrics, bounds: Tolerances, *, is_float: bool) -> Iterator[str]:
    """Which bounds an output breaks, in words; what is no float is bound by its agreement alone."""
    for name, value, bound in _upper(metrics, bounds) if is_float else ():
        if bound is not None and not value <= bound:
            yield f"{name} {value:.3g} is above {bound:.3g}"
    lower: list[tuple[str, float | None, float | None]]
    lower = [("agreement", metrics.agreement, bounds.agreement)]
    if is_float:
        lower = [("cosine", metrics.cosine, bounds.cosine), ("snr_db", metrics.snr_db, bounds.snr_db)]
        lower.append(("top1", metrics.agreement, bounds.top1))
    for name, value, bound in lower:
        if bound is not None and value is not None and not value >= bound:
            yield f"{name} {value:.4g} is below {bound:.4g}"


def _upper(metrics: Metrics, bounds: Tolerances) -> tuple[tuple[str, float, float | None], ...]:
    return (
        ("non_finite", metrics.non_finite, bounds.non_finite),
        ("relative_l2", metrics.relative_l2, bounds.relative_l2),
        ("max_abs", metrics.max_abs, bounds.max_abs),
        ("mean_abs", metrics.mean_abs, bounds.mean_abs),
    )
