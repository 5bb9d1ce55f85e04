"""What a search for a plan came to, as a summary line."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.report import Report
from amp_rewrite.tuning.tune import Tuned


def lines(tuned: Tuned | None, report: Report) -> Iterator[SummaryLine]:
    """What was found for a result, and what it costs; nothing where no search was needed."""
    if tuned is not None:
        yield SummaryLine("search", f"{_found(tuned, report)} ({_effort(tuned)})")


def _found(tuned: Tuned, report: Report) -> str:
    if tuned.is_below_noise:
        off = f"float32 itself differs by {tuned.noise:.1e} where it is optimised in another way"
        return f"{off}, so no plan is within {tuned.target:.1e}"
    if not report.sensitive:
        return f"no plan was found that is nearer, with at most {tuned.target:.1e} as the target"
    more = tuned.seconds / tuned.walked[0].seconds - 1 if tuned.walked[0].seconds else 0.0
    return f"within {tuned.target:.1e} at {more:+.1%} of predicted time"


def _effort(tuned: Tuned) -> str:
    return f"{plural(tuned.runs, 'run')} on {tuned.sites:,} values that half rounds"
