"""Metrics of the difference between two outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.process import blas_threads


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
    original, or not float. `rms` is the root mean square of the difference, `scale` that of the original.
    """

    max_abs: float
    mean_abs: float
    relative_l2: float
    cosine: float
    snr_db: float
    agreement: float | None
    non_finite: int
    compared: int
    rms: float
    scale: float

    def error(self, atol: float = 0.0) -> float:
        """`rms` in relation to `scale`, or to the larger of SMALLEST and `atol` where the output is fainter.

        Unlike `relative_l2`, it does not fail a sample for being faint among louder ones, or blank.
        """
        return self.rms / max(self.scale, SMALLEST, atol)


SMALLEST = 2.0**-14
"""float16's smallest normal number: below it, precision is absolute."""


def rms(array: NDArray[Any]) -> float:
    """The root mean square of the elements; 0 if there are none."""
    return float(np.linalg.norm(array) / math.sqrt(array.size)) if array.size else 0.0


@blas_threads.single()
def measure(expected: NDArray[Any], actual: NDArray[Any]) -> Metrics:
    """The metrics of `actual` against `expected`; both have the same shape."""
    if not all(is_float(array) or array.dtype.kind in "iub" for array in (expected, actual)):
        same = _share_equal(expected, actual)
        return Metrics(0.0, 0.0, 0.0, 1.0, math.inf, same, 0, expected.size, 0.0, 0.0)
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
        rms=rms(difference),
        scale=rms(wanted),
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
