"""What a job came to beyond its report, in lines: the search, and that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.report import Report
from amp_rewrite.tuning import outcome_text
from amp_rewrite.tuning.tuned import Tuned


def lines(tuned: Tuned | None, report: Report) -> Iterator[SummaryLine]:
    """The line of the search, where one was needed, and why nothing changed, where that is so."""
    yield from outcome_text.lines(tuned, report)
    if not report.changed:
        yield SummaryLine("result", f"nothing changed: {_why(tuned, report)}")


def _why(tuned: Tuned | None, report: Report) -> str:
    if tuned is not None and tuned.is_float32:
        return "the result is the original (see search)"
    if report.gated:
        return f"the result is the original, as --gate asks where {report.half} does not pay"
    return f"no node became {report.half}, and the result computes what the original does"
