"""A run of the float32 model that looks at every value: how large, and how small, its numbers get."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from amp_rewrite.errors import FeedError
from amp_rewrite.observed import Magnitudes, Observed, magnitudes
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.inner_values import Inside
from amp_rewrite.running.sessions import Device, Feeds, Runnable
from amp_rewrite.stoppable import Limit


def observe(
    model: Runnable,
    samples: Iterable[Feeds],
    *,
    device: Device | None = None,
    timeout: float | None = None,
) -> Observed:
    """The magnitudes of the float inputs and of all floats that the main graph makes, over all samples.

    Bodies of control flow are not looked into. Raises what `inner_values.Inside` raises, FeedError where
    there is no sample, and TimeLimitError after `timeout` seconds.
    """
    with Limit(timeout).running():
        return _observe(model, samples, device)


def _observe(model: Runnable, samples: Iterable[Feeds], device: Device | None) -> Observed:
    inside = Inside(model, device or sessions.best_device())
    found: dict[str, Magnitudes] = {}
    runs = iter(samples)
    first = next(runs, None)
    if first is None:
        raise FeedError("there is no sample to look at", remedy="give one with --data, or leave it out")
    for feeds in itertools.chain([first], runs):
        for name, seen in _seen(inside, feeds):
            found[name] = seen.join(found.get(name, seen))
    return found


def _seen(inside: Inside, feeds: Feeds) -> Iterator[tuple[str, Magnitudes]]:
    for values in itertools.chain([feeds], inside.chunks(inside.made, feeds)):
        for name, value in values.items():
            seen = magnitudes(value) if _is_floats(value) else None
            if seen is not None:
                yield name, seen


def _is_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and metrics.is_float(value)
