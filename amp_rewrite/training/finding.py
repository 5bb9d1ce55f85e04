"""Search for the spec of a train step: by arguments, else its metadata, else names, else the dataflow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import ModelError, SpecError
from amp_rewrite.model import states, traversal
from amp_rewrite.model.states import Borders, Pair
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.training import dataflow, linearity, state_pairs
from amp_rewrite.training import spec as asked_spec
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linearity import FLOATS, Linearity, Parts, Subject, analyse
from amp_rewrite.training.spec import Asked, TrainSpec
from amp_rewrite.training.state_pairs import listed

# The seed of a backward pass: the value in which every gradient is linear.


def find_seeds(
    subject: Subject,
    types: Types,
    targets: Sequence[ir.Value],
    gradients: Sequence[ir.Value],
    loss: str,
    seed_name: str | None,
    guessed: list[str],
) -> ir.Value:
    """Find the seed: by `seed_name`, else by a usual name, else by analysis.

    `targets` are the values that the backward pass updates, and `loss` is the name of the loss. Raises
    SpecError where there is no seed, or the named value cannot be one.
    """
    values = _values(subject.flow)
    if seed_name is not None:
        return _validate_seed(subject, values, types, seed_name)
    for name in (f"{loss}_grad", "loss_grad", f"{loss}.grad"):
        if name in values and _starts(subject, types, values[name]):
            return values[name]
    guessed.append("seed")
    return _first(subject, types, targets, gradients)


def _values(flow: Dataflow) -> dict[str, ir.Value]:
    """Return all values of a main graph by name."""
    outer = (*flow.graph.initializers.values(), *flow.graph.inputs)
    outputs = (value for node in flow.nodes for value in node.outputs)
    return {value.name: value for value in (*outer, *outputs) if value.name}


def _validate_seed(subject: Subject, values: dict[str, ir.Value], types: Types, name: str) -> ir.Value:
    if name not in values:
        raise SpecError(f"the seed '{name}' is {_absent(subject.flow, name)}", remedy="name another value")
    if not _is_float(types, values[name]):
        raise SpecError(f"the seed '{name}' is no floating-point tensor", remedy="name another value")
    if not analyse(subject, values[name]).values:
        raise SpecError(
            f"the seed '{name}' starts no backward pass: nothing beyond the loss is linear in it",
            remedy="name another value, or leave it to analysis",
        )
    return values[name]


def _absent(flow: Dataflow, name: str) -> str:
    inner = (graph for graph in traversal.graphs(flow.graph) if graph is not flow.graph)
    for graph in inner:
        outputs = (value.name for node in graph for value in node.outputs)
        if name in graph.initializers or name in outputs or name in [value.name for value in graph.inputs]:
            return "inside the body of a node (If, Loop or Scan), where none can be scaled"
    return "not a value of the model"


def _first(
    subject: Subject, types: Types, targets: Sequence[ir.Value], gradients: Sequence[ir.Value]
) -> ir.Value:
    """Return the first value of the backward pass, in order, that can be its seed; else the last such output
    of the forward pass.
    """
    if not any(map(dataflow.is_product, subject.flow.before(targets) - set(subject.forward))):
        raise SpecError(
            "no train step: its state is updated without a backward pass, as no product is beyond the loss",
            remedy="give a step that computes gradients, or rewrite it as an inference graph",
        )
    for value in _candidates(subject, targets):
        if _is_seed(subject, types, value, targets, gradients):
            return value
    raise SpecError(
        "no value is the seed of the whole backward pass: there are two losses with a seed each, a backward "
        "pass inside the body of a node, or an operator that is not known to be linear",
        remedy="name the seed, and the gradients that are linear in it",
    )


def _candidates(subject: Subject, targets: Sequence[ir.Value]) -> Iterator[ir.Value]:
    flow, forward = subject.flow, subject.forward
    ancestors = flow.before(targets)
    backward = [node for node in flow.nodes if node in ancestors and node not in forward]
    candidates: dict[ir.Value, None] = {}
    for node in backward:
        own = (value for value in flow.reads[node] if value.producer() is None)
        candidates.update(dict.fromkeys((*own, *node.outputs)))
    yield from candidates
    operands = dict.fromkeys(value for node in backward for value in flow.reads[node])
    made_ahead = {value for node in forward for value in node.outputs}
    yield from (value for value in reversed(operands) if value in made_ahead)


def _is_float(types: Types, value: ir.Value) -> bool:
    kind = types.get(value)
    return isinstance(kind, ir.TensorType) and kind.dtype in FLOATS


def _starts(subject: Subject, types: Types, value: ir.Value) -> bool:
    """Return True if a product of a backward pass is linear in a value."""
    return _is_float(types, value) and bool(analyse(subject, value).products)


def _is_seed(
    subject: Subject,
    types: Types,
    value: ir.Value,
    targets: Sequence[ir.Value],
    gradients: Collection[ir.Value],
) -> bool:
    """Whether all products of the backward pass and all named gradients are linear in a value."""
    if not _is_float(types, value):
        return False
    analysis = analyse(subject, value, gradients)
    if not analysis.products or not set(gradients) <= set(analysis.values):
        return False
    parts = linearity.divide_parts(subject.flow, subject.forward, targets, analysis)
    return not linearity.unscaled(subject.flow, parts, analysis)


# Unsupported train steps: operators that no runtime has, and gradients that no scale reaches.

_PREVIEW = "ai.onnx.preview.training"


def refuse_unknown(model: ir.Model) -> None:
    """Raise SpecError for operators of ai.onnx.preview.training."""
    operators = {node.op_type for node in traversal.every_node(model.graph) if node.domain == _PREVIEW}
    if operators:
        raise SpecError(
            f"{', '.join(sorted(operators))} of {_PREVIEW}: no runtime has these operators",
            remedy="export gradients and optimiser as ordinary operators (docs/training.md)",
        )


_ARTEFACTS = frozenset(
    "InPlaceAccumulatorV2 InPlaceAccumulator SoftmaxCrossEntropyLossGrad ReluGrad ConvGrad GatherGrad "
    "LayerNormalizationGrad SoftmaxGrad SoftmaxGrad_13 GeluGrad BiasGeluGrad_dX AdamWOptimizer YieldOp "
    "SGDOptimizerV2".split()
)


def refuse_artefact(model: ir.Model) -> None:
    """Raise ModelError for a model from onnxruntime-training's generate_artifacts."""
    nodes = traversal.every_node(model.graph)
    operators = {
        node.op_type for node in nodes if node.domain == "com.microsoft" and node.op_type in _ARTEFACTS
    }
    lazy = any(value.name == "lazy_reset_grad" for value in model.graph.inputs)
    if operators or lazy:
        what = ", ".join(sorted(operators)) or "lazy_reset_grad"
        raise ModelError(
            f"an artefact of onnxruntime-training ({what}): its gradient operators have no half kernels, and "
            "only onnxruntime-training 1.19.2, which is no longer maintained, runs it",
            remedy="export a plain train step (docs/training.md); insert_loss_scale works on artefacts too",
        )


def refuse_unscaled(
    analysis: Linearity, flow: Dataflow, parts: Parts, gradients: Sequence[ir.Value], spec: TrainSpec
) -> None:
    """Raise SpecError for a gradient that a scale of the seed does not reach: it would underflow in half."""
    if not analysis.frontier:
        raise SpecError(
            f"nothing reads what is linear in the seed '{spec.seed}': there are no gradients",
            remedy="name another seed, or leave it to analysis",
        )
    linear = set(analysis.values)
    unreached = [value.name or "" for value in gradients if value not in linear]
    if unreached:
        raise SpecError(
            f"the gradients {listed(unreached)} are not linear in the seed '{spec.seed}', and would stay "
            "unscaled: a second loss, or an operator that is not known to be linear, is on the way",
            remedy="name another seed, or the gradients that are linear in it",
        )
    outside = [value.name or "" for value in linearity.unscaled(flow, parts, analysis)]
    if outside and not gradients:
        raise SpecError(
            f"{listed(outside)} reach the state without the scale of the seed '{spec.seed}': a second loss "
            "has a seed of its own, or an operator that is not known to be linear is on the way",
            remedy="give both losses one seed, or name the gradients to scale",
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A model that is a train step: its spec, its dataflow, and the parts of its nodes.

    `forward` are the nodes on which the loss depends. `guessed` names the parts of the spec inferred from the
    dataflow alone.
    """

    model: ir.Model
    spec: TrainSpec
    types: Types
    flow: Dataflow
    borders: Borders
    forward: Collection[ir.Node]
    linearity: Linearity
    parts: Parts
    guessed: tuple[str, ...]

    @property
    def loss(self) -> ir.Value:
        """The value of the loss."""
        return self.borders.outputs[self.spec.loss]


def find_step(model: ir.Model, request: Asked, suffix: str | None = None) -> Step:
    """Find the train step in a model without functions whose nodes are sorted.

    Raises SpecError, which names the missing part or lists the candidates, for a model that is no train step
    or an ambiguous one.
    """
    refuse_unknown(model)
    flow, types = dataflow.of(model.graph), element_types.infer(model)
    borders = states.borders(model.graph, types)
    partial_spec = request.over(asked_spec.spec_in_metadata(model.metadata_props))
    guessed: list[str] = []
    pairs = tuple(states.by_name(borders, suffix)) if partial_spec.state is None else partial_spec.state
    if suffix is not None and not pairs:
        raise SpecError(
            f"no output is called as an input with '{suffix}' behind it",
            remedy=f"its outputs are {listed(borders.outputs)}",
        )
    state_pairs.check(borders, pairs)
    loss = _loss(borders, flow, partial_spec.loss, pairs, guessed)
    forward = flow.before([borders.outputs[loss]])
    state = pairs
    if partial_spec.state is None and not pairs:
        state = tuple(state_pairs.by_dataflow(borders, forward))
        guessed += ["state"] if state else []
    gradients = _gradients(flow, partial_spec.gradients or ())
    targets = _targets(borders, state, gradients)
    if not targets:
        raise SpecError(
            "no train step: no output is the new value of an input, and no gradient is named",
            remedy=f"name the state, each as IN=OUT; its outputs are {listed(borders.outputs)}",
        )
    subject = Subject(model, flow, forward)
    seed = find_seeds(subject, types, targets, gradients, loss, partial_spec.seed, guessed)
    analysis = analyse(subject, seed, gradients)
    parts = linearity.divide_parts(flow, forward, targets, analysis)
    names = tuple(value.name or "" for value in gradients)
    spec = TrainSpec(loss, seed.name or "", state, names)
    step = Step(model, spec, types, flow, borders, forward, analysis, parts, tuple(guessed))
    refuse_unscaled(step.linearity, flow, parts, gradients, spec)
    return step


def _targets(borders: Borders, state: Sequence[Pair], gradients: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the values for which the backward pass exists: new state, else the gradients."""
    return [borders.outputs[pair.output] for pair in state] or list(gradients)


def _gradients(flow: Dataflow, names: Sequence[str]) -> tuple[ir.Value, ...]:
    outputs = {value.name: value for node in flow.nodes for value in node.outputs if value.name}
    for name in names:
        if name not in outputs:
            raise SpecError(
                f"the gradient '{name}' is not a value that a node of the main graph outputs",
                remedy="name values of the backward pass, or leave the gradients out",
            )
    return tuple(outputs[name] for name in names)


def _loss(
    borders: Borders, flow: Dataflow, loss_name: str | None, state: Sequence[Pair], guessed: list[str]
) -> str:
    """Find the loss: by `loss_name`, else the output "loss", else the only scalar behind a product."""
    if loss_name is not None:
        if loss_name not in borders.outputs:
            remedy = f"its outputs are {listed(borders.outputs)}"
            raise SpecError(f"the loss '{loss_name}' is not an output of the model", remedy=remedy)
        return loss_name
    state_outputs = {pair.output for pair in state}
    scalars = [name for name in _scalars(borders) if name not in state_outputs]
    if "loss" in scalars or _may_be_scalar(borders, "loss"):
        return "loss"
    leading = [
        name for name in scalars if any(map(dataflow.is_product, flow.before([borders.outputs[name]])))
    ]
    if len(leading) == 1:
        guessed.append("loss")
        return leading[0]
    if not leading:
        raise SpecError(
            "no train step: no output is a floating-point scalar that a product leads to, as a loss is",
            remedy=f"if one of its outputs is the loss, name it with `loss`: {listed(borders.outputs)}",
        )
    raise SpecError(f"several outputs may be the loss: {listed(leading)}", remedy="name it with `loss`")


def _scalars(borders: Borders) -> Iterator[str]:
    for name, value in borders.outputs.items():
        if value.shape is not None and _may_be_scalar(borders, name):
            yield name


def _may_be_scalar(borders: Borders, name: str) -> bool:
    """Return True for a floating-point output of that name with one element, as far as its shape is known."""
    value = borders.outputs.get(name)
    kind = None if value is None else borders.types.get(value)
    if value is None or not isinstance(kind, ir.TensorType) or kind.dtype not in FLOATS:
        return False
    return value.shape is None or all(size == 1 for size in value.shape)
