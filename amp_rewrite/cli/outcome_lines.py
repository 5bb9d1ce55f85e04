"""What a job came to beyond its report, in lines: the search, and that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.policy.choices import IOTypes
from amp_rewrite.repair import Outcome
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.report import Report
from amp_rewrite.tuning import tune


def lines(outcome: Outcome, io: IOTypes) -> Iterator[SummaryLine]:
    """The line of the search, where one was needed, and why nothing changed, where that is so: not even the
    inputs and outputs, whatever `io` asks.
    """
    report, tuned = outcome.result.report, outcome.tuned
    if tuned is not None and tuned.is_met and not outcome.is_tuned:
        yield SummaryLine("search", tune.not_taken(tuned))
    else:
        yield from tune.lines(tuned, report)
    if not report.changed:
        yield SummaryLine("result", f"nothing changed: {_why(outcome, report, io)}")


def _why(outcome: Outcome, report: Report, io: IOTypes) -> str:
    borders = ", so --io half has no effect on inputs and outputs" if io is IOTypes.HALF else ""
    if outcome.is_tuned and outcome.tuned is not None and outcome.tuned.is_float32:
        return f"the result is the original (see search){borders}"
    if report.gated:
        return f"the result is the original, as --gate asks where {report.half} does not pay{borders}"
    return f"no node became {report.half}, and the result computes what the original does"
