"""Copies of a made-up sample that are loud, faint, or far from 0: what normal distributions do not show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from amp_rewrite.running.sessions import Feeds


@dataclass(frozen=True, slots=True)
class Stress:
    """A change of made-up inputs, in words, as numbers: each value times `factor`, plus `offset`."""

    change: str
    factor: float = 1.0
    offset: float = 0.0


STRESSES = (
    Stress("100 times as loud", factor=100.0),
    Stress("1,000 times as faint", factor=1e-3),
    Stress("offset by 10 times their spread", offset=10.0),
)
"""The changes that are tried: percent for shares, silence in recordings (-60 dB), and temperatures of
weather in kelvin (278 +- 21). Of 91 real models 7 fail in one; at 1,000 times as loud 11 do, and at the
32,768 times of samples of 16 bits 25.
"""


def copies(sample: Feeds, names: Collection[str]) -> Iterator[tuple[Stress, Feeds]]:
    """A copy of the sample for each stress, in which the inputs with these names are changed."""
    for stress in STRESSES if names else ():
        changed = {
            name: np.asarray(sample[name] * stress.factor + stress.offset).astype(sample[name].dtype)
            for name in names
        }
        yield stress, {**sample, **changed}
