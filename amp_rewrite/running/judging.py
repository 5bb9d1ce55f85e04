"""Two open sessions, compared on a sample and on changed copies of it: the outputs, the bounds that they
violate, and what float32 itself does not determine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.model import external_data
from amp_rewrite.numerics.half import Half
from amp_rewrite.running import comparison, metrics, selections, sessions, tolerances
from amp_rewrite.running.comparison import OutputComparison, RewrittenRunError, Runs, SampleComparison
from amp_rewrite.running.inputs.feeds import Longer
from amp_rewrite.running.instrumented_model import InstrumentedModel
from amp_rewrite.running.metrics import Channels
from amp_rewrite.running.selections import OtherSelection
from amp_rewrite.running.sequences import Steps, changed
from amp_rewrite.running.sessions import LARGE, Device, Feeds, Libraries, Runnable
from amp_rewrite.running.tolerances import Metric, Tolerances
from amp_rewrite.running.verdict import Channel, FailedStress, Output, Verdict, distance


@dataclass(slots=True)
class ComparedModels:
    """Two models with their open sessions, the half type of the second, and the criteria of the comparison.

    `float32` and `rewritten` are the models as they are run: the first one with its half values widened if it
    does not run with them, the second one emulated on the CPU.
    """

    float32: Runnable
    rewritten: Runnable
    before: Any
    after: Any
    half: Half | None
    bounds: Tolerances
    metrics: tuple[Metric, ...]
    device: Device
    libraries: Libraries
    _vain: int = 0
    _unoptimised: Any = None
    _latest: tuple[Feeds | None, Mapping[str, Any]] = (None, {})

    @property
    def is_large(self) -> bool:
        """Whether no session is opened beside those of the comparison (LARGE)."""
        if isinstance(self.float32, onnx.ModelProto):
            return self.float32.ByteSize() > LARGE
        files = (Path(self.float32), *external_data.referenced_by(Path(self.float32)))
        return sum(file.stat().st_size for file in files) > LARGE

    def compare(self, feeds: Feeds, sample: str) -> Compared:
        """Run both models on a sample, and judge it; if that fails, with the selections of the original, if
        those of the result differ from them between close scores only.

        Close is twice the tolerance, as each of two scores may be off by it. After MOST_VAIN samples that
        fail for another reason nothing is imposed any more.
        """
        runs = comparison.run(self.before, self.after, feeds, sample)
        steps = comparison.compare(runs, sample, self.half)
        found = Compared(runs, steps, self.judge(steps))
        if not found.is_far or self._vain >= MOST_VAIN:
            return found
        imposed = selections.impose(*self.instrumented(), feeds)
        limit = (Tolerances() if self.bounds.error is None else self.bounds).error or 0.0
        if imposed is None or not all(choice.ratio <= 2 * limit for choice in imposed.choices):
            self._vain += 1
            return found
        steps = comparison.compare(imposed.runs, sample, self.half)
        return Compared(runs, steps, self.judge(steps), imposed.choices)

    def instrumented(self) -> tuple[InstrumentedModel, InstrumentedModel]:
        """Return new copies of both models that output values."""
        before, after = (
            InstrumentedModel(model, self.device, self.libraries) for model in (self.float32, self.rewritten)
        )
        return before, after

    def unoptimised(self, feeds: Feeds) -> Mapping[str, Any]:
        """Return the outputs of the original without onnxruntime's optimisation, cached for the latest feeds:
        how far they differ is float32's own noise.
        """
        if self._unoptimised is None:
            self._unoptimised = sessions.open_session(
                self.float32, self.device, self.libraries, optimised=False
            )
        if self._latest[0] is not feeds:
            self._latest = feeds, sessions.run_session(self._unoptimised, feeds)
        return self._latest[1]

    def compare_float32(self, runs: Runs) -> list[SampleComparison]:
        """Compare the original's outputs with those of the unoptimised model, in each step.

        Empty if these are unavailable: onnxruntime may need its optimisation to run the model, or the time
        limit may be reached. A verdict does not require noise.
        """
        try:
            return comparison.compare(replace(runs, rewritten=self.unoptimised(runs.feeds)), "")
        except AmpRewriteError:
            return []

    def judge(
        self, compared: Sequence[SampleComparison], plain: Sequence[SampleComparison] = ()
    ) -> tuple[Output, ...]:
        """Return the outputs of comparisons with their violated bounds."""
        return tuple(outputs_of(compared, plain, self.bounds))

    def judge_runs(self, runs: Runs) -> tuple[Output, ...]:
        """Return the outputs of runs on a single sample with their violated bounds."""
        return self.judge(comparison.compare(runs, "", self.half))

    def changing(self, runs: Runs) -> frozenset[str]:
        """Return the names of the outputs for which another run of the original violates a bound.

        Empty if another run is impossible, for example because of the time limit. Most random operators are
        replaced by deterministic functions (`repeatable`). The remaining ones are at opsets without the
        required operators, or custom.
        """
        try:
            again = sessions.run_session(self.before, runs.feeds)
        except AmpRewriteError:
            return frozenset()
        outputs = self.judge_runs(replace(runs, rewritten=again))
        return frozenset(output.name for output in outputs if output.broken)


MOST_VAIN = 2
"""The samples that fail for another reason after which nothing is imposed any more: each takes two runs."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs on a sample, their comparison in each step, the outputs with their violated bounds, and what the
    result selects otherwise.
    """

    runs: Runs
    steps: list[SampleComparison]
    outputs: tuple[Output, ...]
    choices: tuple[OtherSelection, ...] = ()

    @property
    def is_far(self) -> bool:
        """Whether an output violates a bound."""
        return any(output.broken for output in self.outputs)


def outputs_of(
    compared: Sequence[SampleComparison], plain: Sequence[SampleComparison], bounds: Tolerances
) -> Iterator[Output]:
    """Yield each output with its worst figures over all samples, and the bounds that these violate; `plain`
    is how far float32 itself is off (`ComparedModels.compare_float32`), empty if that is not known.
    """
    for name in dict.fromkeys(name for sample in compared for name in sample.outputs):
        samples = [sample.outputs.get(name) for sample in compared]
        comparisons = [entry for entry in samples if entry is not None]
        worst, is_float = comparison.worst([entry.metrics for entry in comparisons]), comparisons[0].is_float
        by_sample = tuple(sample.metrics.relative_error if sample else None for sample in samples)
        output = Output(name=name, metrics=worst, broken=(), by_sample=by_sample)
        if is_float:
            own = [step.outputs[name].off for step in plain if name in step.outputs]
            output = _measured(output, comparisons, own, bounds.atol or 0.0)
        broken = tuple(tolerances.violations(worst, output.error, bounds))
        if output.error is not None and any(bound.startswith("non_finite ") for bound in broken):
            output = replace(output, error=math.inf)  # that of the other values says nothing
        agreement = None if bounds.agreement is None else 1.0 - bounds.agreement
        yield replace(
            output,
            limit=bounds.error if is_float else agreement,
            broken=tuple(f"{bound}{_channel(output, bound)}" for bound in broken),
            unbounded=bounds.removed(is_float=is_float),
        )


def _measured(
    output: Output, samples: Sequence[OutputComparison], own: Sequence[Channels], atol: float
) -> Output:
    """Return a float output with its error, rounding floor and float32's noise relative to its spread over
    all samples.
    """
    moments = [entry.moments for entry in samples if entry.moments is not None]
    spread, least = metrics.spread(moments or [metrics.moments(np.zeros(0))]), max(metrics.SMALLEST, atol)
    errors = [spread.error(sample.off, least) for sample in samples]
    error, channel = max(errors, key=lambda pair: (math.isnan(pair[0]), pair[0]))
    floors = [spread.error(entry.rounding, atol)[0] for entry in samples if entry.rounding is not None]
    return replace(
        output,
        error=error,
        floor=max(floors, default=None),
        noise=max((spread.error(off, least)[0] for off in own if off), default=None),
        spread=float(spread.sizes[channel]),
        channel=None if spread.axis is None else Channel(spread.axis, channel),
    )


def _channel(output: Output, bound: str) -> str:
    """Return the channel with the largest error, in words; empty if there is none."""
    if output.channel is None or not bound.startswith("error "):
        return ""
    return f" in channel {output.channel.index} of axis {output.channel.axis}"


# Outputs that float32 itself does not determine: another order of rounding moves them as far.
#
# A constant image behind an InstanceNormalization is a rounding residue divided by the root of an epsilon.
# An error of half is meaningless there, and no plan can meet a tolerance that float32 itself misses.

NEAR = 2.0
"""The ratio of error to float32 noise up to which a result may be as accurate as float32."""

BEYOND = 16.0
"""The same ratio if float32 noise itself violates a bound: two sessions share most kernels, so that their
difference understates float32's error, for constant images by a factor of up to fourteen.
"""


class Undecided:
    """The outputs whose error is comparable to float32 noise in all samples that violate their bounds."""

    def __init__(self, pair: ComparedModels) -> None:
        self._pair = pair
        self._reasons: dict[str, tuple[float, str] | None] = {}

    @property
    def why(self) -> Mapping[str, str]:
        """The outputs that float32 does not determine in any sample that violates a bound, with reasons."""
        return {name: reason[1] for name, reason in self._reasons.items() if reason is not None}

    def look(self, found: Compared) -> None:
        """Examine the outputs that violate bounds in a sample."""
        far = [each for each in found.outputs if each.broken and self._reasons.get(each.name, ()) is not None]
        plain = self._pair.compare_float32(found.runs) if far else ()
        own = {output.name: output for output in self._pair.judge(plain)}  # float32 in place of the result
        for output in far:
            beside, last = own.get(output.name), self._reasons.get(output.name)
            if beside is None or not _is_within(output, beside):
                self._reasons[output.name] = None
            elif last is None or last[0] < distance(output):
                self._reasons[output.name] = distance(output), _undecided_reason(output, beside)


def _is_within(output: Output, own: Output) -> bool:
    """Whether an error is comparable to float32 noise; never if the result loses a value."""
    if output.metrics.non_finite:
        return False
    return distance(output) <= (BEYOND if own.broken else NEAR) * distance(own)


def _undecided_reason(output: Output, own: Output) -> str:
    by = f"{own.error:.3g}" if own.error is not None else f"{distance(own):.1%} of its values"
    return (
        f"{' and '.join(output.broken)}, but float32 itself differs by {by} when it is optimised differently"
    )


# Synthetic samples scaled up, scaled down or offset, beyond what normal distributions cover, and those on
# which a result that passes would fail.


@dataclass(frozen=True, slots=True)
class Stress:
    """A change of synthetic inputs, in words and numbers: each value times `factor`, plus `offset`. The user
    is warned of a failure if it `warns`; a repair insures against each.
    """

    change: str
    factor: float = 1.0
    offset: float = 0.0
    warns: bool = True


STRESSES = (
    Stress("3 times as large", factor=3.0),
    Stress("offset by 100 times their spread", offset=100.0, warns=False),
    Stress("100 times as large", factor=100.0),
    Stress("1,000 times as small", factor=1e-3),
    Stress("offset by 10 times their spread", offset=10.0),
)
"""The stresses: percent for shares, silence in recordings (-60 dB), and temperatures of
weather in kelvin (278 +- 21). Of 91 real models 7 fail in one; at 1,000 times as large 11 do, and at the
32,768 times of samples of 16 bits 25.
"""

SMALLER = Stress("100 times as small", factor=0.01)
"""A smaller copy, for inputs on which half overflows: of images normalised by 255 twice, say."""


def change_sample(sample: Feeds, stress: Stress, names: Collection[str]) -> Feeds:
    """Return a copy of the sample in which the named inputs are changed."""
    if isinstance(sample, Steps):  # only the first of a sequence has states of ours
        names = [name for name in names if name not in {pair.input for pair in sample.states}]
    return changed(sample, partial(_stressed, stress=stress, names=names))


def _stressed(feeds: Feeds, stress: Stress, names: Collection[str]) -> Feeds:
    values = ((name, np.asarray(feeds[name])) for name in names)
    changes = {name: (value * stress.factor + stress.offset).astype(value.dtype) for name, value in values}
    return {**feeds, **changes}


def find_failed_stresses(pair: ComparedModels, sample: Feeds, free: frozenset[str]) -> Iterator[FailedStress]:
    """Yield the changes of a sample with which the result violates a bound beyond float32 noise; stop if a
    run fails or the time limit is reached.
    """
    for stress in STRESSES if free else ():
        changed_sample = change_sample(sample, stress, free)
        outputs = _judged_copy(pair, changed_sample)
        if outputs is None:
            return
        for failed in _failure(stress.change, outputs):
            yield replace(failed, warns=stress.warns, feeds=changed_sample)


def _judged_copy(pair: ComparedModels, copy: Feeds) -> tuple[Output, ...] | None:
    """Return the outputs on another sample, without violations within float32 noise; None if a run fails."""
    try:
        compared = pair.compare(copy, "")
        doubt = Undecided(pair)
        doubt.look(compared)
    except (AmpRewriteError, RewrittenRunError):
        return None
    return tuple(
        replace(each, broken=() if each.name in doubt.why else each.broken) for each in compared.outputs
    )


def _failure(change: str, outputs: Sequence[Output]) -> Iterator[FailedStress]:
    far = [output for output in outputs if output.broken]
    if far:
        loses = any(output.metrics.non_finite for output in far)
        yield FailedStress(change, max(map(distance, far)), loses)


def find_failed_lengths(
    pair: ComparedModels, verdict: Verdict, longer: Iterable[Longer]
) -> Iterator[FailedStress]:
    """Yield the open sizes with which the result violates a bound, or would at twice the length if the error
    went on to grow; none if float32 does not run on them.
    """
    for copy in longer:
        outputs = _judged_copy(pair, copy.feeds)
        if outputs is not None:
            grown = [_grown(each, verdict, math.log2(copy.times)) for each in outputs]
            measured = list(_failure(f"as long as {copy.in_words()}", outputs))
            yield from measured or _failure(f"as long as {copy.in_words(2)}, extrapolated", grown)
            return


def _grown(output: Output, verdict: Verdict, doublings: float) -> Output:
    """Return an output with its error at twice the length: it grows as a power of the length."""
    before = next((each.error for each in verdict.outputs if each.name == output.name), None)
    if not before or output.error is None or output.limit is None or output.error <= before:
        return output
    error = output.error * (output.error / before) ** (1 / doublings)
    return replace(output, error=error, broken=(*output.broken, *["error"] * (error > output.limit)))
