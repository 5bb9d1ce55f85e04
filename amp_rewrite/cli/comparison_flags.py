"""The flags of a comparison (`--tolerance`, `--metric`, `--provider`, `--per-node`), and the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amp_rewrite.cli import metric_flags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flag_builders import choice, grouped, repeatable, switch
from amp_rewrite.cli.input_flags import custom_ops_flag, naming_sizes
from amp_rewrite.cli.metric_flags import Judging, metric_flag
from amp_rewrite.cli.progress import counted
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.policy.targets import Accumulation
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.running import run_arguments, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.inputs.trials import Trial, of_source, trials
from amp_rewrite.running.sessions import Runnable
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning import effects

_FLAGS = (
    repeatable(
        "--tolerance",
        "NAME=BOUND",
        "A bound of the verdict, such as error=0.02 or top1=0.99; NAME=none removes one.",
    ),
    metric_flag,
    choice(
        "--provider",
        ["cuda", "cpu", "webgpu"],
        "Where the half model runs: on CUDA, on the CPU (half is emulated), or on WebGPU (real half "
        "arithmetic; with Mesa it needs no GPU). If not given: CUDA where it works, else the CPU.",
    ),
    switch(
        "--per-node",
        "Name the nodes whose rounding adds most to the outputs' error, also for a good verdict.",
    ),
    custom_ops_flag,
)


@dataclass(frozen=True, slots=True)
class ComparisonFlags:
    """What judges a comparison, on what, and whether nodes are blamed even if the verdict is good.

    `accumulate` says how sums of half are emulated: as those of the target. `libraries` are those of custom
    operators.
    """

    judging: Judging
    provider: str | None
    per_node: bool
    accumulate: Accumulation = Accumulation.FLOAT
    libraries: Libraries = ()

    def refuse_missing(self) -> None:
        """OptionError or MissingPackageError, before anything is done, for a provider or a library that does
        not work.
        """
        if self.provider is not None:
            run_arguments.device(self.provider)
        run_arguments.libraries(self.libraries)

    def verdict(
        self,
        original: Runnable,
        rewritten: Runnable,
        data: Data,
        io: IOTypes = IOTypes.KEEP,
        progress: Progress | None = None,
    ) -> Verdict:
        """The verdict on all samples, of which `progress` shows how many are done.

        Raises MissingPackageError, ModelError and FeedError when the models cannot be run.
        """
        with naming_sizes(original, data):
            verdict = verification.verify_trials(
                original,
                rewritten,
                _counted(trials(original, data), data, progress),
                self.judging.bounds,
                self.judging.metrics,
                io=io,
                device=self.provider,
                accumulate=self.accumulate,
                libraries=self.libraries,
            )
        return replace(verdict, signature=tuple(map(in_flags, verdict.signature)))

    def with_blame(
        self,
        verdict: Verdict,
        original: Runnable,
        rewritten: Runnable,
        data: Data,
        *,
        by_effect: bool = False,
    ) -> Verdict:
        """The verdict with the blame of the first sample, if that is asked for or an output is too far off,
        by what nodes add to the outputs with `by_effect`.

        Raises as `verdict` does, and OutputError as `blame` does.
        """
        if verdict.blame is not None or not verdict.outputs or not (self.per_node or verdict.is_far):
            return verdict
        first = next(iter(feeds.feeds(original, of_source(data, verdict.inputs))))
        blamed = blame(
            original,
            rewritten,
            first,
            device=verdict.witness,
            accumulate=self.accumulate,
            libraries=self.libraries,
        )
        if self.per_node or by_effect:
            found = effects.effects(original, rewritten, first, self.libraries)
            blamed = effects.ranked(blamed, found, original)
        return replace(verdict, blame=blamed)


def _counted(found: Sequence[Trial], data: Data, progress: Progress | None) -> tuple[Trial, ...]:
    totals = (len(trial.source.files) or data.samples for trial in found)
    return tuple(
        replace(trial, samples=counted(progress, trial.samples, total))
        for trial, total in zip(found, totals, strict=True)
    )


comparison_flags = grouped(
    _FLAGS,
    "comparing",
    lambda flags: ComparisonFlags(
        metric_flags.read(flags["metric"], flags["tolerance"]),
        flags["provider"],
        flags["per_node"],
        libraries=flags["custom_ops"],
    ),
)
"""Adds these flags to a command, which gets them as `ComparisonFlags` in `comparing`."""
