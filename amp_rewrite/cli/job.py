"""The main job on one file: rewrite, compare, and once more where looking at the values helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from amp_rewrite import model_io, pipeline, writing
from amp_rewrite.analysis import Analysis
from amp_rewrite.cli.judging import Judging
from amp_rewrite.cli.progress import tell
from amp_rewrite.errors import (
    AmpRewriteError,
    FeedError,
    MissingPackageError,
    ModelError,
    OutputError,
    TimeLimitError,
)
from amp_rewrite.observed import Observed
from amp_rewrite.options import ExternalData, Options
from amp_rewrite.pipeline import Result
from amp_rewrite.plan_files import SavedPlan
from amp_rewrite.proving import Judged, Looking, Proof, Steps, prove
from amp_rewrite.reporting.page import Evidence
from amp_rewrite.running import feeds, latency
from amp_rewrite.running.feeds import Data
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.observation import observe
from amp_rewrite.running.runners import Subject
from amp_rewrite.running.sessions import Runnable
from amp_rewrite.running.verification import Verdict
from amp_rewrite.stoppable import Limit
from amp_rewrite.stopwatch import Progress

_UNRUN = (MissingPackageError, ModelError, FeedError, OutputError, TimeLimitError)
"""What can keep a model from being run here; that is told, and the rewrite stands."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to rewrite, how, and where to; what to compare it with, and on which inputs.

    `original` is the model as it was, or why there is nothing to compare with; None when nobody asked.
    """

    model: Path
    original: Runnable | AmpRewriteError | None
    options: Options
    replay: SavedPlan | None
    output: Path | None
    in_place: bool
    data: Data
    judging: Judging
    limit: Limit
    on_plan: Callable[[Analysis], None] | None
    progress: Progress | None

    def run(self, looking: Looking) -> Proof:
        """Does it; raises what `pipeline.rewrite` raises, and what `observe` does where that is asked for."""
        self._refuse_bad_data()
        look = self._observe if looking is Looking.ALWAYS else self._observe_if_possible
        proof = prove(Steps(self._rewrite, self._judge, look), self.options.half, looking)
        return replace(proof, judged=self._with_blame(proof))

    def _refuse_bad_data(self) -> None:
        """FeedError, before anything is written, for inputs that were asked for and cannot be had."""
        asked = self.data.paths or self.data.dims
        if asked and isinstance(self.original, Runnable):
            next(iter(feeds.feeds(self.original, self.data)), None)

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
            return Evidence(unverified=self._unverified(proof.judged), bench=bench)
        return Evidence(proof.judged, seen=self._observe_if_possible(), bench=bench)

    def _unverified(self, judged: AmpRewriteError | None) -> str:
        if judged is not None:
            return f"not compared with the original: {judged}"
        return "not compared with the original" if self.original is None else "nothing changed"

    def _time(self, result: Result) -> Bench | None:
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
        with self.limit.running():
            return observe(model, feeds.feeds(model, self.data))

    def _observe_if_possible(self) -> Observed:
        try:
            return self._observe()
        except _UNRUN:
            return {}

    def _rewrite(self, seen: Observed) -> Result:
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
        writing.save(model_io.load(result.model), self.model, self.options.external_data)
        return replace(result, model=self.model)

    def _judge(self, result: Result) -> Judged:
        if self.original is None or not result.report.changed:
            return None
        if isinstance(self.original, AmpRewriteError):
            return self.original
        tell(self.progress, "verify")
        try:
            with self.limit.running():
                return self.judging.judge(self.original, result.model, self.data, self.options.borders)
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
    if model_io.load(model).external:
        return ModelError(
            "--in-place replaces a model with external data",
            remedy="write it beside with -o, and compare the two",
        )
    return model_io.load_proto(model)
