"""`amp-rewrite tune MODEL`: search for the fastest plan within an error bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.decisions import DecisionRequest, TuneDecisions
from amp_rewrite.cli.flags import PATH, Record, command, flag
from amp_rewrite.cli.output_files import TuneFiles, WritingCommand
from amp_rewrite.cli.records import ComparisonFlags, Inputs, Limit, Printing, Workers, quantity
from amp_rewrite.cli.rewrite_job import job_of
from amp_rewrite.cli.rewrite_output import carry_out
from amp_rewrite.conversion import Tuning
from amp_rewrite.errors import OptionError
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning.comparing import Judging
from amp_rewrite.tuning.search import Prefer

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class SearchFlags(Record, title="The search", argument="tuning"):
    """The settings of a search; the command gets a `Tuning`."""

    prefer: str = flag(
        "--prefer",
        "What to prefer among plans within the error: the least predicted time, or the most FLOPs in half.",
        values=tuple(prefer.value for prefer in Prefer),
        default=Prefer.TIME.value,
    )
    budget: str | None = flag(
        "--budget TIME",
        "How long to search, such as 30s or 5m; the best plan by then is used. If not given, the search "
        "takes a number of runs that depends on the model alone.",
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return the settings; raises OptionError for a budget that is no duration, such as 120s or 2m."""
        text, seconds = values["budget"], None
        if text is not None and not (seconds := quantity(text, _UNITS)):
            remedy = "write it as in --budget 120s or --budget 5m"
            raise OptionError(f"--budget {text} is no time above zero", remedy=remedy)
        return Tuning(seconds, Prefer(values["prefer"]), float("inf"), is_requested=True)


@command(
    TuneFiles,
    SearchFlags,
    Workers,
    TuneDecisions,
    Inputs,
    ComparisonFlags,
    Limit,
    Printing,
    kind=WritingCommand,
)
@click.argument("model", type=PATH)
def tune(
    model: Path,
    files: TuneFiles,
    tuning: Tuning,
    workers: Workers,
    asked: DecisionRequest,
    data: Data,
    judging: Judging,
    limit: TimeLimit,
    printing: Printing,
) -> None:
    """Find the fastest plan for MODEL that stays within an error.

    The error of any output is bounded by --tolerance error=BOUND: 0.01 if not given, 0.08 in bfloat16. The
    plan is applied, and the result compared. If the default plan is good enough, it is used; otherwise a
    search runs the model in float32 with half emulated, on the given inputs. Exit code 1 when no plan within
    the error was found; the closest one is still written.
    """
    job = job_of(model, files, asked, data, judging, limit, printing, required=True)
    with job.running() as running_job, workers.opened() as executor:
        show = carry_out(replace(running_job, tuning=replace(tuning, executor=executor)))
    show()
