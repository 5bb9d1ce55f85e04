"""Saturated outputs: what they are computed from is compared in their place.

A softmax of large numbers is 0 or 1 whatever half does to these, and so is a sigmoid, a clipped value, or the
ArgMax of one. Such an output shows no error, and proves none of what other inputs would show. A node is taken
to hide it if its output lies at the ends of its range, and differs far less than its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.rewriting import annotations
from amp_rewrite.running import metrics
from amp_rewrite.running.instrumented_model import InstrumentedModel, paired_values
from amp_rewrite.running.sequences import Steps
from amp_rewrite.running.sessions import Feeds

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value in both models, and the relative L2 error of the second."""

    name: str
    expected: Array
    actual: Array
    relative_l2: float


SHOWS = 2.0**-15
"""The relative error below which half does not show: rounding alone has about 2^-12."""

END = 2.0**-6
"""The share of the range at its ends in which a value is saturated: there a sigmoid has less than a
sixty-fourth of an error in its input."""


ALMOST_ALL = 0.9
"""The share of saturated values from which on an error below SHOWS may be that of the others alone."""


def is_suspect(expected: Array, relative_l2: float) -> bool:
    """Whether a float value may be saturated: at the ends of its range, and without an error of half."""
    return metrics.is_float(expected) and relative_l2 < SHOWS and _is_saturated(expected)


def _is_saturated(values: Array) -> bool:
    """Whether most finite values lie at the ends of their range; of -1..0 or 0..1 if they are all alike."""
    values = values[np.isfinite(values)]
    if not values.size:
        return False
    low, high = float(values.min()), float(values.max())
    ends = (low, high) if high - low > END else (-1.0, 0.0, 1.0)
    distance = np.abs(values - ends[0])
    for end in ends[1:]:
        np.minimum(distance, np.abs(values - end), out=distance)
    return float(np.mean(distance <= END * max(high - low, 1.0))) >= ALMOST_ALL


def hidden(
    before: InstrumentedModel, after: InstrumentedModel, outputs: Sequence[str], feeds: Feeds
) -> dict[str, Hidden]:
    """Return the values before the saturated nodes of the main graph, by the outputs behind these nodes.

    Empty if the models do not run that way, and for a sequence. The outputs of the models are replaced.
    """
    if isinstance(feeds, Steps):
        return {}
    there = before.values
    known = {output: there[output] for output in outputs if output in there}
    names = {value.name or "" for output in known.values() for value in _ancestors(output)}
    is_rescaled = annotations.is_rescaled(after.model.metadata_props)
    values: dict[str, Hidden] = {}
    try:
        for name, value, other in paired_values(before, after, names, feeds):
            if other is not None and other.shape == value.shape:
                actual = other / _power(value, other) if is_rescaled else other
                values[name] = Hidden(name, value, actual, metrics.measure(value, actual).relative_l2)
    except AmpRewriteError:
        return {}
    found = ((output, _shown(value, values)) for output, value in known.items())
    return {output: value for output, value in found if value is not None}


MOST = 48
"""The most values before an output that are looked at: a written-out softmax has 6."""


def _ancestors(output: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that an output is computed from, itself and the nearest first."""
    values, at = dict.fromkeys([output]), 0
    while at < min(len(values), MOST):
        value, at = list(values)[at], at + 1
        yield value
        values.update(dict.fromkeys(_inputs(value)))


def _inputs(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [each for each in node.inputs if each is not None]


def _power(expected: Array, actual: Array) -> float:
    """Return the power of two by which a value is stored otherwise in a rescaled model."""
    both = np.isfinite(expected) & np.isfinite(actual)
    sizes = [metrics.rms(value[both].astype(np.float64)) for value in (expected, actual)]
    return 2.0 ** round(math.log2(sizes[1] / sizes[0])) if all(sizes) else 1.0


def _shown(output: ir.Value, values: Mapping[str, Hidden]) -> Hidden | None:
    """Return the nearest value before saturated ones in which an error of half shows."""
    pending = [output]
    for value in pending:
        inputs = [each.name or "" for each in _inputs(value)]
        plain = {
            name: values[name]
            for name in inputs
            if name in values and not is_suspect(values[name].expected, values[name].relative_l2)
        }
        worst = max(plain.values(), key=lambda found: found.relative_l2, default=None)
        if value.name in values and worst is not None and worst.relative_l2 >= _MUCH * SHOWS:
            return worst
        pending += [each for each in _inputs(value) if each.name not in plain and each not in pending]
    return None


_MUCH = 4.0
"""The ratio to SHOWS of an error that half shows."""
