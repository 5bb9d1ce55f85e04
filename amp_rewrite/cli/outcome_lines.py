"""What a job came to beyond its report, in lines: the search, and that nothing became half."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.policy.options import IOTypes
from amp_rewrite.rewriting.report import Obstacle, SummaryLine
from amp_rewrite.tuning import tune
from amp_rewrite.tuning.repair import Outcome


def lines(outcome: Outcome, io: IOTypes) -> Iterator[SummaryLine]:
    """The line of the search, where one was needed, and why nothing became half, where that is so."""
    yield from search_lines(outcome)
    if outcome.result.report.obstacle is not None:
        yield SummaryLine("result", without_half(outcome, io), is_whole=True)


def search_lines(outcome: Outcome) -> Iterator[SummaryLine]:
    """The line of the search, where one was needed."""
    tuned = outcome.tuned
    if tuned is not None and tuned.is_met and not outcome.is_tuned:
        yield SummaryLine("search", tune.not_taken(tuned))
    else:
        yield from tune.lines(tuned, outcome.result.report)


def without_half(outcome: Outcome, io: IOTypes, model: str = "the model", result: str = "the result") -> str:
    """That nothing became half, what the result is then, and the largest reason."""
    report = outcome.result.report
    obstacle = report.obstacle
    assert obstacle is not None, "nothing became half"
    if obstacle.already:
        rest = f"; the rest stays as it is: {obstacle.why}" if obstacle.why else ""
        left = f"{result} is a copy" if result != model else "no file was written (-o FILE writes a copy)"
        return f"{model} has {report.half} already, and {left}{rest}"
    copied = "is a copy" if result != model else "stays as it is"
    same = "computes what the model does" if report.changed else copied
    borders = "; --io half has no effect then" if io is IOTypes.HALF and not report.changed else ""
    return f"nothing became {report.half}: {result} {same}, because {_why(outcome, obstacle)}{borders}"


def _why(outcome: Outcome, obstacle: Obstacle) -> str:
    report = outcome.result.report
    if outcome.is_tuned and outcome.tuned is not None and outcome.tuned.is_float32:
        return "float32 is the best plan within the bounds (see search)"
    if report.gated:
        return f"--gate asks for that where {report.half} does not pay"
    return obstacle.why or "nothing in it computes in float32"
