"""The numerical comparison of original and rewritten model: on CUDA, on the CPU with half emulated, or with
WebGPU as the witness, which computes in half.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import ModelError
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.policy.targets import Accumulation
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import (
    half_types,
    judging,
    own_metrics,
    run_arguments,
    sessions,
    signatures,
    witness_sessions,
)
from amp_rewrite.running.comparison import RewrittenRunError
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.inputs import trials
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.inputs.input_source import FROM_CALLER, InputSource
from amp_rewrite.running.inputs.trials import Trial
from amp_rewrite.running.noise import Float32Noise
from amp_rewrite.running.own_metrics import Metric, MetricFunction
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Device, Runnable
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.running.witness_sessions import WitnessSession


def verify(
    original: ModelSource,
    rewritten: ModelSource,
    samples: Samples | None = None,
    bounds: Tolerances | None = None,
    *,
    io: IOTypes | str = IOTypes.KEEP,
    device: Device | str | None = None,
    accumulate: Accumulation | str = Accumulation.FLOAT,
    inputs: InputSource = FROM_CALLER,
    timeout: float | None = None,
    metrics: Metric | MetricFunction | Iterable[Metric | MetricFunction] = (),
    custom_ops: PathLike | Iterable[PathLike] = (),
) -> Verdict:
    """Runs both models on all samples and compares their outputs.

    The models can be of any kind that `rewrite` takes. A sample is a mapping from input names to arrays;
    `samples` is one sample or an iterable of samples, and `inputs` is their source. Without samples, one is
    synthesised as the command does it: that shows less than real data. With `io` "half", float32
    inputs and outputs may be half in the rewritten model. `device` is "cuda", "cpu" or "webgpu"; by default
    CUDA if it works. On WebGPU the rewritten model runs in half arithmetic, against float32 on the CPU.
    Where half is emulated, `accumulate` says whether sums in half nodes are "float" or "half" (`emulate`).
    `metrics` are your own, functions or `Metric`s with bounds; one that raises or returns no number
    fails the verdict, which says so. `custom_ops` are the libraries of the models' custom operators.

    The verdict fails if the rewritten model does not run, or has different inputs or outputs, and if the
    comparison proves nothing (see Verdict). Raises MissingPackageError without onnxruntime, ModelError and
    FeedError if the original does not run, or a model or sample is invalid, OptionError for other invalid
    arguments, and TimeLimitError after `timeout` seconds.

    Examples:
        >>> from amp_rewrite import rewrite, verify
        >>> from amp_rewrite.demo import feeds, network
        >>> verify(network(), rewrite(network()).model, [feeds()]).ok
        True
        >>> verify(network(), network(seed=1), feeds()).faults[0]
        'probabilities: error 0.524 is above 0.01'
        >>> verify(network(), rewrite(network()).model).inputs.is_synthetic
        True
    """
    bounds = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", bounds, Tolerances, "write Tolerances(error=0.02)")
    io = arguments.choice("io", io, IOTypes)
    arguments.instance("inputs", inputs, InputSource, "omit it")
    own = own_metrics.several(metrics)
    libraries = run_arguments.libraries(custom_ops)
    sums = arguments.choice("accumulate", accumulate, Accumulation)
    with TimeLimit(timeout).running():
        return verify_trials(
            original,
            rewritten,
            _trials(original, samples, inputs),
            bounds,
            own,
            io=io,
            device=device,
            accumulate=sums,
            libraries=libraries,
        )


def _trials(original: ModelSource, samples: Samples | None, inputs: InputSource) -> tuple[Trial, ...]:
    """The samples that were given, and else synthetic ones."""
    if samples is None:
        return trials.trials(run_arguments.model("original", original), Data())
    return (Trial(run_arguments.samples(samples), inputs),)


def verify_trials(
    original: ModelSource,
    rewritten: ModelSource,
    tried: Sequence[Trial],
    bounds: Tolerances,
    metrics: tuple[Metric, ...] = (),
    *,
    io: IOTypes = IOTypes.KEEP,
    device: Device | str | None = None,
    accumulate: Accumulation = Accumulation.FLOAT,
    libraries: Libraries = (),
) -> Verdict:
    """The verdict of `verify` on the best-conditioned trial, which names the others; raises as `verify`."""
    models = run_arguments.model("original", original), run_arguments.model("rewritten", rewritten)
    where = run_arguments.device(device)
    reference = sessions.reference(where)
    began = time.perf_counter()
    before = sessions.open_session(models[0], reference, libraries)
    source = tried[0].source if before.get_inputs() else FROM_CALLER
    blank = Verdict(
        outputs=(), signature=(), how=_how(where, accumulate), samples=0, inputs=source, witness=where
    )
    try:
        left: list[ir.Node] = []
        with emulated(models[1], where, late=True, accumulate=accumulate, left=left) as runnable:
            blank = replace(blank, how=_how(where, accumulate, left))
            after = _open_rewritten(runnable, where, libraries)
            if isinstance(after, WitnessSession):
                blank = replace(blank, how=f"{blank.how}, {after.placed} there")
            wrong = signatures.wrongly_declared(models, before, after)
            exempt = {*wrong, *signatures.undeclared(models[0], before, after)}
            differences = tuple(signatures.differences(before, after, io, exempt))
            blank = replace(blank, signature=differences, warnings=tuple(wrong.values()))
            noise = Float32Noise(models[0], reference, libraries)
            pair = judging.Pair(before, after, half_types.half_of(runnable), bounds, metrics, noise, began)
            return blank if differences else judging.judge(blank, pair, tried)
    except RewrittenRunError as error:
        cause = str(error)
        return replace(blank, signature=(f"the rewritten model does not run: {cause}",), failed_run=cause)


def _open_rewritten(model: Runnable, device: Device, libraries: Libraries) -> Any:
    try:
        return witness_sessions.open_session(model, device, libraries)
    except ModelError as error:
        raise RewrittenRunError(error) from error


def _how(device: Device, accumulate: Accumulation, left: Sequence[ir.Node] = ()) -> str:
    """How two models are compared; `left` are nodes that sum in float32, where sums are to be half."""
    if device is not Device.CPU or accumulate is not Accumulation.HALF:
        return _HOW[device]
    beside = f" but those of {plural(len(left), 'node')}" if left else ""
    return f"{_HOW[device]}, sums too{beside}"


_HOW = {
    Device.CUDA: "CUDA, float32 without TF32 against half",
    Device.CPU: "CPU, float32 against half emulated",
    Device.WEBGPU: "float32 on the CPU against half on WebGPU",
}
