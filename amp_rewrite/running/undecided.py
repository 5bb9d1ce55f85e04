"""Outputs that float32 itself does not tell: it moves as far where it only rounds in another order.

A constant image behind an InstanceNormalization is what rounding has left of it, divided by the root of an
epsilon. An error of half says nothing there, and no plan is within a tolerance that float32 itself misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from amp_rewrite.running import comparison
from amp_rewrite.running.changing import Judge
from amp_rewrite.running.comparison import Runs
from amp_rewrite.running.noise import Float32Noise
from amp_rewrite.running.verdict import Output, Verdict

NEAR = 2.0
"""How many times farther than float32 is from itself a result is that may be as near to what is exact."""

BEYOND = 16.0
"""The same where float32 itself is beyond the bounds: two sessions have most kernels in common, and differ by
a part of what float32 loses, for constant images by a fourteenth of it and more.
"""


class Undecided:
    """Looks at outputs that are too far off, sample by sample: what float32 tells in one is decided."""

    def __init__(self, noise: Float32Noise, judge: Judge) -> None:
        self._noise, self._judge = noise, judge
        self._decided: set[str] = set()
        self._told: dict[str, tuple[float, str]] = {}

    @property
    def why(self) -> Mapping[str, str]:
        """The outputs that float32 does not tell in any sample in which they are too far off, and why."""
        return {name: said for name, (_, said) in self._told.items() if name not in self._decided}

    def look(self, runs: Runs, outputs: Sequence[Output]) -> None:
        """Takes what is too far off in a sample."""
        far = [output for output in outputs if output.broken and output.name not in self._decided]
        own = self._own(runs) if far else {}
        for output in far:
            beside = own.get(output.name)
            if beside is None or not _is_within(output, beside):
                self._decided.add(output.name)
            else:
                self._tell(output, beside)

    def _own(self, runs: Runs) -> Mapping[str, Output]:
        """What float32 itself comes to in the place of the result."""
        plain = self._noise.outputs(runs.feeds)
        if plain is None:
            return {}
        compared = comparison.compare(Runs(runs.feeds, runs.original, plain), "")
        return {output.name: output for output in self._judge([compared])}

    def _tell(self, output: Output, own: Output) -> None:
        known = self._told.get(output.name)
        if known is None or known[0] < _distance(output):
            self._told[output.name] = _distance(output), _said(output, own)


def without(verdict: Verdict, why: Mapping[str, str]) -> Verdict:
    """The verdict without judgement on these outputs, which says so."""
    far = {output.name for output in verdict.outputs if output.broken and output.name in why}
    outputs = (
        replace(output, broken=(), is_undecided=True) if output.name in far else output
        for output in verdict.outputs
    )
    told = tuple(f"{name}: {said}" for name, said in why.items() if name in far)
    return replace(verdict, outputs=tuple(outputs), unproven=(*verdict.unproven, *told))


def _is_within(output: Output, own: Output) -> bool:
    """Whether a result is about as far off as float32 is from itself; never where it loses a value."""
    if output.metrics.non_finite:
        return False
    return _distance(output) <= (BEYOND if own.broken else NEAR) * _distance(own)


def _distance(output: Output) -> float:
    """How far an output is off: the share of values that differ where it is not float."""
    if output.error is not None:
        return output.error
    return 1.0 - (1.0 if output.metrics.agreement is None else output.metrics.agreement)


def _said(output: Output, own: Output) -> str:
    by = f"{own.error:.3g}" if own.error is not None else f"{_distance(own):.1%} of its values"
    return (
        f"{' and '.join(output.broken)}, but float32 itself differs by {by} when it is optimised differently"
    )
