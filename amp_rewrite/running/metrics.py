"""Metrics of the difference between two outputs, and tolerances for them."""

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
    """The difference of an output from the original's, over the values that are finite in the original.

    `max_abs` and `mean_abs` are the largest and the mean absolute difference, `relative_l2` is the L2 norm of
    the difference divided by that of the original, `cosine` that of the angle between the two, `snr_db` the
    signal-to-noise ratio in decibels (infinite for equal outputs). `agreement` is the share of equal values
    for outputs that are not float; for float outputs of rank 2 or 3, the share of rows whose arg-max is the
    same, where an index counts as the same if the original's value there ties with its maximum (TIE); None
    without values, or if every row is constant or has a NaN. `non_finite` counts values that are NaN or
    infinite in only one of the two, or infinite with opposite signs; `compared` those that are finite in the
    original, or not float.
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

    `relative_l2` is twenty times float16's unit roundoff (2**-11), for the accumulation in a deep network.
    `agreement` applies to outputs that are not float, `top1` to the arg-max of float outputs.
    Raises OptionError for a bound that is not a number, or outside of the metric's range.
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
            _check_bound(field.name, getattr(self, field.name))


def _check_bound(name: str, bound: object) -> None:
    where, shown = f"Tolerances.{name}", arguments.shown(bound)
    if bound is None:
        return
    if not arguments.is_number(bound):
        raise arguments.refused(where, f"{shown} is not a number", "give a number, or None for no bound")
    if name == "non_finite":
        arguments.whole(where, bound)
    low, high = _RANGES.get(name, _DISTANCES)
    if not low <= bound <= high:
        raise arguments.refused(where, f"{shown} is not from {low:g} to {high:g}")


_DISTANCES = (0.0, math.inf)
_RANGES = {
    "cosine": (-1.0, 1.0),
    "snr_db": (-math.inf, math.inf),
    "agreement": (0.0, 1.0),
    "top1": (0.0, 1.0),
}
"""The valid range of each bound; _DISTANCES for the others."""


def parse_tolerances(texts: tuple[str, ...]) -> Tolerances:
    """The defaults, changed by texts of the form `name=bound`; `name=none` removes a bound.

    Raises OptionError for an invalid text, for two different bounds of one name, and if no bound is left.
    """
    bounds: dict[str, Any] = {}
    for name, bound in map(_parse, texts):
        if bounds.setdefault(name, bound) != bound:
            raise OptionError(f"the tolerance {name} has two bounds", remedy="give it once")
    tolerances = Tolerances(**bounds)
    if all(getattr(tolerances, field.name) is None for field in fields(tolerances)):
        raise OptionError("no tolerance is left: any output would pass", remedy="keep one")
    return tolerances


def _parse(text: str) -> tuple[str, Any]:
    name, _, bound = text.partition("=")
    known = [field.name for field in fields(Tolerances)]
    if name not in known:
        raise OptionError(f"there is no tolerance {name}", remedy=f"choose one of {', '.join(known)}")
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


def measure(expected: NDArray[Any], actual: NDArray[Any]) -> Metrics:
    """The metrics of `actual` against `expected`; both have the same shape."""
    if not all(is_float(array) or array.dtype.kind in "iub" for array in (expected, actual)):
        return Metrics(0.0, 0.0, 0.0, 1.0, math.inf, _share_equal(expected, actual), 0, expected.size)
    finite = np.isfinite(expected)
    wanted, got = expected[finite].astype(np.float64), actual[finite].astype(np.float64)
    lost = ~np.isfinite(got)
    got = np.where(lost, 0.0, got)
    difference = np.abs(got - wanted)
    signal, noise = float(np.linalg.norm(wanted)), float(np.linalg.norm(difference))
    return Metrics(
        max_abs=float(difference.max(initial=0.0)),
        mean_abs=float(difference.mean()) if difference.size else 0.0,
        relative_l2=noise / signal if signal else noise,
        cosine=_cosine(wanted, got),
        snr_db=20 * math.log10(signal / noise) if signal and noise else (0.0 if noise else math.inf),
        agreement=_top1(expected, actual) if is_float(expected) else _share_equal(expected, actual),
        non_finite=int(np.count_nonzero(lost)) + _changed(expected[~finite], actual[~finite]),
        compared=int(wanted.size),
    )


def _changed(expected: NDArray[Any], actual: NDArray[Any]) -> int:
    """The number of values that are NaN or infinite in the original only, or infinite with opposite signs."""
    same = np.isnan(expected) & ~np.isfinite(actual)
    same |= np.isinf(expected) & (np.isnan(actual) | (actual == expected))
    return int(np.count_nonzero(~same))


def is_float(array: NDArray[Any]) -> bool:
    """Whether the elements are floating-point, including bfloat16."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _share_equal(expected: NDArray[Any], actual: NDArray[Any]) -> float | None:
    return float(np.mean(expected == actual)) if expected.size else None


def _cosine(wanted: NDArray[np.float64], got: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(wanted) * np.linalg.norm(got))
    if not norms:
        return 1.0 if np.array_equal(wanted, got) else 0.0
    return float(np.dot(wanted.ravel(), got.ravel())) / norms


def _top1(expected: NDArray[Any], actual: NDArray[Any]) -> float | None:
    """The share of rows with the same arg-max, over the rows that are not constant and have no NaN.

    Only for outputs of rank 2 or 3, whose rows can be scores: [batch, class] or [batch, token, class].
    """
    if expected.ndim not in (2, 3) or not expected.size:
        return None
    top = expected.max(axis=-1)  # NaN if any value is, which excludes the row
    included = top > expected.min(axis=-1)
    if not included.any():
        return None
    indices = np.expand_dims(actual.argmax(axis=-1), -1)
    values = np.take_along_axis(expected, indices, axis=-1).squeeze(-1)
    return float(np.mean(_ties(top[included], values[included])))


TIE = 2.0**-8
"""Numbers whose relative difference is at most this tie: rounding to bfloat16, the coarser half type, changes
them by as much, so that either of them may become the larger one.
"""


def _ties(top: NDArray[Any], value: NDArray[Any]) -> NDArray[np.bool_]:
    wanted, got = top.astype(np.float64), value.astype(np.float64)
    near = np.isfinite(wanted)
    near[near] = wanted[near] - got[near] <= TIE * np.abs(wanted[near])
    return near | (wanted == got)


def violations(metrics: Metrics, bounds: Tolerances, *, is_float: bool) -> Iterator[str]:
    """The bounds that an output violates, in words; only `agreement` applies to one that is not float."""
    for name in _UPPER if is_float else ():
        value, bound = getattr(metrics, name), getattr(bounds, name)
        if bound is not None and not value <= bound:
            yield f"{name} {value:.3g} is above {bound:.3g}"
    for name, metric in (_LOWER if is_float else {"agreement": "agreement"}).items():
        value, bound = getattr(metrics, metric), getattr(bounds, name)
        if bound is not None and value is not None and not value >= bound:
            yield f"{name} {value:.4g} is below {bound:.4g}"


_UPPER = ("non_finite", "relative_l2", "max_abs", "mean_abs")
_LOWER = {"cosine": "cosine", "snr_db": "snr_db", "top1": "agreement"}
"""Bounds of float outputs: upper ones, and lower ones with the metric that they apply to."""
