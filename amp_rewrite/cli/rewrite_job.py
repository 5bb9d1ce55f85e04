"""The job of a rewrite that the flags of a command specify."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amp_rewrite.cli.decisions import ENGINE, REPAIR, VERIFY, DecisionRequest
from amp_rewrite.cli.fields_as_flags import in_flags, in_flags_of
from amp_rewrite.cli.output_files import ResultFlags
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.records import Printing
from amp_rewrite.conversion import Conversion
from amp_rewrite.placement.placement import Placement
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.rewriting import result_checks
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning.comparing import Judging
from amp_rewrite.tuning.repair import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJob(Conversion):
    """The conversion of a file by the command, with what else the command does.

    `asked` are the decisions of the flags, `files` what is written beside the result; `engines` has what
    TensorRT compiles.
    """

    model: Path
    asked: DecisionRequest
    files: ResultFlags
    printing: Printing
    engines: list[Placement] = field(default_factory=list[Placement])

    @property
    def compiles(self) -> bool:
        """Whether a result that TensorRT does not compile fails."""
        return ENGINE in self.asked.required

    @contextlib.contextmanager
    def running(self, samples: Iterable[Path] = ()) -> Generator[RewriteJob]:
        """Yield the job with its progress shown, and open dimensions sized by its inputs or these samples.

        Raises OptionError or MissingPackageError, before any work, for a faulty provider or library.
        """
        self.judging.refuse_missing()
        quiet = self.printing.quiet
        with result_checks.blaming(lambda: str(self.model)), shown_progress(quiet=quiet) as progress:
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


def job_of(
    model: Path,
    files: ResultFlags,
    asked: DecisionRequest,
    data: Data,
    judging: Judging,
    limit: TimeLimit,
    printing: Printing,
    **more: Any,
) -> RewriteJob:
    """Return the job that the records of a command specify, with `more` fields of it."""
    job = RewriteJob(
        model=model,
        options=asked.options,
        replay=asked.replay,
        seen=asked.seen,
        data=replace(data, ranges=asked.options.ranges, steps=judging.steps),
        judging=judging,
        limit=limit,
        output=files.output,
        force=files.force,
        repairs=asked.replay is None and REPAIR not in asked.skipped,
        asked=asked,
        files=files,
        printing=printing,
        required=VERIFY in asked.required,
        is_compared=VERIFY not in asked.skipped,
    )
    return replace(job, **more)
