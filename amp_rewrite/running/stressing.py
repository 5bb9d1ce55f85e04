"""Synthetic samples scaled or offset, beyond what normal distributions cover, on which a result may fail."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.running.comparison import RewrittenRunError
from amp_rewrite.running.inputs.feeds import Longer
from amp_rewrite.running.judging import Pair, Undecided
from amp_rewrite.running.sequences import Steps, changed
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.verdict import FailedStress, Output, Verdict, distance


@dataclass(frozen=True, slots=True)
class Stress:
    """A change of synthetic inputs, in words and numbers: each value times `factor`, plus `offset`. The user
    is warned of a failure if it `warns`; a repair insures against each.
    """

    change: str
    factor: float = 1.0
    offset: float = 0.0
    warns: bool = True


STRESSES = (
    Stress("3 times as large", factor=3.0),
    Stress("offset by 100 times their spread", offset=100.0, warns=False),
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


def change(sample: Feeds, stress: Stress, names: Collection[str]) -> Feeds:
    """Return a copy of the sample in which the named inputs are changed."""
    if isinstance(sample, Steps):  # only the first of a sequence has states of ours
        names = [name for name in names if name not in {pair.input for pair in sample.states}]
    return changed(sample, partial(_stressed, stress=stress, names=names))


def _stressed(feeds: Feeds, stress: Stress, names: Collection[str]) -> Feeds:
    values = ((name, np.asarray(feeds[name])) for name in names)
    changes = {name: (value * stress.factor + stress.offset).astype(value.dtype) for name, value in values}
    return {**feeds, **changes}


def find_failed(pair: Pair, sample: Feeds, free: frozenset[str]) -> Iterator[FailedStress]:
    """Yield the changes of a sample with which the result violates a bound beyond float32 noise; stop if a
    run fails or the time limit is reached.
    """
    for stress in STRESSES if free else ():
        copy = change(sample, stress, free)
        outputs = _judged_copy(pair, copy)
        if outputs is None:
            return
        for failed in _failure(stress.change, outputs):
            yield replace(failed, warns=stress.warns, feeds=copy)


def _judged_copy(pair: Pair, copy: Feeds) -> tuple[Output, ...] | None:
    """Return the outputs on another sample, without violations within float32 noise; None if a run fails."""
    try:
        compared = pair.compare(copy, "")
        doubt = Undecided(pair)
        doubt.look(compared)
    except (AmpRewriteError, RewrittenRunError):
        return None
    return tuple(
        replace(each, broken=() if each.name in doubt.why else each.broken) for each in compared.outputs
    )


def _failure(change: str, outputs: Sequence[Output]) -> Iterator[FailedStress]:
    far = [output for output in outputs if output.broken]
    if far:
        loses = any(output.metrics.non_finite for output in far)
        yield FailedStress(change, max(map(distance, far)), loses)


def find_failed_length(pair: Pair, verdict: Verdict, longer: Iterable[Longer]) -> Iterator[FailedStress]:
    """Yield the open sizes with which the result violates a bound, or would at twice the length if the error
    went on to grow; none if float32 does not run on them.
    """
    for copy in longer:
        outputs = _judged_copy(pair, copy.feeds)
        if outputs is not None:
            grown = [_grown(each, verdict, math.log2(copy.times)) for each in outputs]
            measured = list(_failure(f"as long as {copy.in_words()}", outputs))
            yield from measured or _failure(f"as long as {copy.in_words(2)}, extrapolated", grown)
            return


def _grown(output: Output, verdict: Verdict, doublings: float) -> Output:
    """Return an output with its error at twice the length: it grows as a power of the length."""
    before = next((each.error for each in verdict.outputs if each.name == output.name), None)
    if not before or output.error is None or output.limit is None or output.error <= before:
        return output
    error = output.error * (output.error / before) ** (1 / doublings)
    return replace(output, error=error, broken=(*output.broken, *["error"] * (error > output.limit)))
