"""What a job came to beyond its report, in lines: the search, and that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.policy.choices import IOTypes
from amp_rewrite.repair import Outcome
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.report import Report
from amp_rewrite.tuning.tuned import Tuned


def lines(outcome: Outcome, io: IOTypes) -> Iterator[SummaryLine]:
    """The line of the search, where one was needed, and why nothing changed, where that is so: not even the
    inputs and outputs, whatever `io` asks.
    """
    report, tuned = outcome.result.report, outcome.tuned
    if tuned is not None and tuned.is_met and not outcome.is_tuned:
        yield SummaryLine("search", not_taken(tuned))
    else:
        yield from search_lines(tuned, report)
    if not report.changed:
        yield SummaryLine("result", f"nothing changed: {_why(outcome, report, io)}")


def _why(outcome: Outcome, report: Report, io: IOTypes) -> str:
    borders = ", so --io half has no effect on inputs and outputs" if io is IOTypes.HALF else ""
    if outcome.is_tuned and outcome.tuned is not None and outcome.tuned.is_float32:
        return f"the result is the original (see search){borders}"
    if report.gated:
        return f"the result is the original, as --gate asks where {report.half} does not pay{borders}"
    return f"no node became {report.half}, and the result computes what the original does"


def search_lines(tuned: Tuned | None, report: Report) -> Iterator[SummaryLine]:
    """What was found for a result, and what it costs; nothing where no search was needed."""
    if tuned is not None:
        yield SummaryLine("search", f"{_found(tuned, report)} ({_effort(tuned)})")


def not_taken(tuned: Tuned) -> str:
    """That a plan passed, and gives up more than inputs that nobody gave may decide."""
    before = "more than a tenth of the predicted speed or of the FLOPs in half"
    lost = "all that is half" if tuned.is_float32 else before
    return f"the plan within {_target(tuned)} gives up {lost}, too much for made-up inputs ({_effort(tuned)})"


def _found(tuned: Tuned, report: Report) -> str:
    if tuned.is_below_noise:
        off = f"float32 itself differs by {tuned.noise:.1e} when it is optimised differently"
        return f"{off}, so no plan is within {_target(tuned)}"
    if not tuned.sites and not tuned.is_met:
        return "nothing but inputs and outputs is half"
    if tuned.is_float32:
        return f"{_slower(tuned) if report.gated else _none(tuned)}, so the model stays as it is"
    if tuned.is_met:
        first = tuned.walked[0]
        before = f", with an error of {first.error:.1e}" if tuned.bound == "error" else ""
        return (
            f"within {_target(tuned)}, predicted {tuned.speedup:.2f} times as fast as float32; "
            f"{first.speedup:.2f} times before the search{before}"
        )
    if report.sensitive:
        return f"no plan was found within {_target(tuned)}; the nearest has {_reached(tuned)}"
    return f"no plan was found that is nearer, with at most {_target(tuned)} as the target"


def _slower(tuned: Tuned) -> str:
    """That half does not pay within the target, with the fastest plan that was measured there."""
    near = _near(tuned)
    if not near:
        return _none(tuned)
    if max(near) > 1:  # as emulated, and not as it is
        return f"no plan within {_target(tuned)} was found that is predicted to be faster than float32"
    fastest = f"the fastest plan that was found within {_target(tuned)}"
    return f"float32 is fastest: {fastest} is predicted to be {max(near):.2f} times as fast"


def _none(tuned: Tuned) -> str:
    """That nothing in half passes; where something is within the target, it fails for another bound."""
    found = "nothing in half was found"
    return f"{found} that passes" if _near(tuned) else f"{found} within {_target(tuned)}"


def _near(tuned: Tuned) -> list[float]:
    """The speeds of what has something in half and was measured within the target."""
    return [point.speedup for point in tuned.walked if point.half and point.error <= tuned.target]


def _target(tuned: Tuned) -> str:
    """The bound, by its name unless it is that of the error."""
    bound = f"{tuned.target:.1e}" if tuned.target else "0"
    return bound if tuned.bound == "error" else f"{tuned.bound} {bound}"


def _reached(tuned: Tuned) -> str:
    if tuned.bound == "error":
        return f"an error of {tuned.verdict.error:.1e}"
    return f"{tuned.bound} {max(output.metrics.relative_l2 for output in tuned.verdict.outputs):.1e}"


def _effort(tuned: Tuned) -> str:
    return f"{plural(tuned.runs, 'run')} on {tuned.sites:,} values that half rounds"
