"""The comparison of a result with its model: what it is judged by, and the errors that prevent it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from amp_rewrite.errors import (
    AmpRewriteError,
    FeedError,
    MissingPackageError,
    ModelError,
    OutputError,
    ResourceError,
    RunError,
    TimeLimitError,
)
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress, counted, tell
from amp_rewrite.running import sessions, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data, of_source, trials
from amp_rewrite.running.sessions import Device, Libraries, Runnable
from amp_rewrite.running.tolerances import Metric, Tolerances
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning import sensitivity

T = TypeVar("T")

CANNOT_RUN = (MissingPackageError, ModelError, FeedError, OutputError, ResourceError, TimeLimitError)
"""The errors that keep a model from being run here; they are reported, and the rewrite stands."""


def attempted(limit: TimeLimit, work: Callable[[], T]) -> T | AmpRewriteError:
    """Return the result of running models within a limit, or the error that keeps them from being run."""
    try:
        with limit.running():
            return work()
    except CANNOT_RUN as error:
        return error
    except MemoryError as error:  # of NumPy
        return ResourceError(f"the memory does not suffice ({error or 'MemoryError'})")


@contextlib.contextmanager
def naming_sizes(model: Runnable, data: Data) -> Generator[None]:
    """Add the sizes that `Data.dims` could change to the error of a run that fails on synthetic inputs."""
    try:
        yield
    except RunError as error:
        sizes = {} if data.is_given else feeds.open_sizes(model, data)
        if not sizes:
            raise
        assignments = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        fields = " ".join(f'`Data.dims["{name}"]`' for name in sizes)
        remedy = (
            f"its synthetic inputs have {assignments}: give other sizes with {fields}, or inputs with "
            "`Data.paths`"
        )
        raise RunError(error.problem, where=error.where, remedy=remedy) from error


@dataclass(frozen=True, slots=True)
class Judging:
    """How a result is compared: the bounds and metrics of a verdict, where models run (None: on CUDA where
    that works), the libraries of custom operators, the steps of a sequence, and whether nodes are ranked by
    their share of the error (`per_node`) even for a good verdict.
    """

    bounds: Tolerances = field(default_factory=Tolerances)
    metrics: tuple[Metric, ...] = ()
    device: Device | str | None = None
    libraries: Libraries = ()
    steps: int = 1
    per_node: bool = False

    def refuse_missing(self) -> None:
        """Raise OptionError or MissingPackageError, before any work, for a faulty device or library."""
        if self.device is not None:
            sessions.check_device(self.device)
        sessions.check_libraries(self.libraries)

    def verdict(
        self,
        original: Runnable,
        rewritten: ModelSource,
        data: Data,
        io: IOTypes = IOTypes.KEEP,
        progress: Progress | None = None,
    ) -> Verdict:
        """Return the verdict on all samples; `progress` shows the steps, and how many samples are done.

        Raises MissingPackageError, ModelError and FeedError when the models cannot be run.
        """
        with naming_sizes(original, data):
            shown = (
                replace(trial, samples=counted(progress, trial.samples, data.count_samples(trial.source)))
                for trial in trials(original, data)
            )
            return verification.verify_trials(
                original,
                rewritten,
                tuple(shown),
                self.bounds,
                self.metrics,
                io=io,
                device=self.device,
                libraries=self.libraries,
                on_step=lambda step: tell(progress, f"verify: {step}"),
            )

    def with_blame(
        self,
        verdict: Verdict,
        original: Runnable,
        rewritten: ModelSource,
        data: Data,
        *,
        for_page: bool = False,
    ) -> Verdict:
        """Attach the blame on the first sample if it is requested or an output exceeds its tolerance, with
        nodes ranked by the error that they add to the outputs; without these errors, which take many runs,
        where a page alone asks.

        Raises as `verdict` does.
        """
        is_ranked = self.per_node or verdict.is_far
        if verdict.blame is not None or not verdict.outputs or not (is_ranked or for_page):
            return verdict
        single = replace(of_source(data, verdict.inputs), steps=1)
        first = next(iter(feeds.feeds(original, single)))
        result = sessions.check_model("rewritten", rewritten)
        by_node = sensitivity.by_node(original, result, first, self.libraries) if is_ranked else None
        blamed = blame(
            original,
            result,
            first,
            effects=by_node,
            device=verdict.device,
            libraries=self.libraries,
            is_advised=is_ranked,
        )
        return replace(verdict, blame=blamed)
