"""The numerical comparison of original and rewritten model: on CUDA, or on the CPU with half emulated."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnx

from amp_rewrite import arguments
from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import comparison, metrics, run_arguments, sessions
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.comparison import RewrittenRunError
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.inputs.input_source import FROM_CALLER, InputSource
from amp_rewrite.running.metrics import Metrics, Tolerances
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Device, Feeds, Runnable


@dataclass(frozen=True, slots=True)
class Output:
    """An output's metrics, the worst over all samples, and the violated bounds, in words."""

    name: str
    metrics: Metrics
    broken: tuple[str, ...]

    @property
    def is_compared(self) -> bool:
        """Whether the original has at least one comparable value."""
        return self.metrics.compared > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rewritten model computes the same outputs as the original.

    `signature` lists unexpected differences in the names, types and shapes of inputs and outputs, or the
    error that keeps the rewritten model from running. `how` is where the two ran, `samples` the number of
    samples, `inputs` their source; `blame` is None unless requested. `warnings` are about outputs that
    declare a wrong shape in both models; these are compared all the same.

    A verdict without evidence does not pass. A value is comparable if it is finite in the original, or not
    float. `unproven` lists, in words, where no value is comparable:

    - in no output at all: they are empty, or the original computes nothing finite;
    - in a non-empty output, if all samples with values for it have non-finite inputs;
    - in a sample with non-finite inputs, if the same outputs are comparable in other samples.

    Other infinities and NaN that both models have are not a failure: a mask may be an output, an image may
    have no detections, and non-finite inputs are valid if the original computes finite outputs from them.
    """

    outputs: tuple[Output, ...]
    signature: tuple[str, ...]
    how: str
    samples: int
    blame: Blame | None = None
    inputs: InputSource = FROM_CALLER
    unproven: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """All reasons for a failure, one sentence each."""
        violated = (f"{output.name}: {bound}" for output in self.outputs for bound in output.broken)
        return (*self.signature, *violated, *self.unproven)

    @property
    def ok(self) -> bool:
        """Whether the models were compared, and the comparison passed."""
        return not self.faults

    @property
    def is_far(self) -> bool:
        """Whether outputs violate bounds, while the signatures agree and both models run."""
        return not self.signature and any(output.broken for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """This as JSON data."""
        status = {"ok": self.ok, "verified": self.ok, "not_verified": "; ".join(self.faults) or None}
        return _plain(asdict(self) | {"inputs": self.inputs.to_json()} | status)


def _plain(value: Any) -> Any:
    """`value` with infinities and NaN, which JSON lacks, as strings."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def verify(
    original: ModelSource,
    rewritten: ModelSource,
    samples: Samples,
    bounds: Tolerances | None = None,
    *,
    io: IOTypes | str = IOTypes.KEEP,
    device: Device | str | None = None,
    inputs: InputSource = FROM_CALLER,
    timeout: float | None = None,
) -> Verdict:
    """Runs both models on all samples and compares their outputs.

    The models can be of any kind that `rewrite` takes. A sample is a mapping from input names to arrays;
    `samples` is one sample or an iterable of samples, and `inputs` is their source. With `io` "half", float32
    inputs and outputs may be half in the rewritten model. `device` is "cuda" or "cpu"; by default CUDA if it
    works.

    The verdict fails if the rewritten model does not run, or has different inputs or outputs, and if the
    comparison proves nothing (see Verdict). Raises MissingPackageError without onnxruntime, ModelError and
    FeedError if the original does not run, or a model or sample is invalid, OptionError for other invalid
    arguments, and TimeLimitError after `timeout` seconds.
    """
    bounds = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", bounds, Tolerances, "write Tolerances(relative_l2=0.02)")
    io = arguments.choice("io", io, IOTypes)
    arguments.instance("inputs", inputs, InputSource, "omit it")
    models = run_arguments.model("original", original), run_arguments.model("rewritten", rewritten)
    feeds, where = run_arguments.samples(samples), run_arguments.device(device)
    with TimeLimit(timeout).running():
        before = sessions.open_session(models[0], where)
        source = inputs if before.get_inputs() else FROM_CALLER
        blank = Verdict(outputs=(), signature=(), how=_HOW[where], samples=0, inputs=source)
        try:
            with emulated(models[1], where, late=True) as runnable:
                after = _open_rewritten(runnable, where)
                wrong = _wrongly_declared(models, before, after)
                differences = tuple(_differences(before, after, io, wrong))
                blank = replace(blank, signature=differences, warnings=tuple(wrong.values()))
                return blank if differences else _judge(blank, before, after, feeds, bounds)
        except RewrittenRunError as error:
            return replace(blank, signature=(f"the rewritten model does not run: {error}",))


def _open_rewritten(model: Runnable, device: Device) -> Any:
    try:
        return sessions.open_session(model, device)
    except ModelError as error:
        raise RewrittenRunError(error) from error


def _judge(blank: Verdict, before: Any, after: Any, feeds: Iterable[Feeds], bounds: Tolerances) -> Verdict:
    """The verdict on two sessions with the same signature."""
    source = blank.inputs
    runs = [comparison.compare(before, after, sample, source.sample(i)) for i, sample in enumerate(feeds)]
    if not runs:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    names = dict.fromkeys(name for run in runs for name in run.outputs)
    outputs = (
        _output(name, [run.outputs[name] for run in runs if name in run.outputs], bounds) for name in names
    )
    return replace(blank, outputs=tuple(outputs), samples=len(runs), unproven=comparison.unproven(runs))


def _output(name: str, samples: Sequence[tuple[Metrics, bool]], bounds: Tolerances) -> Output:
    worst, is_float = comparison.worst([found for found, _ in samples]), samples[0][1]
    return Output(name, worst, tuple(metrics.violations(worst, bounds, is_float=is_float)))


_HOW = {
    Device.CUDA: "CUDA, float32 without TF32 against half",
    Device.CPU: "CPU, float32 against half emulated",
}


def _wrongly_declared(models: tuple[Runnable, Runnable], before: Any, after: Any) -> dict[str, str]:
    """A warning, by name, for each output whose inferred shape differs from what both models declare.

    onnxruntime reports either shape, so that different shapes in the sessions do not mean that the models
    differ.
    """
    pairs = zip(before.get_outputs(), after.get_outputs(), strict=False)
    differing = [(was, now) for was, now in pairs if was.name == now.name and was.shape != now.shape]
    old, new = map(_declared, models) if differing else ({}, {})
    return {
        was.name: f"output '{was.name}' declares the shape {declared}, and onnxruntime finds {inferred}"
        for was, now in differing
        if (declared := old.get(was.name)) is not None and declared == new.get(was.name)
        for inferred in (now.shape if was.shape == declared else was.shape,)
    }


def _declared(model: Runnable) -> dict[str, list[int | str | None]]:
    """The declared shapes of a model's outputs, in onnxruntime's form."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
    return {
        info.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim
        ]
        for info in proto.graph.output
        if info.type.tensor_type.HasField("shape")
        for shape in (info.type.tensor_type.shape,)
    }


def _differences(before: Any, after: Any, io: IOTypes, exempt: Container[str]) -> Iterator[str]:
    for side in ("inputs", "outputs"):
        old, new = (getattr(session, f"get_{side}")() for session in (before, after))
        if [entry.name for entry in old] != [entry.name for entry in new]:
            yield f"the {side} are {_names(new)}, and were {_names(old)}"
            continue
        for was, now in zip(old, new, strict=True):
            halved = io is IOTypes.HALF and {was.type, now.type} <= _HALF_OR_FLOAT
            if was.type != now.type and not halved:
                yield f"'{was.name}' is {now.type}, and was {was.type}"
            if was.shape != now.shape and (side == "inputs" or was.name not in exempt):
                yield f"'{was.name}' has the shape {now.shape}, and had {was.shape}"


_HALF_OR_FLOAT = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}


def _names(entries: Iterable[Any]) -> str:
    return ", ".join(f"'{entry.name}'" for entry in entries)
