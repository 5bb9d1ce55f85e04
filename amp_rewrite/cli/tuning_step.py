"""The search for a plan as a step of the main job."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from amp_rewrite.analysis.faint_outputs import Faint
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.cli.comparison_flags import ComparisonFlags
from amp_rewrite.cli.tried_flags import LARGE
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.policy.options import Options
from amp_rewrite.policy.targets import Accumulation
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.reporting.search_chart import Plan, Search
from amp_rewrite.running.sessions import Feeds, Runnable
from amp_rewrite.tuning.found import Prefer, Step, Watch
from amp_rewrite.tuning.tune import tune
from amp_rewrite.tuning.tuned import Tuned

REPAIR = 20.0
"""The seconds for which the main job tunes where its comparison fails."""
SLOW_REPAIR = 60.0
"""The same for a target that adds up in half, of which a run takes about ten times as long."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The search for a plan where the comparison fails: its seconds, what it prefers, the bytes of the
    largest model that is tuned, who watches, and who runs the samples.
    """

    budget: float = REPAIR
    prefer: Prefer = Prefer.TIME
    largest: float = LARGE
    watch: Watch | None = None
    executor: Executor | None = None

    def run(
        self,
        model: Runnable,
        samples: Iterable[Feeds],
        options: Options,
        comparing: ComparisonFlags,
        seen: Seen,
        faint: Faint,
    ) -> Tuned:
        """The plan for these samples, judged as the result will be; raises as `tune`."""
        return tune(
            model,
            samples,
            options,
            comparing.judging.bounds,
            metrics=comparing.judging.metrics,
            prefer=self.prefer,
            budget=self.budget,
            seen=seen,
            faint=faint,
            watch=self.watch,
            executor=self.executor,
            custom_ops=comparing.libraries,
            device=comparing.provider,
        )


def repair(options: Options, progress: Progress | None) -> Tuning:
    """The search where a comparison fails; it may take longer where sums in half are emulated one by one."""
    sums_in_half = options.target.accumulate is Accumulation.HALF
    return Tuning(budget=SLOW_REPAIR if sums_in_half else REPAIR, watch=watching(progress))


def watching(progress: Progress | None) -> Watch:
    """Shows the steps of a search beside the spinner."""

    def watch(step: Step) -> None:
        if progress is not None:
            rounded = f"{step.rounded:,} of {step.sites:,} values rounded"
            progress(f"tune: {plural(step.runs, 'run')}, error {step.error:.1e}, {rounded}")

    return watch


def measured(tuned: Tuned | None) -> Search:
    """What a search measured, as the page draws it."""
    if tuned is None:
        return Search()
    plans = [Plan(point.seconds, point.error, point.half) for point in tuned.walked]
    return Search(plans, tuned.target, tuned.sensitivity)


def beside_a_plan(options: Options) -> Options:
    """What a plan does not decide; of declared ranges, and times on the device, the report speaks."""
    return Options(
        check=options.check,
        certify=options.certify,
        metadata=options.metadata,
        external_data=options.external_data,
        ranges=options.ranges,
        device=options.device,
    )
