"""Original against rewritten, in numbers, with half rounded as a GPU would round it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import emulate

TOLERANCE = 1e-2
"""The largest relative L2 error of an output that passes: ten times float16's rounding (2**-11) and a bit."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far an output is from the original's.

    `largest` is the largest absolute difference, `relative` the L2 norm of the difference divided by that of
    the original, `non_finite` counts values that are finite in the original and not in the rewritten model.
    """

    output: str
    largest: float
    relative: float
    non_finite: int

    @property
    def ok(self) -> bool:
        """Whether the error is small, and nothing finite was lost."""
        return not self.non_finite and self.relative <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of all float outputs; `how` says where the rewritten model ran."""

    differences: tuple[Difference, ...]
    how: str

    @property
    def ok(self) -> bool:
        """Whether every output is close."""
        return all(difference.ok for difference in self.differences)


def compare(
    original: onnx.ModelProto | str | Path,
    rewritten: onnx.ModelProto | str | Path,
    feeds: sessions.Feeds,
) -> Comparison:
    """Runs the original in float32 and the rewritten model with half rounded, both on the CPU.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError when a run fails.
    """
    expected = sessions.run(original, feeds)
    actual = sessions.run(emulate(rewritten), feeds)
    differences = (
        difference(name, value, actual[name])
        for name, value in expected.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    )
    return Comparison(tuple(differences), "CPU, half emulated")


def difference(name: str, expected: NDArray[Any], actual: NDArray[Any]) -> Difference:
    """How far `actual` is from `expected`, where that is finite; both of one shape."""
    finite = np.isfinite(expected)
    wanted, got = expected[finite].astype(np.float64), actual[finite].astype(np.float64)
    lost = ~np.isfinite(got)
    apart = np.abs(np.where(lost, 0.0, got) - wanted)
    norm = float(np.linalg.norm(wanted))
    return Difference(
        output=name,
        largest=float(apart.max(initial=0.0)),
        relative=float(np.linalg.norm(apart)) / (norm or 1.0),
        non_finite=int(np.count_nonzero(lost)),
    )
