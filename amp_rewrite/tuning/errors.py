"""The error of outputs, squared and relative to a target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.running import comparison, metrics
from amp_rewrite.running.metrics import Moments


class Target:
    """The outputs of float32 for some samples, and how far others may be from them.

    The error of a float output is that of a verdict: the RMS of the difference over the spread in all samples
    (metrics.spread), at least metrics.SMALLEST; of others, it is the share of values that differ. Sequences
    and maps are as many outputs as they have arrays.
    """

    def __init__(self, wanted: Sequence[Mapping[str, Any]], bound: float) -> None:
        self._wanted, self._bound = [dict(comparison.arrays(outputs)) for outputs in wanted], bound
        moments: defaultdict[str, list[Moments]] = defaultdict(list)
        for name, value in (found for outputs in self._wanted for found in outputs.items()):
            if metrics.is_float(value):
                moments[name].append(metrics.moments(value))
        self._spread = {name: metrics.spread(known) for name, known in moments.items()}

    def squared(self, sample: int, outputs: Mapping[str, Any]) -> float:
        """The squared error of the worst output of a sample, over the square of the bound."""
        wanted, got = self._wanted[sample], dict(comparison.arrays(outputs))
        found = [self._error(name, value, got[name]) for name, value in wanted.items() if name in got]
        return (max(found, default=0.0) / self._bound) ** 2

    def _error(self, name: str, wanted: NDArray[Any], got: NDArray[Any]) -> float:
        if wanted.shape != got.shape:
            return math.inf
        if name not in self._spread:
            return float(np.mean(wanted != got)) if wanted.size else 0.0
        finite = np.isfinite(wanted)
        if not np.isfinite(got[finite]).all():
            return math.inf
        spread = self._spread[name]
        return spread.error(metrics.differences(wanted, got, (spread.axis,)), metrics.SMALLEST)[0]
