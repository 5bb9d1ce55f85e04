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
import onnx
from numpy.typing import NDArray

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.rewriting import annotations
from amp_rewrite.running import metrics
from amp_rewrite.running.instrumented_model import InstrumentedModel, shared_values
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

    Empty if the models do not run that way, and for a sequence. The graphs of the models are edited.
    """
    if isinstance(feeds, Steps):
        return {}
    shared = shared_values(before, after)
    producers = {name: node for node in before.nodes for name in node.output}
    behind = (name for output in outputs for name in _ancestors(output, producers))
    names = dict.fromkeys(name for name in behind if name in shared)
    try:
        expected = before.run(names, feeds) if names else {}
        actual = after.run([shared[name] for name in expected], feeds) if expected else {}
    except AmpRewriteError:
        return {}
    is_rescaled = annotations.is_rescaled({entry.key: entry.value for entry in after.metadata})
    values: dict[str, Hidden] = {}
    for name, value in expected.items():
        other = actual.get(shared[name])
        if other is not None and other.shape == value.shape:
            other = other / _power(value, other) if is_rescaled else other
            values[name] = Hidden(name, value, other, metrics.measure(value, other).relative_l2)
    found = ((output, _shown(output, producers, values)) for output in outputs)
    return {output: value for output, value in found if value is not None}


MOST = 48
"""The most values before an output that are looked at: a written-out softmax has 6."""


def _ancestors(output: str, producers: Mapping[str, onnx.NodeProto]) -> Iterator[str]:
    """Yield the values that an output is computed from, itself and the nearest first."""
    names, at = dict.fromkeys([output]), 0
    while at < min(len(names), MOST):
        name, at = list(names)[at], at + 1
        yield name
        names.update(dict.fromkeys(producers[name].input if name in producers else ()))


def _power(expected: Array, actual: Array) -> float:
    """Return the power of two by which a value is stored otherwise in a rescaled model."""
    both = np.isfinite(expected) & np.isfinite(actual)
    sizes = [metrics.rms(value[both].astype(np.float64)) for value in (expected, actual)]
    return 2.0 ** round(math.log2(sizes[1] / sizes[0])) if all(sizes) else 1.0


def _shown(
    output: str, producers: Mapping[str, onnx.NodeProto], values: Mapping[str, Hidden]
) -> Hidden | None:
    """Return the nearest value before saturated ones in which an error of half shows."""
    pending, at = [output], 0
    while at < len(pending):
        name, at = pending[at], at + 1
        inputs = producers[name].input if name in producers else ()
        plain = {
            each: values[each]
            for each in inputs
            if each in values and not is_suspect(values[each].expected, values[each].relative_l2)
        }
        worst = max(plain.values(), key=lambda value: value.relative_l2, default=None)
        if name in values and worst is not None and worst.relative_l2 >= _MUCH * SHOWS:
            return worst
        pending += [each for each in inputs if each not in plain and each not in pending]
    return None


_MUCH = 4.0
"""The ratio to SHOWS of an error that half shows."""
