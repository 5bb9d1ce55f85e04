"""`amp-rewrite tune MODEL`: search for the fastest plan within an error bound."""

from __future__ import annotations

from dataclasses import replace

import click

from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, choice, executor_flag, opened, quantity
from amp_rewrite.cli.rewrite_job import RewriteJob, Tuning, job_flags
from amp_rewrite.cli.rewrite_output import carry_out
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.options import Level
from amp_rewrite.tuning.search import Prefer

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _seconds(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Parse a duration such as 120s or 2m; None without one."""
    if text is None:
        return None
    seconds = quantity(text, _UNITS)
    if not seconds:
        raise OptionError(
            f"--budget {text} is no time above zero", remedy="write it as in --budget 120s or --budget 5m"
        )
    return seconds


@click.command(cls=WritingCommand)
@click.argument("model", type=PATH)
@choice(
    "--prefer",
    [prefer.value for prefer in Prefer],
    "What to prefer among plans within the error: the least predicted time, or the most FLOPs in half.",
    Prefer.TIME.value,
)
@click.option(
    "--budget",
    metavar="TIME",
    callback=_seconds,
    help="How long to search, such as 30s or 5m; the best plan by then is used. If not given, the search "
    "takes a number of runs that depends on the model alone.",
)
@executor_flag("What runs the samples of the search")
@job_flags("Write the plan as JSON, for amp-rewrite MODEL --plan FILE.", "external_data", takes_plan=False)
def tune(job: RewriteJob, prefer: str, budget: float | None, executor: str | None) -> None:
    """Find the fastest plan for MODEL that stays within an error.

    The error of any output is bounded by --tolerance error=BOUND: 0.01 if not given, 0.08 in bfloat16. The
    plan is applied, and the result compared. If the default plan is good enough, it is used; otherwise a
    search runs the model in float32 with half emulated, on the given inputs. Exit code 1 when no plan within
    the error was found; the closest one is still written.
    """
    if job.options.level is Level.UNSAFE_FORCE_ALL:
        raise OptionError(
            f"--level {job.options.level.value} decides all, and leaves nothing to tune",
            remedy="leave out --level",
        )
    job = replace(job, required=True)
    with job.running() as running_job, opened(executor) as workers:
        tuning = Tuning(budget, Prefer(prefer), float("inf"), workers, is_requested=True)
        show = carry_out(replace(running_job, tuning=tuning))
    show()
