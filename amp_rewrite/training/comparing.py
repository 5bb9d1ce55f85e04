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
from amp_rewrite.model.states import Pair
from amp_rewrite.rewriting import widened_model
from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import emulated, runnable
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.training import spec
from amp_rewrite.training.insertion import ScaleBorders
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


def refuse_huge(original: Path) -> None:
    """Raise ModelError for a step with an input too large for any memory, before a long rewrite of it."""
    for value in loading.load(original).model.graph.inputs:
        sizes = [dim for dim in value.shape or () if isinstance(dim, int)]
        if math.prod(sizes) > MOST_ELEMENTS:
            size = " x ".join(map(str, sizes))
            raise ModelError(
                f"input '{value.name}' has {size} elements, more than any machine holds",
                where=original,
                remedy="export the step with the sizes that it is to run with",
            )


MOST_ELEMENTS = 1 << 40


def compare(original: Path, result: Path, job: TrainJob, data: Data) -> StepComparison:
    """Run STEPS steps of both models, and of the float32 step with the loss scale of the job; inputs missing
    from `data` are synthesised.

    Raises what `feeds.feeds` raises, ModelError where a model does not load, and RunError where one does not
    run.
    """
    device, step, half = sessions.check_device(None), job.step, job.options.half
    batches = list(itertools.islice(_batches(original, step, data), STEPS))
    scaled = None if job.loss_scale is None else _run_scaled(original, job, job.loss_scale, batches)
    before = sessions.open_session(original, device)
    with emulated(result, device) as substitute:
        after = sessions.open_session(substitute, device)
        runs = _Runs(step, before, after, batches[0], loading.load(result).model.metadata_props)
        steps = tuple(map(runs.take, batches))
    files = ", ".join(path.name for path in data.paths)
    inputs = f"{files}, and made-up inputs beside it" if files else f"made-up inputs (seed {data.seed})"
    return StepComparison(steps, half.name, BOUNDS[half.name], inputs, scaled)


def _run_scaled(original: Path, job: TrainJob, asked: LossScale, batches: Sequence[Arrays]) -> ScaledRun:
    """Run the float32 step with a loss scale beside the original, on the CPU and without fusion, which rounds
    otherwise. A scale that is no power of two changes bits: the power below it is taken instead.
    """
    scale = spec.at_powers_of_two(asked)
    loaded = loading.load(original)
    if widened_model.has_half(loaded.model):
        return ScaledRun(scale, not_run="the original has half values, of which a scale keeps more")
    replace(job, loss_scale=scale, scaled_steps=[]).first(loaded.model)
    try:
        before = sessions.open_session(original, optimised=False)
        with runnable(loaded) as model:
            after = sessions.open_session(model, optimised=False)
            runs = _Runs(job.step, before, after, batches[0], loaded.model.metadata_props)
            different = runs.first_difference(batches) or runs.change_in_a_skipped_step(batches[0])
        if different and not runs.is_finite:
            return ScaledRun(scale, not_run="the original is not finite")
        bare = replace(job.step, borders=ScaleBorders())
        if different and _Runs(bare, before, before, batches[0], {}).first_difference(batches):
            return ScaledRun(scale, not_run="the original itself gives other bits when it is run again")
    except (ModelError, ResourceError, RunError) as error:
        return ScaledRun(scale, not_run=str(error))
    return ScaledRun(scale, different)


def _is_same(before: Array, after: Array) -> bool:
    """Return whether arrays have the same bits, but for differences below the least normal number of float32:
    a scale keeps the digits that subnormal numbers lose.
    """
    if before.dtype.kind != "f" or before.shape != after.shape:
        return np.array_equal(before, after)
    with np.errstate(all="ignore"):
        is_near = np.abs(before - after) < np.finfo(np.float32).tiny
    return bool(np.all(is_near | (before == after) | (np.isnan(before) & np.isnan(after))))


class _Runs:
    """Sessions of both steps, with their current states."""

    def __init__(
        self, step: ScaledStep, before: Any, after: Any, first: Arrays, metadata: Mapping[str, str]
    ) -> None:
        self._step, self._before, self._after = step, before, after
        self._start = {pair.input: np.asarray(first[pair.input]) for pair in step.spec.state}
        self._state: Arrays = self._start
        self._half_state: Arrays = {**self._start, **(start_values(metadata) or {})}
        scale = (step.borders.scale, step.borders.good_steps)
        self._all: tuple[Pair, ...] = (*step.spec.state, *(pair for pair in scale if pair is not None))

    def first_difference(self, batches: Iterable[Arrays]) -> str:
        """Return the first output of the original that has other bits in the result; empty if none has."""
        for number, batch in enumerate(batches, 1):
            outputs, others, _ = self._run(batch)
            for name, value in outputs.items():
                if not _is_same(np.asarray(value), np.asarray(others[name])):
                    return f"has other bits in '{name}' in step {number}"
        return ""

    @property
    def is_finite(self) -> bool:
        """Whether the current state of the original is finite."""
        return all(np.isfinite(state).all() for _, state, _ in self._states())

    def change_in_a_skipped_step(self, batch: Arrays) -> str:
        """Return the first state that a step changes whose gradients an infinite scale makes non-finite."""
        scale, finite = self._step.borders.scale, self._step.borders.finite
        if scale is None or finite is None:
            return ""
        fed = {**batch, **self._half_state, scale.input: np.asarray(np.inf, np.float32)}
        outputs = sessions.run_session(self._after, fed)
        for pair in self._step.spec.state if not outputs[finite] else ():
            is_guarded = pair not in self._step.unguarded
            if is_guarded and not _is_same(np.asarray(fed[pair.input]), outputs[pair.output]):
                return f"changes '{pair.output}' in a step that is skipped"
        return ""

    def _run(self, batch: Arrays) -> tuple[Arrays, Arrays, int]:
        """Run one step of both; retry a step that the loss scale skips, with the scale that follows."""
        outputs = sessions.run_session(self._before, {**batch, **self._state})
        self._state = {pair.input: outputs[pair.output] for pair in self._step.spec.state}
        finite, skipped, half_outputs = self._step.borders.finite, 0, self._take_half(batch)
        while finite and not half_outputs[finite] and skipped < MOST_SKIPPED:
            skipped, half_outputs = skipped + 1, self._take_half(batch)
        return outputs, half_outputs, skipped

    def take(self, batch: Arrays) -> ComparedStep:
        """Run one step of both, and compare them."""
        outputs, half_outputs, skipped = self._run(batch)
        loss, half_loss = (float(np.ravel(run[self._step.spec.loss])[0]) for run in (outputs, half_outputs))
        return ComparedStep(loss, half_loss, self._update(), *self._largest(), skipped)

    def _take_half(self, batch: Arrays) -> Arrays:
        outputs = sessions.run_session(self._after, {**batch, **self._half_state})
        self._half_state = {pair.input: outputs[pair.output] for pair in self._all}
        return outputs

    def _update(self) -> float:
        squares, elements = 0.0, 0
        for start, state, half_state in self._states():
            apart = _relative(_norm(half_state - state), _norm(state - start))
            if not np.isfinite(half_state).all():
                return math.inf
            if apart or _norm(state - start):
                squares, elements = squares + state.size * min(apart, 1.0) ** 2, elements + state.size
        return math.sqrt(squares / elements) if elements else math.nan

    def _largest(self) -> tuple[float, str]:
        differences = (_relative(_norm(after - before), _norm(before)) for _, before, after in self._states())
        return max(zip(differences, self._start, strict=True), default=(0.0, ""))

    def _states(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield each state at the start, of the original and of the result, in float64."""
        for name, start in self._start.items():
            yield tuple(np.asarray(a, np.float64) for a in (start, self._state[name], self._half_state[name]))  # pyright: ignore[reportReturnType]


def _norm(array: Array) -> float:
    return float(np.linalg.norm(array))


def _batches(original: Path, step: ScaledStep, data: Data) -> Iterator[Arrays]:
    """Yield the inputs of each step, states included; the samples of `data` are reused in turn."""
    sizes = feeds.given_sizes(original, data)
    made_up = feeds.feeds(original, Data(dims=sizes.dims, seed=data.seed, samples=STEPS))
    samples = list(feeds.partial_feeds(original, data)) or [{}]
    as_trained = _as_trained(loading.load(original).model, step)
    for index, sample in enumerate(made_up):
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
