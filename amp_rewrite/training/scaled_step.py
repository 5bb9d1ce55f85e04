"""A train step with a loss scale: what was inserted, and what of the step stays float32."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.held import Held
from amp_rewrite.errors import SpecError
from amp_rewrite.model import traversal
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.training import insertion, loss_region, parts, skipping, state_machine
from amp_rewrite.training.finding import Step
from amp_rewrite.training.node_building import BOOL, FLOAT, NodeBuilder
from amp_rewrite.training.scales import DynamicLossScale, FixedLossScale, LossScale
from amp_rewrite.training.spec import PREFIX, Pair, TrainSpec

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
class ScaledStep:
    """What became of a step, by the names of values.

    `frontier` are the gradients, where the scale is divided out again, in order. `loss_region` and
    `optimiser` are the nodes that stay float32 around the loss and behind the gradients. `unguarded` are
    pairs of state that a skipped step cannot keep, and `without_gradient` those that depend on no gradient,
    as running statistics do. `guessed` names what of the spec only the dataflow says, and `seed` is the
    scaled seed. `products` counts the products of the backward pass.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import insert_loss_scale
        >>> step = insert_loss_scale(train_step()).step
        >>> step.frontier, step.products
        (('w2_grad', 'w1_grad'), 3)
    """

    spec: TrainSpec
    loss_scale: LossScale | None
    borders: ScaleBorders
    seed: str
    frontier: tuple[str, ...]
    loss_region: tuple[str, ...]
    optimiser: tuple[str, ...]
    unguarded: tuple[Pair, ...]
    without_gradient: tuple[Pair, ...]
    guessed: tuple[str, ...]
    products: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain data.

        Examples:
            >>> from amp_rewrite.demo import train_step
            >>> from amp_rewrite.training import insert_loss_scale
            >>> insert_loss_scale(train_step()).step.to_json()["scale_state"]["good_steps"]
            ['good_steps', 'good_steps.new']
        """
        return {
            "spec": self.spec.to_json(),
            "guessed": list(self.guessed),
            "loss_scale": _scale_json(self.loss_scale),
            "scale_state": _borders_json(self.borders),
            "scaled_seed": self.seed,
            "frontier": list(self.frontier),
            "loss_region": list(self.loss_region),
            "optimiser": list(self.optimiser),
            "unguarded": [[pair.input, pair.output] for pair in self.unguarded],
            "without_gradient": [[pair.input, pair.output] for pair in self.without_gradient],
            "backward_products": self.products,
        }


def _scale_json(scale: LossScale | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    if isinstance(scale, FixedLossScale):
        return {"kind": "fixed", "value": scale.value}
    return {
        "kind": "dynamic",
        "initial_scale": scale.initial_scale,
        "increment_period": scale.increment_period,
        "multiplier": scale.multiplier,
    }


def _borders_json(borders: ScaleBorders) -> dict[str, Any]:
    pairs = {"scale": borders.scale, "good_steps": borders.good_steps}
    found = {name: [pair.input, pair.output] for name, pair in pairs.items() if pair is not None}
    return {**found, "finite": borders.finite}


def scale(step: Step, asked: LossScale | None, *, skip_nonfinite: bool) -> tuple[ScaledStep, Held]:
    """Inserts a loss scale into a step, and says what of it stays float32; changes the model.

    A dynamic scale skips steps whose gradients are not finite, a fixed one with `skip_nonfinite` only.
    """
    region = loss_region.find(step.flow, step.loss, step.linearity, step.forward)
    region -= set(step.parts.optimiser)
    frontier = tuple(value.name or "" for value in step.linearity.frontier)
    region_names, optimiser_names = _names(region, step), _names(step.parts.optimiser, step)
    without = _without_gradient(step)
    build, inserted = NodeBuilder(step.model), _Inserted(ScaleBorders(), (), step.spec.seed)
    if asked is not None:
        inserted = _insert(step, asked, build, skips=skip_nonfinite or isinstance(asked, DynamicLossScale))
    held = {  # by the names that values have now: outputs have changed theirs
        **dict(_held(region, step, Reason.LOSS_REGION)),
        **dict(_held(step.parts.optimiser, step, Reason.OPTIMISER)),
        **dict(_held(build.nodes, step, Reason.SCALING)),
    }
    _tell(step, asked, inserted)
    scaled = ScaledStep(
        spec=step.spec,
        loss_scale=asked,
        borders=inserted.borders,
        seed=inserted.seed,
        frontier=frontier,
        loss_region=region_names,
        optimiser=optimiser_names,
        unguarded=inserted.unguarded,
        without_gradient=without,
        guessed=step.guessed,
        products=step.linearity.products,
    )
    return scaled, held


@dataclass(frozen=True, slots=True)
class _Inserted:
    borders: ScaleBorders
    unguarded: tuple[Pair, ...]
    seed: str
    powers: Mapping[str, int] = field(default_factory=dict[str, int])
    """What the scale alone makes, by name: 1 for the scale itself, -1 for its reciprocal."""


def _insert(step: Step, asked: LossScale, build: NodeBuilder, *, skips: bool) -> _Inserted:
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
    seed, powers = scaled.seed.name or "", _powers(build, factor, reciprocal)
    if not skips:
        return _Inserted(ScaleBorders(), (), seed, powers)
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
    return _Inserted(borders, unguarded, seed, powers)


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


def _without_gradient(step: Step) -> tuple[Pair, ...]:
    """The state that depends on no gradient."""
    flow = step.flow
    behind = flow.behind(parts.users(flow, step.linearity))
    outputs = {pair: step.borders.outputs[pair.output] for pair in step.spec.state}
    return tuple(
        pair
        for pair, value in outputs.items()
        if value.producer() not in behind and value not in step.linearity.frontier
    )


def _held(nodes: Iterable[ir.Node], step: Step, reason: Reason) -> Iterator[tuple[str, Evidence]]:
    """The values that nodes and their bodies output, each with the evidence."""
    evidence = _evidence(step, reason)
    for node in traversal.nodes_inner_first(nodes):
        yield from ((value.name, evidence) for value in node.outputs if value.name)


def _evidence(step: Step, reason: Reason) -> Evidence:
    subject = step.spec.loss if reason is Reason.LOSS_REGION else step.spec.seed
    return Evidence(Authority.TRAINING, reason, subject=subject)


def _names(nodes: Iterable[ir.Node], step: Step) -> tuple[str, ...]:
    """The first output of each node, in the order of the model."""
    held = set(nodes)
    return tuple(node.outputs[0].name or "" for node in step.flow.nodes if node in held)


def _tell(step: Step, asked: LossScale | None, inserted: _Inserted) -> None:
    """Leaves the spec, and the state of the scale with its start values, in the metadata of the model."""
    step.model.metadata_props.update(step.spec.to_metadata())
    if asked is None:
        return  # another may have inserted one
    told: dict[str, Any] = {
        "scale": _scale_json(asked),
        "state": _borders_json(inserted.borders),
        "powers": inserted.powers,
    }
    step.model.metadata_props[STATE_KEY] = json.dumps(told)


def start_values(metadata: Mapping[str, str]) -> dict[str, NDArray[Any]] | None:
    """The first values of the inputs that a loss scale added, by name; None where the metadata tell of none.

    Raises KeyError, TypeError or ValueError for damaged metadata.
    """
    if STATE_KEY not in metadata:
        return None
    told = json.loads(metadata[STATE_KEY])
    if "good_steps" not in told["state"]:
        return {}
    return {
        told["state"]["scale"][0]: np.asarray(told["scale"]["initial_scale"], np.float32),
        told["state"]["good_steps"][0]: np.asarray(0, np.int64),
    }
