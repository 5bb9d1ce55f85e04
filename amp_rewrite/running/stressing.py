"""Changes of synthetic samples on which a result that passes would fail."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.running.comparison import RewrittenRunError
from amp_rewrite.running.inputs import stress
from amp_rewrite.running.inputs.feeds import Longer
from amp_rewrite.running.judging import Pair, Undecided
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.verdict import FailedStress, Output, Verdict, distance


def find_failed(pair: Pair, sample: Feeds, free: frozenset[str]) -> Iterator[FailedStress]:
    """Yield the changes of a sample with which the result violates a bound beyond float32 noise; stop if a
    run fails or the time limit is reached.
    """
    for variation, copy in stress.copies(sample, free):
        outputs = _judged_copy(pair, copy)
        if outputs is None:
            return
        for failed in _failure(variation.change, outputs):
            yield replace(failed, warns=variation.warns, feeds=copy)


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
