"""The two jobs on train steps: inserting a loss scale, and rewriting a step to mixed precision."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite import arguments, pipeline
from amp_rewrite.analysis.observed import Held, Seen
from amp_rewrite.errors import OptionError, SpecError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import inlining, loading, output_paths, serialization, writing
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.operator_lists import OpLists
from amp_rewrite.policy.options import FLOAT32, KERAS, IOTypes, Options
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.report import Report
from amp_rewrite.training import finding, scaled_step
from amp_rewrite.training import spec as casting
from amp_rewrite.training.finding import Step
from amp_rewrite.training.scaled_step import ScaledStep
from amp_rewrite.training.spec import AUTO, DYNAMIC, Implementation, LossScale, TrainSpec

# Queries of a model: its spec as a train step, and the initial state of its loss scale.


def find_spec(
    model: loading.ModelSource,
    *,
    loss: str = "",
    seed: str = "",
    state: Any = (),
    gradients: arguments.Texts = (),
    state_suffix: str | None = None,
) -> TrainSpec:
    """Find the spec of a model as a train step; the model is not changed.

    What is empty is taken from its metadata (`amp_rewrite.train.*`), else from names (`loss`,
    `loss_grad`, `X.new` for `X`; with `state_suffix`, `X` and the suffix), else from the dataflow.
    Raises SpecError, which names the missing part or lists the candidates, for a model that is no train step
    or an ambiguous one, ModelError for an invalid model, and OptionError for arguments of other types.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import find_spec
        >>> spec = find_spec(train_step())
        >>> spec.loss, spec.seed, [str(pair) for pair in spec.state]
        ('loss', 'loss_grad', ['w1 -> w1_new', 'w2 -> w2_new'])
    """
    suffix = None if state_suffix is None else arguments.instance("state_suffix", state_suffix, str)
    request = TrainSpec(loss, seed, state, gradients)
    loaded = loading.load(model).model
    with result_checks.blaming(lambda: serialization.checkable(model)):
        return found_in(loaded, request, suffix).spec


def found_in(model: ir.Model, request: TrainSpec, suffix: str | None = None) -> Step:
    """Return a loaded model as a train step, with its functions inlined; raises as `find_spec`."""
    inlining.inline(model)
    return finding.find_step(model, request, suffix)


def initial_state(model: loading.ModelSource) -> dict[str, NDArray[np.generic]]:
    """Return the initial values of the inputs that a dynamic loss scale added to a model, by name: the scale,
    a float32 scalar, and the number of good steps, an int64 scalar. Empty for a fixed scale.

    Raises SpecError for a model without a loss scale of ours, and ModelError for an invalid model.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import initial_state, insert_loss_scale
        >>> sorted(initial_state(insert_loss_scale(train_step()).model))
        ['good_steps', 'loss_scale']
    """
    metadata = loading.load(model).model.metadata_props
    try:
        values = scaled_step.start_values(metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(
            f"its metadata are damaged ({error})", remedy="insert the loss scale again"
        ) from error
    if values is None:
        raise SpecError("the model has no loss scale of ours", remedy="insert one with insert_loss_scale")
    return values


M = TypeVar("M", covariant=True)


@dataclass(frozen=True, slots=True)
class TrainResult(Generic[M]):
    """A train step in mixed precision, of the kind of the argument, with the details of step and rewrite.

    For a path, `model` is the path that was written. `report` is on the rewrite to half.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import rewrite_train_step
        >>> result = rewrite_train_step(train_step())
        >>> result.step.spec.loss, result.report.nodes.half
        ('loss', 11)
    """

    model: M
    step: ScaledStep
    report: Report


@dataclass(frozen=True, slots=True)
class InsertResult(Generic[M]):
    """A train step with a loss scale, of the kind of the argument, with the details of the step.

    For a path, `model` is the path that was written. `broken` are faults of the result (any of them is a bug
    of the tool).

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import insert_loss_scale
        >>> inserted = insert_loss_scale(train_step(), loss_scale=128)
        >>> inserted.broken, inserted.step.loss_scale
        ((), FixedLossScale(value=128.0))
    """

    model: M
    step: ScaledStep
    broken: tuple[str, ...] = ()


def _request(spec: TrainSpec | None) -> TrainSpec:
    if spec is None:
        return TrainSpec()
    return arguments.instance("spec", spec, TrainSpec, "give what find_spec returned")


def insert_loss_scale(
    model: loading.ModelSource,
    spec: TrainSpec | None = None,
    loss_scale: LossScale | str | float | None = DYNAMIC,
    *,
    skip_nonfinite: bool = False,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> InsertResult[Any]:
    """Insert a loss scale, and change nothing else: no value of the step changes in exact arithmetic, nor
    a bit in float32 while the scale is a power of two and nothing overflows or is subnormal.

    `model` is an argument of `rewrite`, of any precision, and the result of the same kind; a path is written
    to `output`, with `force` as for `rewrite`. `spec` is a result of `find_spec`, which is called if omitted.
    `loss_scale` is "dynamic", a number from 1 up, a FixedLossScale or a DynamicLossScale. With a dynamic
    scale, and with `skip_nonfinite`, steps with gradients that are not finite leave the state unchanged.
    Raises SpecError as `find_spec`, ModelError, OptionError and OutputError.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import insert_loss_scale
        >>> scaled = insert_loss_scale(train_step()).model
        >>> [value.name for value in scaled.graph.input][-2:]
        ['loss_scale', 'good_steps']
    """
    scale = casting.parse_scale(loss_scale)
    skips = arguments.flag("skip_nonfinite", skip_nonfinite)
    if scale is None:
        raise OptionError("no loss scale is asked for", where="loss_scale", remedy='give "dynamic", say')
    target = _target(model, output, force=force)
    loaded = loading.load(model)
    with result_checks.blaming(lambda: serialization.checkable(model)):
        step, _ = scaled_step.scale(found_in(loaded.model, _request(spec)), scale, skip_nonfinite=skips)
        if target is not None:
            output_paths.refuse_data(target, loaded.external)
        with writing.transaction(target) as transaction:
            artefact = writing.write_result(model, loaded, target, changed=True)
            nodes = len(loaded.model.graph)
            checks = result_checks.validate(artefact.checkable, lambda: serialization.checkable(model), nodes)
            result = transaction.commit(artefact.model)
    return InsertResult(result, step, checks.broken)


def _target(model: loading.ModelSource, output: str | os.PathLike[str] | None, *, force: bool) -> Path | None:
    is_path = isinstance(model, (str, os.PathLike))
    if is_path and output is None:
        raise OptionError("a path needs an output", where="output", remedy="say where to write the result")
    if is_path or output is not None:
        return output_paths.choose(model, output, FLOAT16, in_place=False, force=force)
    return None


def rewrite_train_step(
    model: loading.ModelSource,
    to: Half | str = FLOAT16,
    loss_scale: LossScale | str | float | None = AUTO,
    implementation: Implementation | str = Implementation.GRAPH_REWRITE,
    *,
    spec: TrainSpec | None = None,
    skip_nonfinite: bool = False,
    options: Options | None = None,
    observed: Seen | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> TrainResult[Any]:
    """Rewrite a train step to mixed precision: products in half, forward and backward; the loss, the start of
    the backward pass, and all nodes behind the gradients in float32; with a loss scale.

    `model`, `output` and `force` are as for `rewrite`, `spec` and `skip_nonfinite` for `insert_loss_scale`.
    `loss_scale` is "dynamic", a number from 1 up for a fixed one, None, or "auto": dynamic for float16, none
    for bfloat16. `implementation` is "graph_rewrite", by the operator lists, or "casting", every layer in
    half except those that are denied. `to` may also be a precision policy by its name in Keras: under
    `mixed_float16` and `mixed_bfloat16` a softmax that makes an output stays float32, and under `float32`
    everything does. `options` are further options; `to` replaces their `half`, and inputs and outputs keep
    their types.
    `observed` is as for `rewrite`.
    Raises as `rewrite`, SpecError as `find_spec`, and ModelError for artefacts of onnxruntime-training.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import initial_state, rewrite_train_step
        >>> half = rewrite_train_step(train_step(), loss_scale="dynamic")
        >>> {name: value.item() for name, value in initial_state(half.model).items()}
        {'loss_scale': 32768.0, 'good_steps': 0}
    """
    train_job = job(to, loss_scale, implementation, spec, options, skip_nonfinite=skip_nonfinite)
    outcome = pipeline.rewrite(
        model,
        train_job.options,
        output=output,
        force=force,
        observed=observed,
        transform=train_job.first,
        on_plan=on_plan,
        progress=progress,
    )
    return TrainResult(outcome.model, train_job.step, outcome.report)


@dataclass(frozen=True, slots=True)
class TrainJob:
    """The parsed arguments of a rewrite; `first` is its transform of the model before the analysis."""

    options: Options
    loss_scale: LossScale | None
    said: TrainSpec
    skips: bool
    suffix: str | None
    scaled_steps: list[ScaledStep]

    def first(self, model: ir.Model) -> Held:
        """Insert the loss scale; return the values that stay float32. Raises SpecError, and ModelError."""
        finding.refuse_artefact(model)
        found = found_in(model, self.said, self.suffix)
        step, evidence = scaled_step.scale(found, self.loss_scale, skip_nonfinite=self.skips)
        self.scaled_steps.append(step)
        return evidence

    @property
    def step(self) -> ScaledStep:
        """The scaled step, after a call of `first`."""
        return self.scaled_steps[-1]


def job(
    to: Half | str = FLOAT16,
    loss_scale: LossScale | str | float | None = AUTO,
    implementation: Implementation | str = Implementation.GRAPH_REWRITE,
    spec: TrainSpec | None = None,
    options: Options | None = None,
    *,
    skip_nonfinite: bool = False,
    suffix: str | None = None,
) -> TrainJob:
    """Parse the arguments of `rewrite_train_step`, and the suffix that pairs state."""
    half = compute_type(to)
    how = arguments.choice("implementation", implementation, Implementation)
    settings = Options() if options is None else arguments.instance("options", options, Options)
    settings = replace(
        settings,
        half=half or FLOAT16,
        lists=settings.lists if half else _NOTHING,
        keep_softmax=settings.keep_softmax or (isinstance(to, str) and to.lower() in KERAS),
        keep_overridable=True,  # state that has a default stays an input
    )
    is_wide = half is None and loss_scale == AUTO
    scale = None if is_wide else casting.parse_scale(loss_scale, half or FLOAT16)
    skips = arguments.flag("skip_nonfinite", skip_nonfinite)
    _refuse_contradictions(settings, scale, skips=skips)
    settings = casting.settle_implementation(settings, how)
    return TrainJob(settings, scale, _request(spec), skips, suffix, [])


_NOTHING = OpLists(FLOAT32, "nothing is half", MappingProxyType({}))


def compute_type(to: object) -> Half | None:
    """Return the half type of a train step, also by a name; None for float32. Raises OptionError."""
    by_name = {**halves.BY_NAME, **KERAS}
    if isinstance(to, str) and to.lower() in by_name:
        return by_name[to.lower()]
    if not isinstance(to, Half):
        raise arguments.refused("to", f"{arguments.describe(to)} is not one of {', '.join(by_name)}")
    return to


def _refuse_contradictions(options: Options, scale: LossScale | None, *, skips: bool) -> None:
    if skips and scale is None:
        raise OptionError("`skip_nonfinite` is for a loss scale", remedy="give one, such as 1")
    if options.io is not IOTypes.KEEP:
        raise OptionError(
            "`Options.io=HALF` would make master weights half", remedy="leave it out: state stays float32"
        )
    if options.storage_only:
        raise OptionError("`Options.storage_only` is not for master weights", remedy="leave it out")
    if options.keep_functions:
        raise OptionError(
            "`Options.keep_functions` hides the backward pass of a train step", remedy="leave it out"
        )
