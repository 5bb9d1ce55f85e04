"""Insertion of a loss scale: the seed is multiplied by it, and every gradient by its reciprocal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.states import Pair
from amp_rewrite.errors import SpecError
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types, tensor
from amp_rewrite.rewriting.instrument import Inserter, redirect
from amp_rewrite.training.finding import Step
from amp_rewrite.training.spec import PREFIX, DynamicLossScale, FixedLossScale, LossScale

# New nodes in a main graph: constants, and operators with one output.

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64
SCALAR = ir.Shape(())


class NodeBuilder(Inserter):
    """A builder that adds nodes to the main graph of a model, and records them in `nodes`.

    A node is inserted behind the producer of a value if one is named, else at the end of the graph.
    """

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model)
        self.nodes: list[ir.Node] = []

    def input(self, stem: str, dtype: ir.DataType) -> ir.Value:
        """Append a scalar input to the model, named after `stem`, and return it."""
        value = ir.Value(name=self.names.new_value(stem), type=tensor(dtype), shape=SCALAR)
        self.root.inputs.append(value)
        return value

    def output(self, value: ir.Value, stem: str) -> None:
        """Append a new value to the outputs of the model, named after `stem`."""
        value.name = self.names.new_value(stem)
        self.root.outputs.append(value)

    def scalar(self, stem: str, number: float, dtype: ir.DataType) -> ir.Value:
        """Register a scalar initializer and return its value."""
        name = self.names.new_value(stem)
        constant = ir.tensor(np.asarray(number, dtype.numpy()), name=name)
        return self.store(name, constant)

    def node(
        self,
        operator: str,
        inputs: Sequence[ir.Value],
        stem: str,
        *,
        dtype: ir.DataType = FLOAT,
        shape: ir.Shape | None = SCALAR,
        behind: ir.Value | None = None,
        **attributes: int,
    ) -> ir.Value:
        """Add a node and return its output; the node is inserted behind the producer of `behind`."""
        output = ir.Value(name=self.names.new_value(stem), type=tensor(dtype), shape=shape)
        given = [ir.AttrInt64(name, number) for name, number in attributes.items()]
        name = self.names.of_node(output.name or "")
        node = ir.Node("", operator, inputs, given, outputs=(output,), name=name)
        self.nodes.append(node)
        if behind is None:
            self.root.append(node)
        else:
            self.behind(behind, [node])
        return output

    def cast(self, value: ir.Value, was: ir.DataType, to: ir.DataType) -> ir.Value:
        """Return the value cast to another type, or itself if it has that type."""
        if was == to:
            return value
        stem = f"{value.name}__as_{to.name.lower()}"
        return self.node("Cast", (value,), stem, dtype=to, shape=value.shape, behind=value, to=int(to))


def _scale_seed(step: Step, scale: ir.Value, build: NodeBuilder) -> tuple[ir.Value, ir.Value]:
    """Return the scaled seed and the product that it is cast from; redirect the nodes that are linear in the
    seed to it. Other consumers keep the unscaled seed.
    """
    product, narrow = _product(step.linearity.seed, scale, "scaled", step.types, build)
    redirect([(step.linearity.seed_uses, narrow)])
    return narrow, product


def _unscale(step: Step, value: ir.Value, reciprocal: ir.Value, build: NodeBuilder) -> ir.Value:
    """Return a gradient times the reciprocal of the scale, in float32, or float64 where it was; redirect its
    non-linear uses to it.
    """
    product, narrow = _product(value, reciprocal, "unscaled", step.types, build)
    uses = step.linearity.frontier[value]
    redirect([(uses, narrow)])
    if any(use.holder is build.root for use in uses):
        value.name, narrow.name = narrow.name, value.name
    return product


def _product(
    value: ir.Value, factor: ir.Value, suffix: str, types: Types, build: NodeBuilder
) -> tuple[ir.Value, ir.Value]:
    """Return a value times a factor in float32 (float64 for float64), and the product in its own type."""
    kind = types.get(value)
    if not isinstance(kind, ir.TensorType):
        raise SpecError(
            f"the gradient '{value.name}' has no known element type",
            remedy="declare the types of the values of the backward pass",
        )
    wide = DOUBLE if kind.dtype == DOUBLE else FLOAT
    by = build.cast(factor, FLOAT, wide)
    wide_value = build.cast(value, kind.dtype, wide)
    behind = by if wide_value.producer() is None else wide_value
    product = build.node(
        "Mul", (wide_value, by), f"{value.name}__{suffix}", dtype=wide, shape=value.shape, behind=behind
    )
    return product, build.cast(product, wide, kind.dtype)


# The overflow check of gradients, and the guards that skip a step with non-finite ones.

TINY = 2.0**-64
"""The factor of gradients before their absolute values are summed: a sum of 2^60 elements of float32's
largest number stays finite, and elements that underflow are finite anyway.
"""


def all_finite(gradients: Sequence[ir.Value], build: NodeBuilder) -> ir.Value:
    """Return a scalar flag: every element of every gradient is finite.

    The sum of absolute values is infinite or NaN if an element is (IEEE 754); neither is less than infinity.
    """
    by_type = ([value for value in gradients if value.dtype == dtype] for dtype in (FLOAT, DOUBLE))
    flags = [_finite(group, build) for group in by_type if group]
    flag = flags[0]
    for other in flags[1:]:
        flag = build.node("And", (flag, other), "grads_finite__both", dtype=BOOL)
    return flag


def _finite(gradients: Sequence[ir.Value], build: NodeBuilder) -> ir.Value:
    """Return the flag of gradients of one type."""
    dtype = gradients[0].dtype or FLOAT
    tiny = build.scalar("grads_finite__tiny", TINY, dtype)
    sums: list[ir.Value] = []
    for value in gradients:
        small = build.node("Mul", (value, tiny), f"{value.name}__small", dtype=dtype, shape=value.shape)
        sums.append(build.node("ReduceL1", (small,), f"{value.name}__l1", dtype=dtype, keepdims=0))
    total = sums[0]
    if len(sums) > 1:
        total = build.node("Sum", sums, "grads_finite__sum", dtype=dtype)
    infinity = build.scalar("grads_finite__infinity", float("inf"), dtype)
    return build.node("Less", (total, infinity), "grads_finite__flag", dtype=BOOL)


def guard(step: Step, finite: ir.Value, build: NodeBuilder) -> tuple[Pair, ...]:
    """Guard every state output: it is the old state where gradients are not finite.

    Returns the unguarded pairs, whose output is itself an input of the model.
    """
    unguarded: list[Pair] = []
    outputs = {value.name: value for value in build.root.outputs}  # a gradient may have taken a name
    for pair in step.spec.state:
        old, new = step.borders.inputs[pair.input], outputs[pair.output]
        if new.is_graph_input():
            unguarded.append(pair)
        else:
            _guard(old, new, finite, build)
    return tuple(unguarded)


def _guard(old: ir.Value, new: ir.Value, finite: ir.Value, build: NodeBuilder) -> None:
    """Replace an output by its guarded value, which takes its name; other consumers are not redirected."""
    dtype = old.dtype or FLOAT
    selection = build.node("Where", (finite, new, old), f"{new.name}__kept", dtype=dtype, shape=old.shape)
    outputs = build.root.outputs
    for port, value in enumerate(list(outputs)):
        if value is new:
            outputs[port] = selection
    new.name, selection.name = selection.name, new.name


# The dynamic loss scale as nodes: scale and good steps are inputs, and outputs for the next step. Where
# gradients are finite, good steps are counted up to the period; then the scale is multiplied, unless the
# product overflows float32, and the count restarts. Where they are not, the scale is divided, down to 1.
# Source: DynamicLossScale.update of TensorFlow's loss_scale.py.


@dataclass(frozen=True, slots=True)
class ScaleState:
    """The inputs of a step for its loss scale and for the number of steps since it last changed."""

    scale: ir.Value
    good_steps: ir.Value


def update(state: ScaleState, finite: ir.Value, schedule: DynamicLossScale, build: NodeBuilder) -> ScaleState:
    """Return the scale and the number of good steps after a step; `finite` is the flag of its gradients."""
    one, zero = build.scalar("good_steps__one", 1, INT64), build.scalar("good_steps__zero", 0, INT64)
    period = build.scalar("good_steps__period", schedule.increment_period, INT64)
    count = build.node("Add", (state.good_steps, one), "good_steps__count", dtype=INT64)
    waits = build.node("Less", (count, period), "good_steps__waits", dtype=BOOL)
    larger = build.node(
        "Where", (waits, state.scale, _grow(state.scale, schedule, build)), "loss_scale__finite"
    )
    smaller = _shrink(state.scale, schedule, build)
    scale = build.node("Where", (finite, larger, smaller), "loss_scale__next")
    is_counted = build.node("And", (finite, waits), "good_steps__counts", dtype=BOOL)
    return ScaleState(scale, build.node("Where", (is_counted, count, zero), "good_steps__next", dtype=INT64))


def _grow(scale: ir.Value, schedule: DynamicLossScale, build: NodeBuilder) -> ir.Value:
    """Return the scale times the multiplier, or the scale where the product overflows."""
    by = build.scalar("loss_scale__multiplier", schedule.multiplier, FLOAT)
    infinity = build.scalar("loss_scale__infinity", float("inf"), FLOAT)
    larger = build.node("Mul", (scale, by), "loss_scale__larger")
    fits = build.node("Less", (larger, infinity), "loss_scale__holds", dtype=BOOL)
    return build.node("Where", (fits, larger, scale), "loss_scale__grown")


def _shrink(scale: ir.Value, schedule: DynamicLossScale, build: NodeBuilder) -> ir.Value:
    by = build.scalar("loss_scale__divisor", schedule.multiplier, FLOAT)
    least = build.scalar("loss_scale__least", 1.0, FLOAT)
    smaller = build.node("Div", (scale, by), "loss_scale__smaller")
    return build.node("Max", (smaller, least), "loss_scale__shrunk")


# A complete loss scale in a step: its factors, the guards of skipped steps, and its state.

STATE_KEY = f"{PREFIX}loss_scale"
"""The metadata key for the inputs and outputs of a model's loss scale, and their initial values."""

_FIXED_OPSET, _DYNAMIC_OPSET = 7, 9
"""The first opsets with the operators: broadcasting, and Where and Less of integers."""


@dataclass(frozen=True, slots=True)
class ScaleBorders:
    """The names of the inputs and outputs that a loss scale added: the pairs of its state, None for a fixed
    scale, and the output flag for finite gradients, None where no step is skipped.

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
    """An inserted scale by names: its inputs and outputs, the unguarded state, the scaled seed, the product
    that it is cast from.
    """

    borders: ScaleBorders
    unguarded: tuple[Pair, ...]
    seed: str
    product: str = ""


def insert_scale(step: Step, loss_scale: LossScale, build: NodeBuilder, *, skips: bool) -> InsertedScale:
    """Insert a scale into a step; changes the model.

    Raises SpecError for a model that already has one, or whose opset is too old.
    """
    if STATE_KEY in step.model.metadata_props:
        raise SpecError(
            "the step has a loss scale already", remedy="insert one into the original, or ask for none"
        )
    least = _DYNAMIC_OPSET if skips else _FIXED_OPSET
    version = element_types.default_opset(step.model.graph.opset_imports)
    if version < least:
        raise SpecError(
            f"a loss scale needs opset {least}, and the model has {version}",
            remedy=f"convert it to opset {least} or later (onnx.version_converter)",
        )
    state: ScaleState | None = None
    if isinstance(loss_scale, FixedLossScale):
        factor = build.scalar("loss_scale", loss_scale.value, FLOAT)
        reciprocal = build.scalar("loss_scale__reciprocal", 1 / loss_scale.value, FLOAT)
    else:
        state = ScaleState(build.input("loss_scale", FLOAT), build.input("good_steps", INT64))
        factor = state.scale
        one = build.scalar("loss_scale__one", 1.0, FLOAT)
        reciprocal = build.node("Div", (one, factor), "loss_scale__reciprocal", behind=factor)
    gradients = [_unscale(step, value, reciprocal, build) for value in step.linearity.frontier]
    names = tuple(value.name or "" for value in _scale_seed(step, factor, build))
    if not skips:
        return InsertedScale(ScaleBorders(), (), *names)
    finite = all_finite(gradients, build)
    unguarded = guard(step, finite, build)
    scale_pair = steps_pair = None
    if state is not None and isinstance(loss_scale, DynamicLossScale):
        after = update(state, finite, loss_scale, build)
        scale_pair = _output(build, state.scale, after.scale)
        steps_pair = _output(build, state.good_steps, after.good_steps)
    flag = build.node("Identity", (finite,), "grads_finite__out", dtype=BOOL)
    build.output(flag, "grads_finite")
    borders = ScaleBorders(scale_pair, steps_pair, flag.name)
    return InsertedScale(borders, unguarded, *names)


def _output(build: NodeBuilder, before: ir.Value, after: ir.Value) -> Pair:
    build.output(after, f"{before.name}.new")
    return Pair(before.name or "", after.name or "")
