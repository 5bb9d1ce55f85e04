"""Metrics of the difference between two outputs, and the spread that normalises an error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

    @property
    def relative_error(self) -> float:
        """The `relative_l2`, infinite if a value is NaN or infinite in one of the two alone."""
        return math.inf if self.non_finite else self.relative_l2

    def error(self, atol: float = 0.0) -> float:
        """Return `rms` relative to `scale`, or to SMALLEST or `atol` if that is larger."""
        return self.rms / max(self.scale, SMALLEST, atol)


SMALLEST = 2.0**-14
"""float16's smallest normal number: below it, precision is absolute."""


Channels = Mapping[int | None, NDArray[np.float64]]
"""Numbers of an output as a whole (None, a single one), and of its channels along axis 1 and the last one."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the finite values of an output in a sample: in rows their count, mean, mean square, and
    largest magnitude. `unlike` are the axes along which its channels may be quantities of different size.
    """

    rows: Channels
    unlike: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The scales by which differences of an output are divided: one for each channel of `axis`, or one for
    the whole output if that is None.
    """

    axis: int | None
    sizes: NDArray[np.float64]

    def error(self, differences: Channels, least: float) -> tuple[float, int]:
        """Return the largest RMS difference relative to a spread of at least `least`, and its channel."""
        with np.errstate(over="ignore"):
            errors = differences.get(self.axis, _LOST) / np.maximum(self.sizes, least or _TINY)
        worst = int(np.argmax(errors))
        return float(errors[worst]), worst


_LOST, _TINY = np.array([math.inf]), float(np.finfo(np.float64).tiny)


def moments(expected: NDArray[Any]) -> Moments:
    """Return the moments of an output of the original."""
    finite = np.isfinite(expected)
    values = np.where(finite, expected, 0).astype(np.float64)
    squares = np.square(values)

    def rows(axis: int | None) -> NDArray[np.float64]:
        count = _by_channel(np.sum, finite, axis)
        sums = (_by_channel(np.sum, array, axis) / np.maximum(count, 1) for array in (values, squares))
        return np.stack([count, *sums, _by_channel(_largest, values, axis)])

    return Moments({axis: rows(axis) for axis in _axes(expected)}, _unlike(expected.shape))


def differences(
    expected: NDArray[Any], actual: NDArray[Any], axes: Iterable[int | None] | None = None
) -> Channels:
    """Return the RMS differences of the values that are finite in the original, non-finite actual values
    counting as 0; with `axes`, of the channels along these only.
    """
    finite = np.isfinite(expected)
    result = np.where(finite & np.isfinite(actual), actual, 0).astype(np.float64)
    squares = np.square(result - np.where(finite, expected, 0))
    return {
        axis: np.sqrt(_by_channel(np.sum, squares, axis) / np.maximum(_by_channel(np.sum, finite, axis), 1))
        for axis in (_axes(expected) if axes is None else axes)
    }


def _axes(array: NDArray[Any]) -> tuple[int | None, ...]:
    return (None, *sorted({1, array.ndim - 1})) if array.ndim > 1 else (None,)


def _unlike(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of channels: of four axes, not those of an image, two neighbours of similar size."""
    if len(shape) != 4:
        return (1, len(shape) - 1)
    _, *sizes = np.log2(np.maximum(shape, 1))
    before, behind = np.abs(np.diff(sizes))
    if min(before, behind) > _OF_IMAGES:
        return (1, 3)
    return (1,) if behind <= before else (3,)


_OF_IMAGES = 3
"""The binary logarithm of the largest ratio of an image's height to its width, or the other way round."""


def _by_channel(reduce: Any, array: NDArray[Any], axis: int | None) -> NDArray[Any]:
    if axis is None:
        return np.atleast_1d(reduce(array))
    return reduce(array, axis=tuple(other for other in range(array.ndim) if other != axis))


def _largest(values: NDArray[np.float64], axis: Any = None) -> NDArray[np.float64]:
    return np.abs(values).max(axis=axis, initial=0.0)


def spread(samples: Sequence[Moments]) -> Spread:
    """Return the spread of an output: the largest RMS of any sample about the mean of all samples, or about 0
    if an offset cannot be told from signal: in fewer than FEW values, in values that are all in -1..1
    (probabilities, images, normalised coordinates), and in constant ones (CONSTANT).

    Channels are separate quantities along an axis on which their means differ by PLAIN times the deviation
    within them, or their spreads fall into groups that are APART. Each is then normalised separately, those
    of a group at least by the RMS of its spreads, and those in -1..1 at least by SCORE; in an output that is
    all in -1..1, at least by the spread of the whole.
    """
    whole = _about_mean(samples, None)
    axes = _shared_axes(samples) if samples else []
    is_unit = not samples or bool(whole.largest.max() <= NEAR_1)
    plainness = {axis: 0.0 if is_unit else _plainness(samples, axis) for axis in axes}
    plainest = max(plainness, key=lambda axis: plainness[axis], default=None)
    if plainest is not None and plainness[plainest] > PLAIN:
        pool = _about_mean(samples, plainest)
        return Spread(plainest, _at_least(pool, SCORE))
    pools = {axis: _about_mean(samples, axis) for axis in axes if axis in samples[0].unlike}
    gaps = {axis: float(_gaps(_at_least(pool, SCORE)).max()) for axis, pool in pools.items()}
    widest = max(gaps, key=lambda axis: gaps[axis], default=None)
    if widest is None or gaps[widest] <= APART:
        return Spread(None, whole.sizes)
    if is_unit:
        return Spread(widest, np.maximum(pools[widest].sizes, whole.sizes))
    return Spread(widest, _of_groups(_at_least(pools[widest], SCORE)))


def _at_least(pool: _Pooled, least: float) -> NDArray[np.float64]:
    """Return the spreads of channels, those in -1..1 at least this one."""
    return np.where(pool.largest <= NEAR_1, np.maximum(pool.sizes, least), pool.sizes)


def _gaps(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ratio of each spread to the next smaller one."""
    ordered = np.maximum(np.sort(sizes), _TINY)
    return ordered[1:] / ordered[:-1]


def _of_groups(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each spread, or the RMS of those of its group, between two that are APART, if that is larger;
    none is smaller than what float32 resolves of the largest.
    """
    groups = np.searchsorted(np.sort(sizes)[1:][_gaps(sizes) > APART], sizes, side="right")
    squares = np.bincount(groups, np.square(sizes)) / np.bincount(groups)
    return np.maximum(np.maximum(sizes, np.sqrt(squares)[groups]), RESOLVED * sizes.max())


FEW, NEAR_1, CONSTANT, PLAIN, APART, SCORE, RESOLVED = 16, 1.001, 2.0**-16, 4.0, 8.0, 2.0**-6, 2.0**-24
"""The fewest values with a spread; the magnitude above which an output cannot be probabilities; the relative
deviation below which float32 has only 8 significant bits, so that a difference is its own noise; and the
ratio of between-channel to within-channel deviation of channels that are separate quantities: the columns of
detectors and of log-probabilities in the models measured reach 3.2, physical quantities hundreds. Then the
ratio of neighbouring spreads from which on they are of different quantities, and the least spread of scores
beside other quantities: a detector's are 0 in almost all places. Last, float32's unit roundoff.
"""


@dataclass(frozen=True, slots=True)
class _Pooled:
    sizes: NDArray[np.float64]
    largest: NDArray[np.float64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


def _about_mean(samples: Sequence[Moments], axis: int | None) -> _Pooled:
    """Pool the moments of all samples, and return them with the spread."""
    counts, means, squares, sizes = np.stack([each.rows[axis] for each in samples], axis=1)
    count, largest = counts.sum(axis=0), sizes.max(axis=0)
    mean, square = ((counts * each).sum(axis=0) / np.maximum(count, 1.0) for each in (means, squares))
    variance = np.maximum(square - mean**2, 0.0)
    has_offset = (count >= FEW) & (largest > NEAR_1) & (variance > CONSTANT**2 * square)
    about = np.where(has_offset, mean, 0.0)
    spread = (squares - about * (2 * means - about)).max(axis=0)
    return _Pooled(np.sqrt(np.maximum(spread, 0.0)), largest, mean, variance)


def _shared_axes(samples: Sequence[Moments]) -> list[int]:
    """Return the axes with the same number of channels in all samples, at least two, with FEW values each."""
    shapes = {axis: rows.shape for axis, rows in samples[0].rows.items() if rows.shape[1] > 1}
    return [
        axis
        for axis, shape in shapes.items()
        if axis is not None
        and all(axis in each.rows and each.rows[axis].shape == shape for each in samples)
        and np.sum([each.rows[axis][0] for each in samples], axis=0).min() >= FEW
    ]


def _plainness(samples: Sequence[Moments], axis: int) -> float:
    """Return the deviation of the channel means relative to the deviation within the channels."""
    pool = _about_mean(samples, axis)
    inside = math.sqrt(float(pool.variance.mean()))
    return float(pool.mean.std()) / inside if inside else 0.0


def only_value(array: NDArray[Any]) -> Any:
    """Return the common value of all elements; None if they differ, or there are none."""
    return array.flat[0].item() if array.size and (array == array.flat[0]).all() else None


def rms(array: NDArray[Any]) -> float:
    """Return the root mean square of the elements; 0 if there are none."""
    return _norm(array) / math.sqrt(array.size) if array.size else 0.0


def _norm(array: NDArray[Any]) -> float:
    """Return the L2 norm; not that of BLAS, as NumPy's norms and dot products are: its threads wait for each
    other by spinning, and take up to twenty times as long on a busy machine.
    """
    return math.sqrt(float(np.sum(np.square(array))))


def measure(expected: NDArray[Any], actual: NDArray[Any]) -> Metrics:
    """Return the metrics of `actual` against `expected`, of the same shape."""
    if not all(is_float(array) or array.dtype.kind in "iub" for array in (expected, actual)):
        same = _share_equal(expected, actual)
        return Metrics(0.0, 0.0, 0.0, 1.0, math.inf, same, 0, expected.size, 0.0, 0.0)
    finite = np.isfinite(expected)
    reference, result = expected[finite].astype(np.float64), actual[finite].astype(np.float64)
    is_lost = ~np.isfinite(result)
    result = np.where(is_lost, 0.0, result)
    difference = np.abs(result - reference)
    signal, noise = _norm(reference), _norm(difference)
    return Metrics(
        max_abs=float(difference.max(initial=0.0)),
        mean_abs=float(difference.mean()) if difference.size else 0.0,
        relative_l2=noise / signal if signal else noise,
        cosine=_cosine(reference, result),
        snr_db=20 * math.log10(signal / noise) if signal and noise else (0.0 if noise else math.inf),
        agreement=_top1(expected, actual) if is_float(expected) else _share_equal(expected, actual),
        non_finite=int(np.count_nonzero(is_lost)) + _changed(expected[~finite], actual[~finite]),
        compared=int(reference.size),
        rms=rms(difference),
        scale=rms(reference),
    )


def _changed(expected: NDArray[Any], actual: NDArray[Any]) -> int:
    """Count the values that are NaN or infinite in the original only, or infinite with opposite signs."""
    same = np.isnan(expected) & ~np.isfinite(actual)
    same |= np.isinf(expected) & (np.isnan(actual) | (actual == expected))
    return int(np.count_nonzero(~same))


def is_float(array: NDArray[Any]) -> bool:
    """Whether the elements are floating-point, including bfloat16."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _share_equal(expected: NDArray[Any], actual: NDArray[Any]) -> float | None:
    return float(np.mean(expected == actual)) if expected.size else None


def _cosine(reference: NDArray[np.float64], result: NDArray[np.float64]) -> float:
    norms = _norm(reference) * _norm(result)
    if not norms:
        return 1.0 if np.array_equal(reference, result) else 0.0
    return float(np.sum(reference * result)) / norms


def _top1(expected: NDArray[Any], actual: NDArray[Any]) -> float | None:
    """Return the share of rows with the same arg-max, over the rows that are not constant and have no NaN.

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
    reference, result = top.astype(np.float64), value.astype(np.float64)
    near = np.isfinite(reference)
    near[near] = reference[near] - result[near] <= TIE * np.abs(reference[near])
    return near | (reference == result)
