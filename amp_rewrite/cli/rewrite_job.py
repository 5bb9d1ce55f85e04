"""The flags of a rewrite, the job that they specify, and the files that are written beside its result."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amp_rewrite.cli.comparison_flags import comparison_flags, in_flags_of
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flag_builders import (
    STANDARD_OUTPUT,
    Command,
    Flag,
    grouped,
    json_flag,
    output_flag,
    quiet_flag,
    require_flag,
    verbose_flag,
    written_file,
)
from amp_rewrite.cli.html_page import html_flag
from amp_rewrite.cli.input_flags import input_flags, timeout_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.conversion import Conversion
from amp_rewrite.placement.placement import Placement
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.rewriting import result_checks
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning.comparing import Judging
from amp_rewrite.tuning.repair import Outcome


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files that a job writes beside its result; None for those that were not named."""

    report: Path | None
    plan: Path | None
    html: Path | None
    observed: Path | None = None

    @property
    def names(self) -> str:
        """The names of all files, for the user."""
        files = (self.report, self.plan, self.html, self.observed)
        return ", ".join(str(file) for file in files if file and file.name != STANDARD_OUTPUT.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob(Conversion):
    """The conversion of a file by the command, with what else the command does.

    `samples` are to be observed first. With `is_decided` a flag has a say in the decisions. With `needs_half`
    a result without half fails, and with `compiles` one that TensorRT does not compile; `engines` has what it
    makes.
    """

    model: Path
    policy: Policy | None
    files: JobFiles
    needs_half: bool
    is_quiet: bool
    is_verbose: bool
    is_decided: bool = False
    samples: tuple[Path, ...] = ()
    compiles: bool = False
    engines: list[Placement] = field(default_factory=list[Placement])

    @contextlib.contextmanager
    def running(self, samples: Iterable[Path] = ()) -> Generator[RewriteJob]:
        """Yield the job with its progress shown, and open dimensions sized by its inputs or these samples.

        Raises OptionError or MissingPackageError, before any work, for a faulty provider or library.
        """
        self.judging.refuse_missing()
        with result_checks.blaming(lambda: str(self.model)), shown_progress(quiet=self.is_quiet) as progress:
            sizes = feeds.given_sizes(self.model, self.data, samples)
            yield replace(self, options=replace(self.options, dims=sizes), progress=progress)

    def run(self) -> Outcome:
        """Rewrite, compare and repair; fields in messages are flags."""
        outcome = Conversion.run(self)
        report = outcome.result.report
        report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
        outcome = replace(outcome, result=replace(outcome.result, report=report))
        verdict = outcome.verdict
        return outcome if verdict is None else replace(outcome, verification=in_flags_of(verdict))


VERIFY = "verify"
"""The value of `--skip` and `--require` for the comparison of the result with the model."""
REPAIR = "repair"
"""The value of `--skip` for the attempts after a failed comparison."""
ENGINE = "tensorrt"
"""The value of `--require` for a result that TensorRT compiles."""


def job_flags(save_plan: str, *result: str, **settings: Any) -> Flag:
    """Return a decorator that adds the flags of a rewrite to a command and passes it a RewriteJob in `job`.

    `save_plan` is the help of that flag; the others are the arguments of `decision_flags`.
    """
    files = (
        output_flag("MODEL_fp16.onnx (or _bf16)", takes_folder=settings.get("takes_samples", False)),
        written_file("--save-plan", save_plan),
        json_flag("report"),
        html_flag,
        require_flag("half", *((VERIFY, ENGINE) if VERIFY in settings.get("steps", ()) else ())),
        quiet_flag,
        verbose_flag,
    )
    groups = (
        grouped(files, "own", dict),
        decision_flags(*result, **settings),
        input_flags,
        comparison_flags,
        timeout_flag,
    )

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_job(
            *,
            model: Path,
            own: Mapping[str, Any],
            asked: DecisionFlags,
            data: Data,
            judging: Judging,
            limit: TimeLimit,
            **arguments: Any,
        ) -> Any:
            job = RewriteJob(
                model=model,
                options=asked.options,
                replay=asked.replay,
                policy=asked.policy,
                seen=asked.seen,
                data=replace(data, ranges=asked.options.ranges, steps=judging.steps),
                judging=judging,
                limit=limit,
                files=JobFiles(own["json_"], own["save_plan"], own["html"]),
                output=own["output"],
                needs_half="half" in own["require"],
                required=VERIFY in own["require"],
                is_compared=VERIFY not in asked.skipped,
                repairs=asked.replay is None and REPAIR not in asked.skipped,
                compiles=ENGINE in own["require"],
                samples=asked.samples,
                is_decided=asked.decided or asked.replay is not None,
                is_quiet=own["quiet"],
                is_verbose=own["verbose"],
            )
            return command(job=job, **arguments)

        return functools.reduce(lambda command, group: group(command), reversed(groups), with_job)

    return decorate
