"""From two open sessions to a verdict: runs on every sample, the bounds, and float32's own noise."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amp_rewrite.errors import FeedError
from amp_rewrite.numerics.half import Half
from amp_rewrite.running import (
    changing,
    comparison,
    halved_ports,
    metrics,
    own_metrics,
    tolerances,
    undecided,
)
from amp_rewrite.running.comparison import OutputComparison, Runs, SampleComparison
from amp_rewrite.running.inputs.trials import Trial
from amp_rewrite.running.metrics import Channels, Spread
from amp_rewrite.running.noise import Float32Noise
from amp_rewrite.running.own_metrics import Metric
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.running.undecided import Undecided
from amp_rewrite.running.verdict import Channel, NotJudged, Output, Verdict


@dataclass(frozen=True, slots=True)
class Pair:
    """The sessions of two models, the half type of the second, and what judges them.

    `began` is the time at which the first was opened.
    """

    before: Any
    after: Any
    half: Half | None
    bounds: Tolerances
    metrics: tuple[Metric, ...]
    noise: Float32Noise
    began: float

    def judge(self, compared: Sequence[SampleComparison]) -> tuple[Output, ...]:
        """The outputs of comparisons, with the bounds that they violate."""
        return tuple(_outputs(compared, self.bounds))


QUICK = 5.0
"""The seconds up to which opening two models and running them once is quick: further runs cost little."""


def judge(blank: Verdict, pair: Pair, trials: Sequence[Trial]) -> Verdict:
    """The verdict on two sessions with the same signature: that of the best-conditioned trial.

    Trials beyond the first, and float32's noise, are left out where models are slow and the verdict is good.
    """
    first = _judge(blank, pair, trials[0])
    if not (first.is_quick or first.verdict.is_far):
        return first.verdict
    others = (_judge(replace(blank, inputs=trial.source), pair, trial) for trial in trials[1:])
    return _best_conditioned([_completed(judged, pair) for judged in (first, *others)])


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict without noise, what it compares, the runs on the first sample, whether they were quick, the
    runs on the first sample that is too far off alone (None where none is), and the outputs that float32 does
    not tell, with the reason.
    """

    verdict: Verdict
    compared: Sequence[SampleComparison]
    first: Runs
    is_quick: bool
    far: Runs | None
    undecided: Mapping[str, str]


def _judge(blank: Verdict, pair: Pair, trial: Trial) -> _Judged:
    compared: list[SampleComparison] = []
    kept: list[Runs] = []
    is_quick = False
    far: Runs | None = None
    doubt = Undecided(pair.noise, pair.judge)
    for at, sample in enumerate(trial.samples):
        runs = comparison.run(pair.before, pair.after, sample, blank.inputs.sample(at))
        compared.append(comparison.compare(runs, blank.inputs.sample(at), pair.half))
        is_quick = is_quick if kept else time.perf_counter() - pair.began < QUICK
        if pair.metrics or not kept:  # all outputs of all samples for metrics of the user's alone
            kept.append(runs)
        outputs = pair.judge(compared[-1:])
        if any(output.broken for output in outputs):
            far = far or runs
            doubt.look(runs, outputs)
    if not kept:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    outputs = pair.judge(compared)
    silent = {} if any(output.broken for output in outputs) else comparison.silent(compared)
    judged = replace(
        blank,
        outputs=tuple(replace(output, is_undecided=output.name in silent) for output in outputs),
        samples=len(compared),
        unproven=(
            *comparison.unproven(compared),
            *(f"{name}: proves nothing: {why}" for name, why in silent.items()),
        ),
        metrics=own_metrics.measure(pair.metrics, kept),
    )
    return _Judged(judged, compared, kept[0], is_quick, far, doubt.why)


def _outputs(compared: Sequence[SampleComparison], bounds: Tolerances) -> Iterator[Output]:
    for name in dict.fromkeys(name for sample in compared for name in sample.outputs):
        samples = [sample.outputs.get(name) for sample in compared]
        known = [found for found in samples if found is not None]
        worst = comparison.worst([found.metrics for found in known])
        output = Output(
            name=name,
            metrics=worst,
            broken=(),
            by_sample=tuple(sample.metrics.relative_l2 if sample else None for sample in samples),
        )
        if known[0].is_float:
            output = _measured(output, known, bounds.atol or 0.0)
        broken = tolerances.violations(worst, output.error, bounds)
        yield replace(
            output,
            broken=tuple(f"{bound}{_channel(output, bound)}" for bound in broken),
            unbounded=bounds.removed(is_float=known[0].is_float),
        )


def _measured(output: Output, samples: Sequence[OutputComparison], atol: float) -> Output:
    """A float output with what its differences, and those of rounding it, are beside its spread."""
    spread = _spread(samples)
    errors = [spread.error(sample.off, max(metrics.SMALLEST, atol)) for sample in samples]
    error, channel = max(errors, key=lambda found: (math.isnan(found[0]), found[0]))
    floors = [spread.error(found.rounding, atol)[0] for found in samples if found.rounding is not None]
    return replace(
        output,
        error=error,
        floor=max(floors, default=None),
        spread=float(spread.sizes[channel]),
        channel=None if spread.axis is None else Channel(spread.axis, channel),
    )


def _spread(samples: Sequence[OutputComparison]) -> Spread:
    known = [found.moments for found in samples if found.moments is not None]
    return metrics.spread(known or [metrics.moments(np.zeros(0))])


def _channel(output: Output, bound: str) -> str:
    """Where an error is largest, if a channel is meant."""
    is_meant = output.channel is not None and bound.startswith("error ")
    return f" in channel {output.channel.index} of axis {output.channel.axis}" if is_meant else ""


def _completed(judged: _Judged, pair: Pair) -> Verdict:
    """The verdict with float32's noise on the first sample, at the scale of all samples."""
    found = pair.noise.measure(judged.first.feeds, judged.first.original)
    least = max(metrics.SMALLEST, pair.bounds.atol or 0.0)
    outputs = (_noisy(output, judged.compared, found, least) for output in judged.verdict.outputs)
    verdict = replace(judged.verdict, outputs=tuple(outputs))
    return verdict if judged.far is None else _explained(verdict, judged, judged.far, pair)


def _explained(verdict: Verdict, judged: _Judged, far: Runs, pair: Pair) -> Verdict:
    """A verdict that fails on a sample, without the outputs that change by themselves or that float32 does
    not tell, or with the inputs and outputs that half cannot hold.
    """

    def is_far(runs: Runs) -> bool:
        return any(output.broken for output in pair.judge([comparison.compare(runs, "")]))

    names = changing.outputs(pair.before, far, pair.judge)
    if names:
        return changing.without(verdict, names)
    verdict = undecided.without(verdict, judged.undecided)
    if not verdict.is_far:
        return verdict
    found = halved_ports.misfits(pair.before, pair.after, far, pair.half, is_far)
    return replace(verdict, misfits=found)


def _noisy(
    output: Output, compared: Sequence[SampleComparison], found: Mapping[str, Channels], least: float
) -> Output:
    if output.name not in found or output.error is None:
        return output
    spread = _spread([sample.outputs[output.name] for sample in compared if output.name in sample.outputs])
    return replace(output, noise=spread.error(found[output.name], least)[0])


BETTER = 2.0
"""How many times smaller float32's noise is on clearly better-conditioned inputs."""

ALIVE = 2.0**-27
"""An eighth of float32's unit roundoff: less noise than this has no model that computes its outputs, but one
whose outputs are saturated (clipped, say) by inputs out of range.
"""


def _best_conditioned(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on the inputs that amplify rounding errors least, which names the others."""
    chosen = verdicts[0]
    for verdict in verdicts[1:]:
        if _is_better(verdict, chosen):
            chosen = verdict
    others = tuple(_not_judged(verdict) for verdict in verdicts if verdict is not chosen)
    return replace(chosen, not_judged=others)


def _is_better(verdict: Verdict, chosen: Verdict) -> bool:
    found, other = verdict.noise, chosen.noise
    if found is None or other is None or verdict.unproven:
        return False
    return ALIVE <= found <= other / BETTER


def _not_judged(verdict: Verdict) -> NotJudged:
    images = verdict.inputs.images.value if verdict.inputs.images else ""
    return NotJudged(images, verdict.error, verdict.noise, verdict.ok)
