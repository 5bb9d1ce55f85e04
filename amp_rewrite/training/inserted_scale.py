"""A loss scale with all that belongs to it, inserted into a step: factors, skipped steps, and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from amp_rewrite.errors import SpecError
from amp_rewrite.training import insertion, skipping, state_machine
from amp_rewrite.training.finding import Step
from amp_rewrite.training.node_building import BOOL, FLOAT, NodeBuilder
from amp_rewrite.training.scales import DynamicLossScale, FixedLossScale, LossScale
from amp_rewrite.training.spec import PREFIX, Pair

STATE_KEY = f"{PREFIX}loss_scale"
"""The key of a model's metadata that holds the inputs and outputs of its loss scale, and the start values."""

_FIXED_OPSET, _DYNAMIC_OPSET = 7, 9
"""The first opsets that have the operators: broadcasting, and Where and Less of integers."""


@dataclass(frozen=True, slots=True)
class ScaleBorders:
    """The names of the inputs and outputs that a loss scale added: the pairs of its state, None where it has
    none, and the output that says whether all gradients were finite, None where nothing asks.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import insert_loss_scale
        >>> borders = insert_loss_scale(train_step()).step.borders
        >>> borders.scale, borders.finite
        (Pair(input='loss_scale', output='loss_scale.new'), 'grads_finite')
    """

    scale: Pair | None = None
    good_steps: Pair | None = None
    finite: str | None = None


@dataclass(frozen=True, slots=True)
class InsertedScale:
    """What an inserted scale is, by names: its inputs and outputs, the state that a skipped step cannot keep,
    the scaled seed and the product that it is cast from, and the powers that the scale alone makes: 1 for the
    scale itself, -1 for its reciprocal.
    """

    borders: ScaleBorders
    unguarded: tuple[Pair, ...]
    seed: str
    product: str = ""
    powers: Mapping[str, int] = field(default_factory=dict[str, int])


def insert(step: Step, asked: LossScale, build: NodeBuilder, *, skips: bool) -> InsertedScale:
    """Inserts a scale into a step; changes the model. Raises SpecError where it has one, or is too old."""
    if STATE_KEY in step.model.metadata_props:
        raise SpecError(
            "the step has a loss scale already", remedy="insert one into the original, or ask for none"
        )
    insertion.refuse_old(step.model, _DYNAMIC_OPSET if skips else _FIXED_OPSET)
    state: state_machine.ScaleState | None = None
    if isinstance(asked, FixedLossScale):
        factor = build.scalar("loss_scale", asked.value, FLOAT)
        reciprocal = build.scalar("loss_scale__reciprocal", 1 / asked.value, FLOAT)
    else:
        state = state_machine.inputs(build)
        factor = state.scale
        one = build.scalar("loss_scale__one", 1.0, FLOAT)
        reciprocal = build.node("Div", (one, factor), "loss_scale__reciprocal", behind=factor)
    scaled = insertion.insert(step, factor, reciprocal, build)
    names = (scaled.seed.name or "", scaled.product.name or "")
    powers = _powers(build, factor, reciprocal)
    if not skips:
        return InsertedScale(ScaleBorders(), (), *names, powers)
    finite = skipping.all_finite(scaled.gradients, build)
    unguarded = skipping.guard(step, finite, build)
    scale_pair = steps_pair = None
    if state is not None and isinstance(asked, DynamicLossScale):
        after = state_machine.update(state, finite, asked, build)
        scale_pair = _output(build, state.scale, after.scale)
        steps_pair = _output(build, state.good_steps, after.good_steps)
    flag = build.node("Identity", (finite,), "grads_finite__out", dtype=BOOL)
    build.output(flag, "grads_finite")
    borders = ScaleBorders(scale_pair, steps_pair, flag.name)
    return InsertedScale(borders, unguarded, *names, powers)


def _powers(build: NodeBuilder, factor: ir.Value, reciprocal: ir.Value) -> dict[str, int]:
    """The two, and what is cast from them, by name."""
    found = {factor: 1, reciprocal: -1}
    for node in build.nodes:
        if node.op_type == "Cast" and node.inputs[0] in found:
            found[node.outputs[0]] = found[node.inputs[0]]
    return {value.name or "": degree for value, degree in found.items()}


def _output(build: NodeBuilder, before: ir.Value, after: ir.Value) -> Pair:
    build.output(after, f"{before.name}.new")
    return Pair(before.name or "", after.name or "")
