"""The main job on one file: rewrite, compare, and once more where looking at the values helps."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from amp_rewrite import pipeline
from amp_rewrite.analysis.observed import Observed
from amp_rewrite.cli.feed_flags import naming_sizes
from amp_rewrite.cli.flag_words import in_flags
from amp_rewrite.cli.judging import Judging
from amp_rewrite.cli.progress import tell
from amp_rewrite.deciding import Analysis
from amp_rewrite.errors import (
    AmpRewriteError,
    FeedError,
    MissingPackageError,
    ModelError,
    OutputError,
    ThreadError,
    TimeLimitError,
)
from amp_rewrite.model import loading, output_paths, writing
from amp_rewrite.pipeline import Result
from amp_rewrite.policy.options import ExternalData, Options
from amp_rewrite.process.stoppable import Limit
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.reporting.page import Evidence
from amp_rewrite.rewrite_and_verify import Judged, Looking, Proof, Steps, prove
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.running import latency
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.observation import observe
from amp_rewrite.running.runners import Subject
from amp_rewrite.running.sessions import Runnable
from amp_rewrite.running.verification import Verdict

NOTHING_CHANGED = "nothing changed"

_UNRUN = (MissingPackageError, ModelError, FeedError, OutputError, ThreadError, TimeLimitError)
"""What can keep a model from being run here; that is told, and the rewrite stands."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to rewrite, how, and where to; what to compare it with, and on which inputs.

    `original` is the model as it was, or why there is nothing to compare with; None when nobody asked. With
    `required` a result that did not change is compared as well.
    """

    model: Path
    original: Runnable | AmpRewriteError | None
    options: Options
    replay: SavedPlan | None
    output: Path | None
    in_place: bool
    data: Data
    judging: Judging
    required: bool
    limit: Limit
    on_plan: Callable[[Analysis], None] | None
    progress: Progress | None

    def run(self, looking: Looking) -> Proof:
        """Does it; raises what `pipeline.rewrite` raises, and what `observe` does where that is asked for.

        What keeps a comparison from being made that is required, and is known before, is raised as well.
        """
        if self.required and isinstance(self.original, AmpRewriteError):
            raise self.original
        self._refuse_bad_data()
        look = self._observe if looking is Looking.ALWAYS else self._observe_if_possible
        proof = prove(Steps(self._rewrite, self._judge, look), self.options.half, looking)
        return replace(proof, judged=self._with_blame(proof))

    def _refuse_bad_data(self) -> None:
        """FeedError, before anything is written, for inputs that were asked for and cannot be had.

        Every sample of files is read once for that, and none is kept.
        """
        if not isinstance(self.original, Runnable):
            return
        samples = feeds.feeds(self.original, self.data) if self.data.paths or self.data.dims else iter(())
        for _ in samples if self.data.paths else itertools.islice(samples, 1):
            pass

    def plan(self, looking: Looking) -> Analysis:
        """Decides, and stops there; raises what `pipeline.analyze` and, where it looks, `observe` raise."""
        seen = self._observe() if looking is Looking.ALWAYS else {}
        made = pipeline.analyze(
            self.model, self.options, replay=self.replay, seen=seen, progress=self.progress
        )
        if self.on_plan is not None:
            self.on_plan(made)
        return made

    def evidence(self, proof: Proof, *, timed: bool) -> Evidence:
        """What the runs have shown, and the magnitudes of the original's values."""
        bench = self._time(proof.result) if timed else None
        if not isinstance(proof.judged, Verdict):
            return Evidence(unverified=self._untold(proof.judged), bench=bench)
        return Evidence(proof.judged, seen=self._observe_if_possible(), bench=bench)

    def not_verified(self, judged: Judged) -> str:
        """Why the result is not known to do what the model does; empty where it is."""
        if isinstance(judged, Verdict):
            return "; ".join(judged.faults)
        if judged is not None:
            return in_flags(judged)
        return "--no-verify was given" if self.original is None else NOTHING_CHANGED

    def _untold(self, judged: AmpRewriteError | None) -> str:
        reason = self.not_verified(judged)
        return reason if reason == NOTHING_CHANGED else f"not compared with the original: {reason}"

    def _time(self, result: Result[Any]) -> Bench | None:
        """Both models as `bench` times them at its defaults; None where they cannot be run."""
        tell(self.progress, "measure")
        subjects = [Subject(str(path), path) for path in (self.model, Path(result.model))]
        try:
            with self.limit.running():
                samples = list(feeds.feeds(self.model, self.data))
                return latency.measure(subjects, samples, latency.device_for(None))
        except _UNRUN:
            return None

    def _observe(self) -> Observed:
        tell(self.progress, "observe")
        model: Runnable = self.model
        if isinstance(self.original, onnx.ModelProto):
            model = self.original  # the file may hold the result by now
        with naming_sizes(model, self.data), self.limit.running():
            return observe(model, feeds.feeds(model, self.data))

    def _observe_if_possible(self) -> Observed:
        try:
            return self._observe()
        except _UNRUN:
            return {}

    def _rewrite(self, seen: Observed) -> Result[Any]:
        with self._naming_output():
            return self._write(seen)

    def _write(self, seen: Observed) -> Result[Any]:
        overwritten = self.in_place and isinstance(self.original, onnx.ModelProto) and seen
        result = pipeline.rewrite(
            self.original if overwritten else self.model,
            replace(self.options, external_data=ExternalData()) if overwritten else self.options,
            output=self.output,
            in_place=self.in_place and not overwritten,
            replay=self.replay,
            seen=seen,
            on_plan=self.on_plan,
            progress=self.progress,
        )
        if not overwritten:
            return result
        writing.save(loading.load(result.model), self.model, self.options.external_data)
        return replace(result, model=self.model)

    @contextlib.contextmanager
    def _naming_output(self) -> Generator[None]:
        """Has the error for a result that cannot stand at its default place name the flag for another one."""
        try:
            yield
        except OutputError as error:
            if self.output or self.in_place or error.where != str(self._default()):
                raise
            raise OutputError(
                error.problem, where=error.where, remedy="choose another place with -o"
            ) from error

    def _default(self) -> Path:
        options = self.replay.over(self.options) if self.replay else self.options
        return output_paths.default(self.model, options.half)

    def _judge(self, result: Result[Any]) -> Judged:
        if self.original is None or not (result.report.changed or self.required):
            return None
        if isinstance(self.original, AmpRewriteError):
            return self.original
        tell(self.progress, "verify")
        try:
            with self.limit.running():
                return self.judging.judge(self.original, result.model, self.data, self.options.io)
        except _UNRUN as error:
            return error

    def _with_blame(self, proof: Proof) -> Judged:
        if not isinstance(proof.judged, Verdict) or not isinstance(self.original, Runnable):
            return proof.judged
        try:
            with self.limit.running():
                return self.judging.with_blame(proof.judged, self.original, proof.result.model, self.data)
        except _UNRUN:
            return proof.judged


def original(model: Path, *, in_place: bool) -> Runnable | AmpRewriteError:
    """What to compare the result with: what is overwritten is read before."""
    if not in_place:
        return model
    if loading.load(model).external:
        return ModelError(
            "--in-place replaces a model with external data",
            remedy="write it beside with -o, and compare the two",
        )
    return loading.load_proto(model)
