"""From two open sessions to a verdict: runs on every sample, the bounds, and float32's own noise."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amp_rewrite.errors import FeedError
from amp_rewrite.numerics.half import Half
from amp_rewrite.running import changing, comparison, halved_ports, own_metrics, tolerances, undecided
from amp_rewrite.running.comparison import OutputComparison, Runs, SampleComparison
from amp_rewrite.running.inputs.trials import Trial
from amp_rewrite.running.noise import Float32Noise
from amp_rewrite.running.own_metrics import Metric
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.running.undecided import Undecided
from amp_rewrite.running.verdict import NotJudged, Output, Verdict


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
    if first.verdict.ok and not first.is_quick:
        return first.verdict
    others = (_judge(replace(blank, inputs=trial.source), pair, trial) for trial in trials[1:])
    return _best_conditioned([_completed(judged, pair) for judged in (first, *others)])


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict without noise, the runs on the first sample, whether they were quick, the runs on the first
    sample that is too far off alone (None where none is), and the outputs that float32 does not tell, with
    the reason.
    """

    verdict: Verdict
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
    judged = replace(
        blank,
        outputs=pair.judge(compared),
        samples=len(compared),
        unproven=comparison.unproven(compared),
        metrics=own_metrics.measure(pair.metrics, kept),
    )
    return _Judged(judged, kept[0], is_quick, far, doubt.why)


def _outputs(compared: Sequence[SampleComparison], bounds: Tolerances) -> Iterator[Output]:
    for name in dict.fromkeys(name for sample in compared for name in sample.outputs):
        samples = [sample.outputs.get(name) for sample in compared]
        yield _output(name, [found for found in samples if found is not None], samples, bounds)


def _output(
    name: str,
    found: Sequence[OutputComparison],
    samples: Sequence[OutputComparison | None],
    bounds: Tolerances,
) -> Output:
    worst, is_float = comparison.worst([sample.metrics for sample in found]), found[0].is_float
    roundings = [sample.rounding for sample in found if sample.rounding is not None]
    return Output(
        name=name,
        metrics=worst,
        broken=tuple(tolerances.violations(worst, bounds, is_float=is_float)),
        error=worst.error(bounds.atol or 0.0) if is_float else None,
        floor=_share(max(roundings), max(worst.scale, bounds.atol or 0.0)) if roundings else None,
        by_sample=tuple(sample.metrics.relative_l2 if sample else None for sample in samples),
    )


def _share(rms: float, scale: float) -> float:
    return rms / scale if rms else 0.0


def _completed(judged: _Judged, pair: Pair) -> Verdict:
    """The verdict with float32's noise on the first sample, at the scale of all samples."""
    found = pair.noise.measure(judged.first.feeds, judged.first.original)
    outputs = (_noisy(output, found, pair.bounds) for output in judged.verdict.outputs)
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


def _noisy(output: Output, found: Mapping[str, float], bounds: Tolerances) -> Output:
    if output.name not in found or output.error is None:
        return output
    noise = replace(output.metrics, rms=found[output.name])
    return replace(output, noise=noise.error(bounds.atol or 0.0))


BETTER = 2.0
"""How many times smaller float32's noise is on clearly better-conditioned inputs."""

ALIVE = 2.0**-27
"""An eighth of float32's unit roundoff: less noise than this has no model that computes its outputs, but one
whose outputs are saturated (clipped, say) by inputs out of range.
"""


def _best_conditioned(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on the inputs that amplify rounding errors least, which names the others: of those that
    pass, where one does.
    """
    first, *others = [verdict for verdict in verdicts if verdict.ok] or verdicts
    chosen = first
    for verdict in others:
        if _is_better(verdict, chosen):
            chosen = verdict
    rest = tuple(_not_judged(verdict) for verdict in verdicts if verdict is not chosen)
    return replace(chosen, not_judged=rest)


def _is_better(verdict: Verdict, chosen: Verdict) -> bool:
    found, other = verdict.noise, chosen.noise
    if found is None or other is None or verdict.unproven:
        return False
    return ALIVE <= found <= other / BETTER


def _not_judged(verdict: Verdict) -> NotJudged:
    images = verdict.inputs.images.value if verdict.inputs.images else ""
    return NotJudged(images, verdict.error, verdict.noise, verdict.ok)
