"""Search for the spec of a train step: by arguments, else its metadata, else names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import ModelError, SpecError
from amp_rewrite.model import states, traversal
from amp_rewrite.model.states import Borders, Pair
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.text import shortened
from amp_rewrite.training import linearity, spec
from amp_rewrite.training.linearity import FLOATS, Dataflow, Linearity, Parts, Subject, analyse
from amp_rewrite.training.spec import TrainSpec


@dataclass(frozen=True, slots=True)
class Step:
    """A model that is a train step: its spec, its dataflow, and the parts of its nodes.

    `forward` are the nodes on which the loss depends.
    """

    model: ir.Model
    spec: TrainSpec
    types: Types
    flow: Dataflow
    borders: Borders
    forward: Collection[ir.Node]
    linearity: Linearity
    parts: Parts

    @property
    def loss(self) -> ir.Value:
        """The value of the loss."""
        return self.borders.outputs[self.spec.loss]


def find_step(model: ir.Model, request: TrainSpec, suffix: str | None = None) -> Step:
    """Find the train step in a model without functions whose nodes are sorted.

    Raises SpecError, which names the missing part and lists candidates, for a model that is no train step.
    """
    _refuse_unknown(model)
    flow, types = linearity.dataflow_of(model.graph), element_types.infer(model)
    borders = states.borders(model.graph, types)
    request = spec.complete(request, spec.spec_in_metadata(model.metadata_props))
    state = _state(borders, request, suffix)
    loss = _loss(borders, request.loss)
    gradients = _gradients(flow, request.gradients)
    targets = [borders.outputs[pair.output] for pair in state] or list(gradients)
    if not targets:
        raise SpecError(
            "no train step: no output is the new value of an input, and no gradient is named",
            remedy=f"name the state, each as IN=OUT; its outputs are {_listed(borders.outputs)}",
        )
    forward = flow.before([borders.outputs[loss]])
    subject = Subject(model, flow, forward)
    seed = _seed(subject, types, loss, request.seed)
    analysis = analyse(subject, seed, gradients)
    parts = linearity.divide_parts(flow, forward, targets, analysis)
    names = tuple(value.name or "" for value in gradients)
    train_spec = TrainSpec(loss, seed.name or "", state, names)
    _refuse_unscaled(analysis, parts, gradients, train_spec.seed)
    return Step(model, train_spec, types, flow, borders, forward, analysis, parts)


# The parts of a spec.


def _state(borders: Borders, request: TrainSpec, suffix: str | None) -> tuple[Pair, ...]:
    """Find the pairs of state: those that are asked for, else by names.

    Raises SpecError for a pair whose ends are missing, or of different types or shapes.
    """
    state = request.state or tuple(states.by_name(borders, suffix))
    if suffix is not None and not state:
        raise SpecError(
            f"no output is called as an input with '{suffix}' behind it",
            remedy=f"its outputs are {_listed(borders.outputs)}",
        )
    for pair in state:
        sides = ((pair.input, borders.inputs, "input"), (pair.output, borders.outputs, "output"))
        for name, names, side in sides:
            if name not in names:
                raise SpecError(
                    f"the state {pair} names an {side} '{name}' that the model does not have",
                    remedy=f"its {side}s are {_listed(names)}",
                )
        if not borders.matches(borders.inputs[pair.input], borders.outputs[pair.output]):
            raise SpecError(
                f"the state {pair} has two types or shapes", remedy="pair tensors of one type and shape"
            )
    return state


def _loss(borders: Borders, name: str) -> str:
    """Find the loss: the output of this name, or else a floating-point scalar called "loss"."""
    if not name and not _may_be_loss(borders, "loss"):
        scalars = [each for each, value in borders.outputs.items() if value.shape is not None]
        candidates = [each for each in scalars if _may_be_loss(borders, each)] or borders.outputs
        raise SpecError(
            "no floating-point scalar among its outputs is called 'loss'",
            remedy=f"if one of its outputs is the loss, name it with `loss`: {_listed(candidates)}",
        )
    if name and name not in borders.outputs:
        remedy = f"its outputs are {_listed(borders.outputs)}"
        raise SpecError(f"the loss '{name}' is not an output of the model", remedy=remedy)
    return name or "loss"


def _may_be_loss(borders: Borders, name: str) -> bool:
    """Return whether a floating-point output has one element, as far as its shape is known."""
    value = borders.outputs.get(name)
    if value is None or not _is_float(borders.types, value):
        return False
    return value.shape is None or all(size == 1 for size in value.shape)


def _gradients(flow: Dataflow, names: Sequence[str]) -> tuple[ir.Value, ...]:
    outputs = {value.name: value for node in flow.nodes for value in node.outputs if value.name}
    for name in names:
        if name not in outputs:
            raise SpecError(
                f"the gradient '{name}' is not a value that a node of the main graph outputs",
                remedy="name values of the backward pass, or leave the gradients out",
            )
    return tuple(outputs[name] for name in names)


def _seed(subject: Subject, types: Types, loss: str, asked: str) -> ir.Value:
    """Find the seed, the value in which every gradient is linear: by its name, or a usual one.

    Raises SpecError where there is no such value, or where it starts no backward pass.
    """
    values = {value.name: value for value in _values(subject.flow)}
    usual = dict.fromkeys((f"{loss}_grad", "loss_grad", f"{loss}.grad"))
    for name in () if asked else usual:
        value = values.get(name)
        if value is not None and _is_float(types, value) and analyse(subject, value).products:
            return value
    if not asked:
        names = " or ".join(f"'{name}'" for name in usual)
        raise SpecError(
            f"no train step: no value called {names} starts a backward pass",
            remedy="name the seed, in which every gradient is linear, or rewrite it as an inference graph",
        )
    if asked not in values:
        raise SpecError(f"the seed '{asked}' is {_absent(subject.flow, asked)}", remedy="name another value")
    if not _is_float(types, values[asked]):
        raise SpecError(f"the seed '{asked}' is no floating-point tensor", remedy="name another value")
    if not analyse(subject, values[asked]).values:
        raise SpecError(
            f"the seed '{asked}' starts no backward pass: nothing beyond the loss is linear in it",
            remedy="name another value",
        )
    return values[asked]


def _values(flow: Dataflow) -> Iterator[ir.Value]:
    """Yield all values of a main graph."""
    yield from (*flow.graph.initializers.values(), *flow.graph.inputs)
    yield from (value for node in flow.nodes for value in node.outputs)


def _absent(flow: Dataflow, name: str) -> str:
    for graph in traversal.graphs(flow.graph):
        outputs = (value.name for node in graph for value in node.outputs)
        inner = {*graph.initializers, *outputs, *(value.name for value in graph.inputs)}
        if graph is not flow.graph and name in inner:
            return "inside the body of a node (If, Loop or Scan), where none can be scaled"
    return "not a value of the model"


def _is_float(types: Types, value: ir.Value) -> bool:
    kind = types.get(value)
    return isinstance(kind, ir.TensorType) and kind.dtype in FLOATS


def _listed(names: Collection[str]) -> str:
    """Return names for a message; of many, the first and the last."""
    return shortened(", ".join(f"'{name}'" for name in names) or "none", 400)


# Unsupported train steps: operators that no runtime has, and gradients that no scale reaches.

_PREVIEW = "ai.onnx.preview.training"


def _refuse_unknown(model: ir.Model) -> None:
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


def _refuse_unscaled(analysis: Linearity, parts: Parts, gradients: Sequence[ir.Value], seed: str) -> None:
    """Raise SpecError for a gradient that a scale of the seed does not reach: it would underflow in half."""
    if not analysis.frontier:
        raise SpecError(
            f"nothing reads what is linear in the seed '{seed}': there are no gradients",
            remedy="name another seed",
        )
    linear = set(analysis.values)
    unreached = [value.name or "" for value in gradients if value not in linear]
    if unreached:
        raise SpecError(
            f"the gradients {_listed(unreached)} are not linear in the seed '{seed}', and would stay "
            "unscaled: a second loss, or an operator that is not known to be linear, is on the way",
            remedy="name another seed, or the gradients that are linear in it",
        )
    outside = [value.name or "" for value in parts.unscaled]
    if outside and not gradients:
        raise SpecError(
            f"{_listed(outside)} reach the state without the scale of the seed '{seed}': a second loss "
            "has a seed of its own, or an operator that is not known to be linear is on the way",
            remedy="give both losses one seed, or name the gradients to scale",
        )
