"""A train step with a loss scale: the inserted nodes and state, and the parts that stay float32."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import Held
from amp_rewrite.analysis.states import Pair
from amp_rewrite.model import traversal
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.rewriting.report import StepPart, SummaryLine
from amp_rewrite.text import plural
from amp_rewrite.training import insertion, linearity
from amp_rewrite.training.finding import Step
from amp_rewrite.training.insertion import STATE_KEY, InsertedScale, NodeBuilder, ScaleBorders
from amp_rewrite.training.spec import DynamicLossScale, FixedLossScale, LossScale, TrainSpec


@dataclass(frozen=True, slots=True)
class ScaledStep:
    """The outcome for a step, by the names of values.

    `frontier` are the gradients, where the scale is divided out again, in order. `loss_region` and
    `optimiser` are the nodes that stay float32 around the loss and behind the gradients. `unguarded` are
    pairs of state that a skipped step updates nevertheless, and `without_gradient` those that depend on no
    gradient, such as running statistics. `guessed` names the parts of the spec inferred from the dataflow
    alone, and `seed` is the scaled seed. `products` counts the products of the backward pass. `parts` maps
    the outputs of each node beyond the forward pass to the part of that node.

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
    parts: Mapping[str, StepPart]

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data.

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
    return {"kind": "fixed" if isinstance(scale, FixedLossScale) else "dynamic", **asdict(scale)}


def _borders_json(borders: ScaleBorders) -> dict[str, Any]:
    pairs = {"scale": borders.scale, "good_steps": borders.good_steps}
    state = {name: [pair.input, pair.output] for name, pair in pairs.items() if pair is not None}
    return {**state, "finite": borders.finite}


def scale(step: Step, loss_scale: LossScale | None, *, skip_nonfinite: bool) -> tuple[ScaledStep, Held]:
    """Insert a loss scale into a step, and return it with the values that stay float32; changes the model.

    A dynamic scale skips steps whose gradients are not finite, a fixed one with `skip_nonfinite` only.
    """
    region = linearity.find_loss_region(step.flow, step.loss, step.linearity)
    region -= set(step.parts.optimiser)
    frontier = tuple(value.name or "" for value in step.linearity.frontier)
    region_names, optimiser_names = _names(region, step), _names(step.parts.optimiser, step)
    without = _without_gradient(step)
    build, inserted_scale = NodeBuilder(step.model), InsertedScale(ScaleBorders(), (), step.spec.seed)
    if loss_scale is not None:
        inserted_scale = insertion.insert_scale(
            step, loss_scale, build, skips=skip_nonfinite or isinstance(loss_scale, DynamicLossScale)
        )
    kept_nodes = {
        Reason.LOSS_REGION: region,
        Reason.OPTIMISER: step.parts.optimiser,
        Reason.SCALING: build.nodes,
    }
    evidence: dict[str, Evidence] = {}  # by the current names of values: insertion renames outputs
    for reason, nodes in kept_nodes.items():
        subject = step.spec.loss if reason is Reason.LOSS_REGION else step.spec.seed
        why = Evidence(Authority.TRAINING, reason, subject=subject)
        outputs = (value for node in traversal.nodes_inner_first(nodes) for value in node.outputs)
        evidence.update((value.name, why) for value in outputs if value.name)
    _record(step, loss_scale, inserted_scale)
    scaled_seeds = (inserted_scale.product, inserted_scale.seed) if loss_scale is not None else ()
    scaled_step = ScaledStep(
        spec=step.spec,
        loss_scale=loss_scale,
        borders=inserted_scale.borders,
        seed=inserted_scale.seed,
        frontier=frontier,
        loss_region=region_names,
        optimiser=optimiser_names,
        unguarded=inserted_scale.unguarded,
        without_gradient=without,
        guessed=step.guessed,
        products=step.linearity.products,
        parts=_parts(step, region, build.nodes, scaled_seeds),
    )
    return scaled_step, evidence


def _without_gradient(step: Step) -> tuple[Pair, ...]:
    """Return the state that depends on no gradient."""
    flow = step.flow
    behind = flow.behind(linearity.users(flow, step.linearity))
    outputs = {pair: step.borders.outputs[pair.output] for pair in step.spec.state}
    return tuple(
        pair
        for pair, value in outputs.items()
        if value.producer() not in behind and value not in step.linearity.frontier
    )


def _names(nodes: Iterable[ir.Node], step: Step) -> tuple[str, ...]:
    """Return the first output of each node, in the order of the model."""
    members = set(nodes)
    return tuple(node.outputs[0].name or "" for node in step.flow.nodes if node in members)


def _record(step: Step, loss_scale: LossScale | None, inserted_scale: InsertedScale) -> None:
    """Record the spec, and the state of the scale with its initial values, in the metadata of the model."""
    step.model.metadata_props.update(step.spec.to_metadata())
    if loss_scale is None:
        return  # an earlier call may have inserted a scale
    record = {"scale": _scale_json(loss_scale), "state": _borders_json(inserted_scale.borders)}
    step.model.metadata_props[STATE_KEY] = json.dumps(record)


def start_values(metadata: Mapping[str, str]) -> dict[str, NDArray[Any]] | None:
    """Return the initial values of the inputs that a loss scale added, by name; None without a loss scale.

    Raises KeyError, TypeError or ValueError for damaged metadata.
    """
    if STATE_KEY not in metadata:
        return None
    record = json.loads(metadata[STATE_KEY])
    if "good_steps" not in record["state"]:
        return {}
    return {
        record["state"]["scale"][0]: np.asarray(record["scale"]["initial_scale"], np.float32),
        record["state"]["good_steps"][0]: np.asarray(0, np.int64),
    }


def _parts(
    step: Step, region: Collection[ir.Node], scale_nodes: Iterable[ir.Node], product_names: Collection[str]
) -> Mapping[str, StepPart]:
    """Return the part of each node beyond the forward pass, by the names of its outputs.

    `region` is the loss region, `scale_nodes` are the nodes of the loss scale, and `product_names` the
    products by which it enters the backward pass.
    """
    by_node = dict.fromkeys(step.linearity.nodes, StepPart.BACKWARD)
    by_node |= dict.fromkeys(step.parts.optimiser, StepPart.OPTIMISER)
    by_node |= dict.fromkeys(region, StepPart.LOSS)
    gradients = set(step.linearity.frontier)
    for node in scale_nodes:
        leaves = node.op_type == "Mul" and _stands_for(node.inputs[0], gradients)
        enters = any(value.name in product_names for value in node.outputs)
        by_node[node] = StepPart.ENTERS if enters else StepPart.LEAVES if leaves else StepPart.SCALE
    items = ((value.name or "", part) for node, part in by_node.items() for value in node.outputs)
    return MappingProxyType(dict(items))


def _stands_for(value: ir.Value | None, gradients: Collection[ir.Value]) -> bool:
    """Return True for a gradient, or a value cast from one."""
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Cast":
        value = maker.inputs[0]
    return value in gradients


# The summary of a train step in a terminal.


def lines(step: ScaledStep) -> Iterator[SummaryLine]:
    """Yield the lines on the step, its scale, and its float32 parts."""
    spec = step.spec
    guessed = f" (by the dataflow: {', '.join(step.guessed)})" if step.guessed else ""
    state = plural(len(spec.state), "tensor")
    yield SummaryLine("step", f"loss '{spec.loss}', seed '{spec.seed}', {state} of state{guessed}")
    against = "" if step.loss_scale is None else "; a proof is against the float32 step with it"
    yield SummaryLine("scale", f"{_scale(step)}{against}")
    around, behind = plural(len(step.loss_region), "node"), plural(len(step.optimiser), "node")
    gradients = plural(len(step.frontier), "gradient")
    yield SummaryLine("float32", f"{around} around the loss, {behind} behind {gradients}")
    for pair in step.unguarded:
        yield SummaryLine("warning", f"the state {pair} is an input itself, and kept whatever happens")


def _scale(step: ScaledStep) -> str:
    scale, borders = step.loss_scale, step.borders
    if scale is None:
        return "none"
    if isinstance(scale, FixedLossScale):
        skips = f", steps are skipped unless '{borders.finite}'" if borders.finite else ", no step is skipped"
        return f"fixed at {scale.value:g}{skips}"
    grows = f"times {scale.multiplier:g} after {scale.increment_period:,} good steps"
    state = f"'{borders.scale}' and '{borders.good_steps}'"
    return f"dynamic from {scale.initial_scale:g}, {grows}; state {state}, and output '{borders.finite}'"


def details(step: ScaledStep) -> Iterator[SummaryLine]:
    """Yield a line for every pair of state, gradient and node that stays float32."""
    lone = set(step.without_gradient)
    for pair in step.spec.state:
        yield SummaryLine("state", f"{pair}{', which depends on no gradient' if pair in lone else ''}")
    yield from (SummaryLine("frontier", name) for name in step.frontier)
    yield from (SummaryLine("float32", f"{name}, around the loss") for name in step.loss_region)
    yield from (SummaryLine("float32", f"{name}, behind the gradients") for name in step.optimiser)
