"""Synthetic samples scaled up, scaled down or offset, beyond what normal distributions cover."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from amp_rewrite.running.sequences import Steps, changed
from amp_rewrite.running.sessions import Feeds


@dataclass(frozen=True, slots=True)
class Stress:
    """A change of synthetic inputs, in words and numbers: each value times `factor`, plus `offset`."""

    change: str
    factor: float = 1.0
    offset: float = 0.0


STRESSES = (
    Stress("100 times as large", factor=100.0),
    Stress("1,000 times as small", factor=1e-3),
    Stress("offset by 10 times their spread", offset=10.0),
)
"""The stresses: percent for shares, silence in recordings (-60 dB), and temperatures of
weather in kelvin (278 +- 21). Of 91 real models 7 fail in one; at 1,000 times as large 11 do, and at the
32,768 times of samples of 16 bits 25.
"""

FAINTER = Stress("100 times as faint", factor=0.01)
"""A smaller copy, for inputs on which half overflows: of images normalised by 255 twice, say."""


def copies(sample: Feeds, names: Collection[str]) -> Iterator[tuple[Stress, Feeds]]:
    """Yield each stress with a copy of the sample in which the named inputs are changed."""
    for stress in STRESSES if names else ():
        yield stress, copy(sample, stress, names)


def copy(sample: Feeds, stress: Stress, names: Collection[str]) -> Feeds:
    """Return a copy of the sample in which the named inputs are changed."""
    if isinstance(sample, Steps):  # only the first of a sequence has states of ours
        names = [name for name in names if name not in {pair.input for pair in sample.states}]
    return changed(sample, partial(_stressed, stress=stress, names=names))


def _stressed(feeds: Feeds, stress: Stress, names: Collection[str]) -> Feeds:
    values = ((name, np.asarray(feeds[name])) for name in names)
    changes = {name: (value * stress.factor + stress.offset).astype(value.dtype) for name, value in values}
    return {**feeds, **changes}
