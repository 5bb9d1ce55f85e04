"""Metrics of the difference between two outputs, and the spread that an error is relative to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
        """`rms` in relation to `scale`, or to SMALLEST or `atol` where the output is fainter."""
        return self.rms / max(self.scale, SMALLEST, atol)


SMALLEST = 2.0**-14
"""float16's smallest normal number: below it, precision is absolute."""


Channels = Mapping[int | None, NDArray[np.float64]]
"""Numbers of an output as a whole (None, a single one), and of its channels along axis 1 and the last one."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of the finite values of an output in a sample: their number, their mean, the mean of their squares, and
    the largest magnitude.
    """

    count: Channels
    mean: Channels
    square: Channels
    largest: Channels


@dataclass(frozen=True, slots=True)
class Spread:
    """The numbers that differences of an output are held against: one for each channel of `axis`, or one for
    the output as a whole where that is None.
    """

    axis: int | None
    sizes: NDArray[np.float64]

    def error(self, differences: Channels, least: float) -> tuple[float, int]:
        """The largest RMS difference in relation to the spread, which counts as `least` where it is less, and
        the channel that has it.
        """
        with np.errstate(over="ignore"):
            errors = differences.get(self.axis, _LOST) / np.maximum(self.sizes, least or _TINY)
        worst = int(np.argmax(errors))
        return float(errors[worst]), worst


_LOST, _TINY = np.array([math.inf]), float(np.finfo(np.float64).tiny)


def moments(expected: NDArray[Any]) -> Moments:
    """Those of an output of the original."""
    finite = np.isfinite(expected)
    values = np.where(finite, expected, 0).astype(np.float64)
    count = {axis: _by_channel(np.sum, finite, axis).astype(np.float64) for axis in _axes(expected)}
    some = {axis: np.maximum(counted, 1.0) for axis, counted in count.items()}
    return Moments(
        count,
        {axis: _by_channel(np.sum, values, axis) / some[axis] for axis in count},
        {axis: _by_channel(np.sum, np.square(values), axis) / some[axis] for axis in count},
        {axis: _by_channel(_largest, values, axis) for axis in count},
    )


def differences(
    expected: NDArray[Any], actual: NDArray[Any], axes: Iterable[int | None] | None = None
) -> Channels:
    """The RMS differences of the values that are finite in the original, where what is lost counts as 0; with
    `axes`, of the channels along these only.
    """
    finite = np.isfinite(expected)
    got = np.where(finite & np.isfinite(actual), actual, 0).astype(np.float64)
    squares = np.square(got - np.where(finite, expected, 0))
    return {
        axis: np.sqrt(_by_channel(np.sum, squares, axis) / np.maximum(_by_channel(np.sum, finite, axis), 1))
        for axis in (_axes(expected) if axes is None else axes)
    }


def _axes(array: NDArray[Any]) -> tuple[int | None, ...]:
    return (None, *sorted({1, array.ndim - 1})) if array.ndim > 1 else (None,)


def _by_channel(reduce: Any, array: NDArray[Any], axis: int | None) -> NDArray[Any]:
    if axis is None:
        return np.atleast_1d(reduce(array))
    return reduce(array, axis=tuple(other for other in range(array.ndim) if other != axis))


def _largest(values: NDArray[np.float64], axis: Any = None) -> NDArray[np.float64]:
    return np.abs(values).max(axis=axis, initial=0.0)


def spread(samples: Sequence[Moments]) -> Spread:
    """What differences of an output are held against: the largest RMS of any sample about the mean of all
    samples, and about 0 where there is no telling what is an offset: in fewer than FEW values, in values that
    are all from -1 to 1 (probabilities, images, normalised coordinates), and in constant ones (CONSTANT).

    Channels count apart along an axis, 1 or the last, where their means differ by PLAIN times what is inside
    them, and the output is not all from -1 to 1. A channel that is counts as the whole output, or as 1, does.
    """
    sizes, largest, _ = _about_mean(samples, None)
    axis, ratio = None, PLAIN
    for other in _shared_axes(samples) if largest[0] > NEAR_1 else ():
        by_channel = _about_mean(samples, other)
        if by_channel[2] > ratio:
            axis, (sizes, largest, ratio) = other, by_channel
    if axis is not None:
        scale = min(1.0, max(float(each.square[None][0]) for each in samples) ** 0.5)
        sizes = np.where(largest <= NEAR_1, np.maximum(sizes, scale), sizes)
    return Spread(axis, sizes)


FEW, NEAR_1, CONSTANT, PLAIN = 16, 1.001, 2.0**-16, 4.0
"""Values of which no spread is known; from where on the scale of an output is not that of probabilities; the
share of a value that float32 holds to 8 bits only, below which what differs is its own noise; and how much
farther than they spread the means of channels differ that are quantities of their own: the columns of
detectors and of log-probabilities in the models measured reach 3.2, physical quantities hundreds.
"""


def _about_mean(samples: Sequence[Moments], axis: int | None) -> tuple[NDArray[Any], NDArray[Any], float]:
    """The spread and the largest magnitude of each channel in all samples, and how much the means of channels
    differ, in relation to what is inside them.
    """
    count = np.sum([each.count[axis] for each in samples], axis=0)
    some = np.maximum(count, 1.0)
    mean = np.sum([each.count[axis] * each.mean[axis] for each in samples], axis=0) / some
    square = np.sum([each.count[axis] * each.square[axis] for each in samples], axis=0) / some
    largest = np.max([each.largest[axis] for each in samples], axis=0)
    variance = np.maximum(square - mean**2, 0.0)
    has_offset = (count >= FEW) & (largest > NEAR_1) & (variance > CONSTANT**2 * square)
    about = np.where(has_offset, mean, 0.0)
    squares = [each.square[axis] - about * (2 * each.mean[axis] - about) for each in samples]
    inside = math.sqrt(float(variance.mean()))
    ratio = float(mean.std()) / inside if inside else 0.0
    return np.sqrt(np.maximum(np.max(squares, axis=0), 0.0)), largest, ratio


def _shared_axes(samples: Sequence[Moments]) -> list[int]:
    """The axes with as many channels in every sample, and no few values in any."""
    first = samples[0].count
    return [
        axis
        for axis in first
        if axis is not None
        and all(axis in each.count and each.count[axis].size == first[axis].size for each in samples)
        and np.sum([each.count[axis] for each in samples], axis=0).min(initial=FEW) >= FEW
    ]


def only_value(array: NDArray[Any]) -> Any:
    """The value that all elements have; None where they differ, or there are none."""
    return array.flat[0].item() if array.size and (array == array.flat[0]).all() else None


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
