"""Outputs of the original that change from run to run: no comparison of them proves anything.

Most models that draw random numbers are made to draw the same in every run (`running.repeatable`). What is
left are operators that draw at opsets without what that takes, and those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.running import comparison, sessions
from amp_rewrite.running.comparison import Runs, SampleComparison
from amp_rewrite.running.verdict import Output, Verdict

Judge = Callable[[Sequence[SampleComparison]], Sequence[Output]]
"""The outputs of comparisons, with the bounds that they violate."""


def outputs(before: Any, runs: Runs, judge: Judge) -> frozenset[str]:
    """The names of the outputs of which another run on the same sample is too far from the first itself.

    None where it cannot run once more: no time may be left.
    """
    try:
        again = sessions.run_session(before, runs.feeds)
    except AmpRewriteError:
        return frozenset()
    compared = comparison.compare(Runs(runs.feeds, runs.original, again), "")
    return frozenset(output.name for output in judge([compared]) if output.broken)


def without(verdict: Verdict, names: Collection[str]) -> Verdict:
    """The verdict without judgement on these outputs, which says so."""
    kept = (_not_compared(output) if output.name in names else output for output in verdict.outputs)
    told = (f"{output.name}: {_WHY}" for output in verdict.outputs if output.name in names)
    return replace(
        verdict, outputs=tuple(kept), unproven=(*verdict.unproven, *told), changing=tuple(sorted(names))
    )


_WHY = (
    "not compared: another run of the original differs as much, as it draws random numbers; export it for "
    "inference, or at opset 15 or later"
)


def _not_compared(output: Output) -> Output:
    metrics = replace(output.metrics, compared=0)
    return replace(output, metrics=metrics, broken=(), error=None, floor=None, by_sample=())
