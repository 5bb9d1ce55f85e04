"""Two open sessions, compared on a sample: the outputs, with the bounds that they violate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amp_rewrite.numerics.half import Half
from amp_rewrite.running import comparison, metrics, tolerances
from amp_rewrite.running.comparison import Float32Noise, OutputComparison, Runs, SampleComparison
from amp_rewrite.running.instrumented_model import Models
from amp_rewrite.running.metrics import Spread
from amp_rewrite.running.selections import Choice, Selections
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.tolerances import Metric, Tolerances
from amp_rewrite.running.verdict import Channel, Output


@dataclass(frozen=True, slots=True)
class Pair:
    """The sessions of two models, the half type of the second, and the criteria of the comparison."""

    before: Any
    after: Any
    half: Half | None
    bounds: Tolerances
    metrics: tuple[Metric, ...]
    noise: Float32Noise
    is_large: bool
    models: Models
    selections: Selections

    def compare(self, feeds: Feeds, sample: str) -> Compared:
        """Run both models on a sample, and judge it, with the selections of the original if that fails, and
        they differ from those of the result between close scores only.
        """
        runs = comparison.run(self.before, self.after, feeds, sample)
        steps = comparison.compare(runs, sample, self.half)
        outputs = self.judge(steps)
        imposed = (
            self.selections.imposed(feeds, self.bounds) if any(each.broken for each in outputs) else None
        )
        if imposed is None:
            return Compared(runs, steps, outputs)
        steps = comparison.compare(imposed.runs, sample, self.half)
        return Compared(runs, steps, self.judge(steps), imposed.choices)

    def judge(self, compared: Sequence[SampleComparison]) -> tuple[Output, ...]:
        """Return the outputs of comparisons with their violated bounds."""
        return tuple(outputs_of(compared, self.bounds))


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs on a sample, their comparison in each step, the outputs with their violated bounds, and what the
    result selects otherwise.
    """

    runs: Runs
    steps: list[SampleComparison]
    outputs: tuple[Output, ...]
    choices: tuple[Choice, ...] = ()


def outputs_of(compared: Sequence[SampleComparison], bounds: Tolerances) -> Iterator[Output]:
    """Yield each output with its worst figures over all samples, and the bounds that these violate."""
    for name in dict.fromkeys(name for sample in compared for name in sample.outputs):
        samples = [sample.outputs.get(name) for sample in compared]
        comparisons = [entry for entry in samples if entry is not None]
        worst = comparison.worst([entry.metrics for entry in comparisons])
        output = Output(
            name=name,
            metrics=worst,
            broken=(),
            by_sample=tuple(sample.metrics.relative_error if sample else None for sample in samples),
        )
        if comparisons[0].is_float:
            output = _measured(output, comparisons, bounds.atol or 0.0)
        broken = tuple(tolerances.violations(worst, output.error, bounds))
        if output.error is not None and any(bound.startswith("non_finite ") for bound in broken):
            output = replace(output, error=math.inf)  # that of the other values says nothing
        agreement = None if bounds.agreement is None else 1.0 - bounds.agreement
        yield replace(
            output,
            limit=bounds.error if comparisons[0].is_float else agreement,
            broken=tuple(f"{bound}{_channel(output, bound)}" for bound in broken),
            unbounded=bounds.removed(is_float=comparisons[0].is_float),
        )


def _measured(output: Output, samples: Sequence[OutputComparison], atol: float) -> Output:
    """Return a float output with its error and rounding floor relative to its spread."""
    spread = spread_of(samples)
    errors = [spread.error(sample.off, max(metrics.SMALLEST, atol)) for sample in samples]
    error, channel = max(errors, key=lambda pair: (math.isnan(pair[0]), pair[0]))
    floors = [spread.error(entry.rounding, atol)[0] for entry in samples if entry.rounding is not None]
    return replace(
        output,
        error=error,
        floor=max(floors, default=None),
        spread=float(spread.sizes[channel]),
        channel=None if spread.axis is None else Channel(spread.axis, channel),
    )


def spread_of(samples: Sequence[OutputComparison]) -> Spread:
    """Return the spread of an output over all samples."""
    moments = [entry.moments for entry in samples if entry.moments is not None]
    return metrics.spread(moments or [metrics.moments(np.zeros(0))])


def _channel(output: Output, bound: str) -> str:
    """Return the channel with the largest error, in words; empty if there is none."""
    if output.channel is None or not bound.startswith("error "):
        return ""
    return f" in channel {output.channel.index} of axis {output.channel.axis}"
