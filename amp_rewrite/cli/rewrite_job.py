"""The main job on one file: rewrite, compare, and once more where observed values keep more in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from amp_rewrite import pipeline
from amp_rewrite.analysis.faint_outputs import Faint
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.cli import tried_flags, tuning_step
from amp_rewrite.cli.comparison_flags import ComparisonFlags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.input_flags import naming_sizes
from amp_rewrite.cli.outside_ranges import GivenInputs
from amp_rewrite.cli.progress import counting, tell
from amp_rewrite.cli.tuning_step import Tuning
from amp_rewrite.errors import (
    AmpRewriteError,
    FeedError,
    MissingPackageError,
    ModelError,
    OutputError,
    ThreadError,
    TimeLimitError,
)
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.model import loading, output_paths, writing
from amp_rewrite.pipeline import Result
from amp_rewrite.policy.options import ExternalData, Level, Options
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewrite_and_verify import Callbacks, ObservePolicy, Outcome, Verification, rewrite_and_verify
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.running import emulation, run_arguments, sessions
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.inputs.trials import of_source
from amp_rewrite.running.observation import observe
from amp_rewrite.running.sessions import Runnable
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning.tuned import Tuned

CANNOT_RUN = (MissingPackageError, ModelError, FeedError, OutputError, ThreadError, TimeLimitError)
"""What can keep a model from being run here; it is reported, and the rewrite stands."""


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """What to rewrite, how, and where to; what to compare it with, and on which inputs.

    `original` is the model as it was, or why there is nothing to compare with; None when no comparison was
    asked for. `seen` is what was observed of the model's values before; None where nothing was. With
    `required` a result that did not change is compared as well, and with `needs_half` one without half fails.
    `judged` grows by the verdict of each comparison, and `given` by the samples that files have.
    """

    model: Path
    original: Runnable | AmpRewriteError | None
    options: Options
    replay: SavedPlan | None
    seen: Observed | None
    output: Path | None
    in_place: bool
    data: Data
    comparing: ComparisonFlags
    required: bool
    limit: TimeLimit
    on_plan: Callable[[Analysis], None]
    progress: Progress | None
    tuning: Tuning
    needs_half: bool = False
    judged: list[Verdict] = field(default_factory=list[Verdict])
    given: GivenInputs = field(default_factory=GivenInputs)

    def run(self, policy: ObservePolicy) -> Outcome:
        """Rewrites and compares; raises as `pipeline.rewrite`, and with ALWAYS as `observe`.

        Raises as well, before anything is written, what keeps a required comparison from being made.
        """
        if self.required and isinstance(self.original, AmpRewriteError):
            raise self.original
        self._refuse_bad_data()
        outcome = self._done(policy)
        if self.in_place:
            return outcome

        def again(options: Options, output: Path) -> Outcome:
            """Compared even where nothing changed."""
            tell(self.progress, "try")
            job = replace(self, options=options, output=output, required=True, progress=None, judged=[])
            freed = self.options.level is Level.UNSAFE_FORCE_ALL is not options.level
            return replace(job, on_plan=lambda _: None)._done(ObservePolicy.ON_FAILURE if freed else policy)

        may_try = self.replay is None and outcome.tuned is None
        return tried_flags.with_tried(outcome, self.options, again if may_try else None)

    def _done(self, policy: ObservePolicy) -> Outcome:
        outcome = rewrite_and_verify(self._steps(policy), self.options.half, policy, self._known)
        return self.with_blame(outcome, self.comparing)

    def _steps(self, policy: ObservePolicy) -> Callbacks:
        look = self._observe if policy is ObservePolicy.ALWAYS else self.observe_if_possible
        unfreed = None
        if self.replay is None and self.options.free:
            unfreed = replace(self, options=replace(self.options, free=False))._steps(policy)
        return Callbacks(self._rewrite, self._compare, look, self._tune, unfreed)

    def _refuse_bad_data(self) -> None:
        """FeedError, before anything is written, for inputs that were asked for and cannot be had.

        Every sample in files is read once for that, and none is kept.
        """
        if not isinstance(self.original, Runnable):
            return
        if self.data.paths:
            for sample in feeds.feeds(self.original, self.data):
                self.given.add(sample)
        elif self.data.dims:
            next(feeds.feeds(self.original, self.data), None)

    def plan(self, policy: ObservePolicy) -> Analysis:
        """Decides, and stops there; raises as `pipeline.analyze`, and with ALWAYS as `observe`."""
        seen = self._observe() if policy is ObservePolicy.ALWAYS else self._known
        analysis = pipeline.analyze(
            self.model, self.options, replay=self.replay, seen=seen, progress=self.progress
        )
        self.on_plan(analysis)
        return analysis

    @property
    def _known(self) -> Seen:
        return {} if self.seen is None else self.seen

    def _observe(self) -> Seen:
        """What was observed before, with what the samples of the comparison show."""
        tell(self.progress, "observe")
        # with --in-place the file may hold the result by now
        model = self.original if isinstance(self.original, onnx.ModelProto) else self.model
        with naming_sizes(model, self.data), self.limit.running():
            data = self._seen_data()
            source, libraries = feeds.input_source(data), self.comparing.libraries
            count = counting(self.progress, len(source.files) or data.samples)
            found = observe(
                model, feeds.feeds(model, data), inputs=source, on_sample=count, custom_ops=libraries
            )
        return found if self.seen is None else self.seen.merge(found)

    def _seen_data(self) -> Data:
        """The data of the last comparison, which may have chosen the range of synthetic images."""
        return of_source(self.data, self.judged[-1].inputs) if self.judged else self.data

    def observe_if_possible(self) -> Seen:
        """What samples show of values, with what was observed before; that alone where nothing runs."""
        try:
            return self._observe()
        except CANNOT_RUN:
            return self._known

    def _tune(self, failed: Result[Any], seen: Seen, faint: Faint) -> Tuned | None:
        """A plan that was tuned on the samples of the last comparison; None where none can be, or need be."""
        model = self.original if isinstance(self.original, onnx.ModelProto) else self.model
        if self.replay is not None or failed.report.size_before > self.tuning.largest:
            return None
        tell(self.progress, "tune")
        samples = feeds.feeds(model, self._seen_data())
        try:
            with self.limit.running():
                return self.tuning.run(model, samples, self.options, self.comparing, seen, faint)
        except CANNOT_RUN:
            return None

    def _rewrite(self, seen: Seen, faint: Faint, plan: SavedPlan | None) -> Result[Any]:
        """The rewrite; the error for a result that cannot be written to its default path names -o."""
        try:
            return self._write(seen, faint, plan)
        except OutputError as error:
            default = output_paths.default(self.model, self.options.half)
            if self.output or self.in_place or error.where != str(default):
                raise
            remedy = "choose another place with -o"
            raise OutputError(error.problem, where=error.where, remedy=remedy) from error

    def _write(self, seen: Seen, faint: Faint, plan: SavedPlan | None) -> Result[Any]:
        overwritten = (
            self.in_place and isinstance(self.original, onnx.ModelProto) and bool(seen or self.judged)
        )
        asked = tuning_step.beside_a_plan(self.options) if plan else self.options
        result = pipeline.rewrite(
            self.original if overwritten else self.model,
            replace(asked, external_data=ExternalData()) if overwritten else asked,
            output=self.output,
            in_place=self.in_place and not overwritten,
            replay=plan or self.replay,
            seen=seen,
            faint=faint,
            on_plan=self.on_plan,
            progress=self.progress,
        )
        report = result.report
        told = (*map(in_flags, report.warnings), *self.given.warnings(report.ranges, seen))
        result = replace(result, report=replace(report, warnings=told))
        if not overwritten:
            return result
        if result.report.changed:
            writing.save(loading.load(result.model), self.model, self.options.external_data)
        else:
            staging.write(result.model.SerializeToString(), self.model)
        return replace(result, model=self.model)

    def _compare(self, result: Result[Any]) -> Verification:
        if self.original is None:
            return None
        if isinstance(self.original, AmpRewriteError):
            return self.original if result.report.changed or self.required else None
        if not (result.report.changed or self.required):
            return self._refusal(self.original)
        tell(self.progress, "verify")
        try:
            with self.limit.running():
                verdict = self._as_target(self.comparing).verdict(
                    self.original, result.model, self.data, self.options.io, self.progress
                )
        except CANNOT_RUN as error:
            return error
        self.judged.append(verdict)
        return verdict

    def _refusal(self, original: Runnable) -> ModelError | None:
        """Returns why onnxruntime refuses an original that stays as it is; None where it does not."""
        try:
            with self.limit.running():
                device = sessions.reference(run_arguments.device(self.comparing.provider))
                with emulation.reference(original, device, self.comparing.libraries):
                    return None
        except ModelError as error:
            return error
        except CANNOT_RUN:
            return None

    def _as_target(self, comparing: ComparisonFlags) -> ComparisonFlags:
        """A comparison that emulates sums as the target does them."""
        return replace(comparing, accumulate=self.options.target.accumulate)

    def with_blame(self, outcome: Outcome, comparing: ComparisonFlags) -> Outcome:
        """The outcome with the blame of its verdict, as `comparing` asks for it, where there can be one."""
        verdict = outcome.verification
        if not isinstance(verdict, Verdict) or not isinstance(self.original, Runnable):
            return outcome
        try:
            with self.limit.running():
                blamed = self._as_target(comparing).with_blame(
                    verdict, self.original, outcome.result.model, self.data
                )
        except CANNOT_RUN:
            return outcome
        return replace(outcome, verification=blamed)
