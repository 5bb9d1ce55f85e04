"""Comparison of a train step with its result: a few steps of both on the same batches, state fed back.

A certificate proves the result to be the float32 step with the same loss scale but for precision. That step
is run here beside the original, and must give the same bits. For the result, this measures the effect of half
on the loss and on the parameter updates. Half is emulated on a CPU, and computed on CUDA.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import ModelError, ResourceError, RunError
from amp_rewrite.model import loading
from amp_rewrite.rewriting import widened_model
from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import emulated, runnable
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.training import spec
from amp_rewrite.training.scaled_step import ScaledStep, start_values
from amp_rewrite.training.spec import LossScale
from amp_rewrite.training.steps import TrainJob

Array = NDArray[Any]
Arrays = Mapping[str, Array]

STEPS = 3
"""Number of compared steps: by the third, every optimiser slot has affected the loss."""

MOST_SKIPPED = 64
"""Most retries of a step that the loss scale skips: from TensorFlow's 2**15, 15 halvings lead to 1."""

RATE = 1e-3
"""The synthetic learning rate, Adam's usual one: rates near 1 would make the state non-finite."""


PASS = "PASS"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tolerances: of a loss, relative to the original's, and of updates (ComparedStep)."""

    loss: float
    update: float


BOUNDS = {"float16": Bounds(1e-2, 0.25), "bfloat16": Bounds(8e-2, 0.5)}
"""Tolerances by half type. Updates of the shared train steps differ by up to 4.4e-2 in float16 with a loss
scale, and by 5.9e-2 in bfloat16; they differ by 1 where no gradient arrives.
"""


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step of the original and of the result.

    `update` is the error of the accumulated state updates since the start, relative to the original's: capped
    at 1 per state, then the root mean square over all elements; infinite where a state is not finite, NaN
    where none changed.
    `state` is the state with the largest relative error, which is `largest`. `skipped` counts the attempts
    of the result that its loss scale skipped.
    """

    loss: float
    half_loss: float
    update: float
    largest: float
    state: str
    skipped: int

    @property
    def error(self) -> float:
        """The difference of the losses, relative to the original's."""
        return _relative(abs(self.half_loss - self.loss), abs(self.loss))


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """The run of the float32 step with a loss `scale` beside the original. `different` names the first output
    with other bits, and the step; `not_run` is the reason for no run. Both are empty for equal bits.
    """

    scale: LossScale
    different: str = ""
    not_run: str = ""

    def __str__(self) -> str:
        """Return the outcome as one sentence."""
        scale = self.scale
        number = scale.value if isinstance(scale, spec.FixedLossScale) else scale.initial_scale
        subject = f"the float32 step with a scale of {number:g}"
        if self.not_run:
            return f"{subject} was not run beside the original: {self.not_run}"
        return f"{subject} {self.different or f'has the bits of the original in {STEPS} steps'}"


@dataclass(frozen=True, slots=True)
class StepComparison:
    """The compared steps, in order; `half` is the half type, and `inputs` describes the batches. `scaled` is
    the run of the float32 step with its loss scale, None without a scale.
    """

    steps: tuple[ComparedStep, ...]
    half: str
    bounds: Bounds
    inputs: str
    scaled: ScaledRun | None = None

    @property
    def ok(self) -> bool:
        """Whether the comparison is conclusive and all differences are within their bounds."""
        return self.verdict == PASS

    @property
    def verdict(self) -> str:
        """The verdict on all steps: that of the first that does not pass; FAIL if the scale changes bits."""
        changes = self.scaled is not None and bool(self.scaled.different)
        last = "FAIL" if changes else PASS
        return next((each for step in self.steps if (each := self.verdict_of(step)) != PASS), last)

    def verdict_of(self, step: ComparedStep) -> str:
        """Return PASS or FAIL; inconclusive where the original is not finite or no state changes."""
        if not math.isfinite(step.loss) or math.isnan(step.update):
            return "inconclusive"
        near = step.error <= self.bounds.loss and step.update <= self.bounds.update
        return PASS if near else "FAIL"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data, with None for numbers that are not finite."""
        steps = [{**asdict(step), "error": step.error} for step in self.steps]
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "inputs": self.inputs,
            "bounds": asdict(self.bounds),
            "scaled": self.scaled and asdict(self.scaled),
            "steps": [{name: _as_json(value) for name, value in step.items()} for step in steps],
        }


def _as_json(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _relative(apart: float, whole: float) -> float:
    if not apart:
        return 0.0
    return apart / whole if whole and math.isfinite(apart) else math.inf


def compare(original: Path, result: Path, job: TrainJob, data: Data) -> StepComparison:
    """Run STEPS steps of both models, and of the float32 step with the loss scale of the job; inputs missing
    from `data` are synthesised.

    Raises what `feeds.feeds` raises, ModelError where a model does not load, and RunError where one does not
    run.
    """
    device, step, half = sessions.check_device(None), job.step, job.options.half
    batches = list(itertools.islice(_batches(original, step, data), STEPS))
    scaled = None if job.loss_scale is None else _run_scaled(original, job, job.loss_scale, batches)
    before = _run(sessions.open_session(original, device), step, batches)
    with emulated(result, device) as substitute:
        start = start_values(loading.load(result).model.metadata_props)
        after = _run(sessions.open_session(substitute, device), step, batches, start)
        steps = tuple(_compared(step, batches[0], *pair) for pair in zip(before, after, strict=True))
    files = ", ".join(path.name for path in data.paths)
    inputs = f"{files}, and synthetic inputs beside it" if files else f"synthetic inputs (seed {data.seed})"
    return StepComparison(steps, half.name, BOUNDS[half.name], inputs, scaled)


@dataclass(frozen=True, slots=True)
class _Ran:
    """The outputs of a step, and the attempts before it that its loss scale skipped."""

    outputs: Arrays
    skipped: int


def _run(
    session: Any, step: ScaledStep, batches: Iterable[Arrays], start: Arrays | None = None
) -> Iterator[_Ran]:
    """Run a step on each batch, its state fed back; a step that the loss scale skips is taken again, with the
    scale that follows. `start` has the start values of the scale, None for a step without one.
    """
    pairs, finite, state = [*step.spec.state], None, dict(start or {})
    if start is not None:
        pairs += filter(None, (step.borders.scale, step.borders.good_steps))
        finite = step.borders.finite

    def take(inputs: Arrays, skipped: int = 0) -> _Ran:
        outputs = sessions.run_session(session, inputs)
        if finite is None or outputs[finite] or skipped == MOST_SKIPPED:
            return _Ran(outputs, skipped)
        return take({**inputs, **{pair.input: outputs[pair.output] for pair in pairs}}, skipped + 1)

    for batch in batches:
        ran = take({**batch, **state})
        state = {pair.input: ran.outputs[pair.output] for pair in pairs}
        yield ran


def _compared(step: ScaledStep, start: Arrays, before: _Ran, after: _Ran) -> ComparedStep:
    """Compare one step of both, which began with the same state."""
    loss, half_loss = (float(np.ravel(ran.outputs[step.spec.loss])[0]) for ran in (before, after))
    squares, elements, is_finite, ranks = 0.0, 0, True, [(0.0, "")]
    for pair in step.spec.state:
        arrays = (start[pair.input], before.outputs[pair.output], after.outputs[pair.output])
        first, state, half_state = (np.asarray(array, np.float64) for array in arrays)
        change, difference = _norm(state - first), _norm(half_state - state)
        ranks.append((_relative(difference, _norm(state)), pair.input))
        is_finite &= bool(np.isfinite(half_state).all())
        if change or difference:
            squares += state.size * min(_relative(difference, change), 1.0) ** 2
            elements += state.size
    update = math.inf if not is_finite else math.sqrt(squares / elements) if elements else math.nan
    return ComparedStep(loss, half_loss, update, *max(ranks[1:] or ranks), after.skipped)


def _norm(array: Array) -> float:
    return float(np.linalg.norm(array))


def _run_scaled(original: Path, job: TrainJob, asked: LossScale, batches: Sequence[Arrays]) -> ScaledRun:
    """Run the float32 step with a loss scale beside the original, on the CPU and without fusion, which rounds
    otherwise. A scale that is no power of two changes bits: the power below it is taken instead.
    """
    scale = spec.at_powers_of_two(asked)
    loaded = loading.load(original)
    if widened_model.has_half(loaded.model):
        return ScaledRun(scale, not_run="the original has half values, of which a scale keeps more")
    replace(job, loss_scale=scale, scaled_steps=[]).first(loaded.model)
    step, start = job.step, start_values(loaded.model.metadata_props) or {}
    try:
        before = sessions.open_session(original, optimised=False)
        with runnable(loaded) as model:
            after = sessions.open_session(model, optimised=False)
            different, is_finite = _difference(step, before, after, batches, start)
            different = different or _change_in_a_skipped_step(step, after, {**batches[0], **start})
        if different and not is_finite:
            return ScaledRun(scale, not_run="the original is not finite")
        if different and _difference(step, before, before, batches)[0]:
            return ScaledRun(scale, not_run="the original itself gives other bits when it is run again")
    except (ModelError, ResourceError, RunError) as error:
        return ScaledRun(scale, not_run=str(error))
    return ScaledRun(scale, different)


def _difference(
    step: ScaledStep, before: Any, after: Any, batches: Sequence[Arrays], start: Arrays | None = None
) -> tuple[str, bool]:
    """Return the first output of the original that has other bits in the other step, empty if none has, and
    whether the state of the original is finite then.
    """
    is_finite = True
    runs = zip(_run(before, step, batches), _run(after, step, batches, start), strict=True)
    for number, (ran, other) in enumerate(runs, 1):
        is_finite = all(np.isfinite(ran.outputs[pair.output]).all() for pair in step.spec.state)
        for name, value in ran.outputs.items():
            if not _is_same(np.asarray(value), np.asarray(other.outputs[name])):
                return f"has other bits in '{name}' in step {number}", is_finite
    return "", is_finite


def _is_same(before: Array, after: Array) -> bool:
    """Return whether arrays have the same bits, but for differences below the least normal number of float32:
    a scale keeps the digits that subnormal numbers lose.
    """
    if before.dtype.kind != "f" or before.shape != after.shape:
        return np.array_equal(before, after)
    with np.errstate(all="ignore"):
        is_near = np.abs(before - after) < np.finfo(np.float32).tiny
    return bool(np.all(is_near | (before == after) | (np.isnan(before) & np.isnan(after))))


def _change_in_a_skipped_step(step: ScaledStep, after: Any, feeds: Arrays) -> str:
    """Return the first state that a step changes whose gradients an infinite scale makes non-finite."""
    scale, finite = step.borders.scale, step.borders.finite
    if scale is None or finite is None:
        return ""
    feeds = {**feeds, scale.input: np.asarray(np.inf, np.float32)}
    outputs = sessions.run_session(after, feeds)
    for pair in step.spec.state if not outputs[finite] else ():
        if pair not in step.unguarded and not _is_same(np.asarray(feeds[pair.input]), outputs[pair.output]):
            return f"changes '{pair.output}' in a step that is skipped"
    return ""


def _batches(original: Path, step: ScaledStep, data: Data) -> Iterator[Arrays]:
    """Yield the inputs of each step, states included; the samples of `data` are reused in turn."""
    sizes = feeds.given_sizes(original, data)
    synthetic = feeds.feeds(original, Data(dims=sizes.dims, seed=data.seed, samples=STEPS))
    samples = list(feeds.partial_feeds(original, data)) or [{}]
    as_trained = _as_trained(loading.load(original).model, step)
    for index, sample in enumerate(synthetic):
        arrays = {name: as_trained(name, np.asarray(array)) for name, array in sample.items()}
        yield {**arrays, **samples[index % len(samples)]}


def _as_trained(model: ir.Model, step: ScaledStep) -> Callable[[str, Array], Array]:
    """Return the initialiser of synthetic inputs: slots are zero, counters and weight vectors 1, other
    weights as X. Glorot and Y. Bengio (AISTATS 2010) draw them; other scalars are learning rates.
    """
    states = {pair.input for pair in step.spec.state}
    behind = set(step.optimiser)
    slots = {
        value.name
        for value in model.graph.inputs
        if all(node.outputs[0].name in behind for node, _ in value.uses())
    }

    def start(name: str, array: Array) -> Array:
        if name not in states:
            is_rate = array.dtype.kind == "f" and array.size == 1
            return np.full_like(array, RATE) if is_rate else array
        if array.size == 1 or (name not in slots and array.ndim < 2):
            return np.ones_like(array)
        if name in slots or array.dtype.kind != "f":
            return np.zeros_like(array)
        fans = array.size / array.shape[0] + array.size / array.shape[1]
        return (array * math.sqrt(2 / fans)).astype(array.dtype)

    return start


def describe(comparison: StepComparison) -> str:
    """Return one sentence with the samples that the steps were compared on, and the limits."""
    limits = (
        f"limits in {comparison.half}: error {comparison.bounds.loss:g}, update {comparison.bounds.update:g}"
    )
    return f"compared {len(comparison.steps)} steps with the original's on {comparison.inputs}; {limits}"


COLUMNS = ("step", "loss", "in half", "error", "update", "largest of a state", "skipped", "verdict")


def cells(comparison: StepComparison) -> Iterator[tuple[str, ...]]:
    """Yield the table row of each step, with a cell for each of COLUMNS."""
    for number, step in enumerate(comparison.steps, 1):
        largest = f"{step.largest:.1e} {step.state}" if step.state else ""
        numbers = (f"{step.loss:.6g}", f"{step.half_loss:.6g}", f"{step.error:.1e}", f"{step.update:.1e}")
        yield (str(number), *numbers, largest, str(step.skipped), comparison.verdict_of(step))
