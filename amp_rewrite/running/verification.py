"""Original against rewritten, in numbers: on CUDA where it works, else on the CPU with half rounded."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnx

from amp_rewrite import arguments
from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import comparison, metrics, sessions
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.comparison import FailedError, Measured
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.inputs import given
from amp_rewrite.running.inputs.given import Samples
from amp_rewrite.running.inputs.origins import GIVEN, Origin
from amp_rewrite.running.metrics import Metrics, Tolerances
from amp_rewrite.running.sessions import Device, Feeds, Runnable


@dataclass(frozen=True, slots=True)
class Output:
    """An output's metrics, the worst of all samples, and the bounds that it breaks, in words."""

    name: str
    metrics: Metrics
    broken: tuple[str, ...]

    @property
    def is_compared(self) -> bool:
        """Whether the original has a value here that a comparison can go by."""
        return self.metrics.compared > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rewritten model does what the original does.

    `signature` says what differs in names, types and shapes of inputs and outputs and should not, or why
    the rewritten model does not run at all; `how` where the two ran, `samples` on how many inputs, `inputs`
    where these come from. `blame` is there when it was asked for.

    `warnings` are of outputs that declare a wrong shape in both models, which are compared none the less.

    A verdict that goes by nothing is no good one. A value can be compared where it is finite in the original,
    or no float at all. `unproven` says, in words, where there is none:

    - nowhere: the outputs are empty, or the original makes nothing finite;
    - nowhere in an output that has values, and wherever it has them inputs are not finite either;
    - nowhere in a sample whose inputs are not finite, while others have them.

    Else infinities and NaN that both models have are no fault: a mask may be one of the outputs, an image
    without detections one of the samples, and inputs that are not finite are fair where the original makes
    something finite of them.
    """

    outputs: tuple[Output, ...]
    signature: tuple[str, ...]
    how: str
    samples: int
    blame: Blame | None = None
    inputs: Origin = GIVEN
    unproven: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything that is wrong, a sentence each."""
        broken = (f"{output.name}: {fault}" for output in self.outputs for fault in output.broken)
        return (*self.signature, *broken, *self.unproven)

    @property
    def ok(self) -> bool:
        """Whether the models were compared, and nothing is wrong."""
        return not self.faults

    @property
    def is_far(self) -> bool:
        """Whether outputs are too far apart: inputs and outputs are the same, and both models run."""
        return not self.signature and any(output.broken for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        said = {"ok": self.ok, "verified": self.ok, "not_verified": "; ".join(self.faults) or None}
        return _plain(asdict(self) | {"inputs": self.inputs.to_json()} | said)


def _plain(value: Any) -> Any:
    """The same with numbers that JSON has no word for as text."""
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
    inputs: Origin = GIVEN,
    timeout: float | None = None,
) -> Verdict:
    """Runs both models on all samples and compares their outputs.

    The models may be of any kind that `rewrite` takes. A sample is a mapping from input names to arrays;
    `samples` is one of them, or any iterable of them, and `inputs` says where they come from. With `io`
    "half", float32 inputs and outputs may be half in the rewritten model. `device` is "cuda" or "cpu"; where
    it is not given, CUDA where it works.

    A rewritten model that does not run, or has other inputs and outputs, has a bad verdict, and so has a
    comparison that proves nothing (Verdict says when that is). Raises MissingPackageError without
    onnxruntime, ModelError and FeedError when the original does not run or what is given is no model or no
    sample, OptionError for other arguments, and TimeLimitError after `timeout` seconds.
    """
    bounds = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", bounds, Tolerances, "write Tolerances(relative_l2=0.02)")
    io = arguments.choice("io", io, IOTypes)
    arguments.instance("inputs", inputs, Origin, "leave it out")
    models = given.model("original", original), given.model("rewritten", rewritten)
    feeds, where = given.samples(samples), given.device(device)
    with TimeLimit(timeout).running():
        return _verify(models, feeds, bounds, io, where, inputs)


def _verify(
    models: tuple[Runnable, Runnable],
    feeds: Iterable[Feeds],
    bounds: Tolerances,
    io: IOTypes,
    where: Device,
    inputs: Origin,
) -> Verdict:
    before = sessions.open_session(models[0], where)
    origin = inputs if before.get_inputs() else GIVEN
    judged = Verdict(outputs=(), signature=(), how=_HOW[where], samples=0, inputs=origin)
    try:
        with emulated(models[1], where, late=True) as runnable:
            return _judge(judged, models, before, runnable, feeds, bounds, io, where)
    except FailedError as error:
        return replace(judged, signature=(f"the rewritten model does not run: {error}",))


def _judge(
    judged: Verdict,
    models: tuple[Runnable, Runnable],
    before: Any,
    rewritten: Runnable,
    samples: Iterable[Feeds],
    bounds: Tolerances,
    io: IOTypes,
    where: Device,
) -> Verdict:
    try:
        after = sessions.open_session(rewritten, where)
    except ModelError as error:
        raise FailedError(error) from error
    wrong = _wrongly_declared(models, before, after)
    differences = tuple(_differences(before, after, io, wrong))
    judged = replace(judged, signature=differences, warnings=tuple(wrong.values()))
    if judged.signature:
        return judged
    origin = judged.inputs
    runs = [comparison.run(before, after, feeds, origin.sample(index)) for index, feeds in enumerate(samples)]
    if not runs:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    return replace(
        judged,
        outputs=tuple(_outputs([run.measured for run in runs], bounds)),
        samples=len(runs),
        unproven=comparison.unproven(runs),
    )


_HOW = {
    Device.CUDA: "CUDA, float32 without TF32 against half",
    Device.CPU: "CPU, float32 against half emulated",
}


def _wrongly_declared(models: tuple[Runnable, Runnable], before: Any, after: Any) -> dict[str, str]:
    """What is to be said of outputs that onnxruntime finds other shapes for than both models declare.

    It keeps to one or the other as it sees fit, so the shapes of the two sessions say nothing of the models.
    """
    pairs = zip(before.get_outputs(), after.get_outputs(), strict=False)
    apart = [(was, now) for was, now in pairs if was.name == now.name and was.shape != now.shape]
    old, new = map(_declared, models) if apart else ({}, {})
    return {
        was.name: f"output '{was.name}' declares the shape {said}, and onnxruntime finds {found}"
        for was, now in apart
        if (said := old.get(was.name)) is not None and said == new.get(was.name)
        for found in (now.shape if was.shape == said else was.shape,)
    }


def _declared(model: Runnable) -> dict[str, list[int | str | None]]:
    """The shapes that the outputs of a model declare, as onnxruntime writes them."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
    return {
        info.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim
        ]
        for info in proto.graph.output
        if info.type.tensor_type.HasField("shape")
        for shape in (info.type.tensor_type.shape,)
    }


def _differences(before: Any, after: Any, io: IOTypes, excused: Container[str]) -> Iterator[str]:
    for side in ("inputs", "outputs"):
        old, new = (getattr(session, f"get_{side}")() for session in (before, after))
        if [entry.name for entry in old] != [entry.name for entry in new]:
            yield f"the {side} are {_names(new)}, and were {_names(old)}"
            continue
        for was, now in zip(old, new, strict=True):
            halved = io is IOTypes.HALF and {was.type, now.type} <= _HALF_OR_FLOAT
            if was.type != now.type and not halved:
                yield f"'{was.name}' is {now.type}, and was {was.type}"
            if was.shape != now.shape and (side == "inputs" or was.name not in excused):
                yield f"'{was.name}' has the shape {now.shape}, and had {was.shape}"


_HALF_OR_FLOAT = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}


def _names(entries: Iterable[Any]) -> str:
    return ", ".join(f"'{entry.name}'" for entry in entries)


def _outputs(measured: list[Measured], bounds: Tolerances) -> Iterator[Output]:
    for name in dict.fromkeys(name for sample in measured for name in sample):
        samples = [sample[name] for sample in measured if name in sample]
        worst, is_float = comparison.worst([found for found, _ in samples]), samples[0][1]
        yield Output(name, worst, tuple(metrics.broken(worst, bounds, is_float=is_float)))
