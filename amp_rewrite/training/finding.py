"""Search for the spec of a train step: by arguments, else its metadata, else names, else the dataflow."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.states import Borders, Pair
from amp_rewrite.errors import ModelError, SpecError
from amp_rewrite.model import traversal
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.catalogue import having, moving
from amp_rewrite.operators.record import Move, Trait
from amp_rewrite.text import shortened
from amp_rewrite.training import linearity, spec
from amp_rewrite.training.linearity import FLOATS, Dataflow, Linearity, Parts, analyse
from amp_rewrite.training.spec import TrainSpec


@dataclass(frozen=True, slots=True)
class Step:
    """A model that is a train step: its spec, its dataflow, and the parts of its nodes. `guessed` names the
    parts of the spec inferred from the dataflow alone.
    """

    model: ir.Model
    spec: TrainSpec
    types: Types
    flow: Dataflow
    borders: Borders
    linearity: Linearity
    parts: Parts
    guessed: tuple[str, ...]

    @property
    def loss(self) -> ir.Value:
        """The value of the loss."""
        return self.borders.outputs[self.spec.loss]


def find_step(model: ir.Model, request: TrainSpec, suffix: str | None = None) -> Step:
    """Find the train step in a model without functions whose nodes are sorted.

    Raises SpecError, which names the missing part or lists the candidates, for a model that is no train step
    or an ambiguous one.
    """
    _refuse_unknown(model)
    flow, types = linearity.dataflow_of(model), element_types.infer(model)
    borders = states.borders(model.graph, types)
    request = spec.complete(request, spec.spec_in_metadata(model.metadata_props))
    is_stateless = suffix is None and not request.state and f"{spec.PREFIX}state" in model.metadata_props
    named_state = () if is_stateless else _named_state(borders, request, suffix)
    named_loss = _named_loss(borders, request.loss)
    loss = named_loss or _only_loss(borders, flow, named_state)
    flow = replace(flow, forward=flow.before([borders.outputs[loss]]))
    state = () if is_stateless else named_state or tuple(_nearest_state(borders, flow.forward))
    gradients = _gradients(flow, request.gradients)
    targets = [borders.outputs[pair.output] for pair in state] or list(gradients)
    if not targets:
        raise SpecError(
            "no train step: no output is the new value of an input, and no gradient is named",
            remedy=f"name the state, each as IN=OUT; its outputs are {_listed(borders.outputs)}",
        )
    named_seed = _named_seed(flow, types, loss, request.seed)
    seed = named_seed or _first_seed(flow, types, targets, gradients)
    analysis = analyse(flow, seed, gradients)
    parts = linearity.divide_parts(flow, targets, analysis)
    names = tuple(value.name or "" for value in gradients)
    train_spec = TrainSpec(loss, seed.name or "", state, names)
    _refuse_unscaled(analysis, parts, gradients, train_spec.seed)
    named = {"loss": named_loss, "state": named_state or not state, "seed": named_seed}
    guessed = tuple(part for part, value in named.items() if not value)
    return Step(model, train_spec, types, flow, borders, analysis, parts, guessed)


# The state: pairs of an input and the output with its value after the step.


def _named_state(borders: Borders, request: TrainSpec, suffix: str | None) -> tuple[Pair, ...]:
    """Return the pairs of state that are asked for, else those by names.

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


def _nearest_state(borders: Borders, forward: Collection[ir.Node]) -> Iterator[Pair]:
    """Yield the pairs of an output that the loss does not need and the one input nearest to it.

    Raises SpecError, which lists the candidates, for an output with several nearest inputs, and for an input
    that is nearest to several outputs.
    """
    updates: dict[str, list[str]] = {}
    for name, output in borders.outputs.items():
        if output.producer() in forward:
            continue
        near = _nearest_inputs(borders, output)
        if len(near) > 1:
            raise _ambiguous(f"the output '{name}' may be the new state of several inputs", near)
        for each in near:
            updates.setdefault(each, []).append(name)
    for name, outputs in updates.items():
        if len(outputs) > 1:
            raise _ambiguous(f"the input '{name}' may be the old state of several outputs", outputs)
        yield Pair(name, outputs[0])


def _nearest_inputs(borders: Borders, output: ir.Value) -> list[str]:
    """Return the inputs of its type and shape from which an output is computed element by element by the
    fewest nodes.
    """
    visited, level = {output}, [output]
    while level:
        before = dict.fromkeys(operand for value in level for operand in _operands(value))
        level = [value for value in before if value not in visited]
        visited.update(level)
        named = [(value.name or "", value) for value in level]
        near = [name for name, value in named if borders.inputs.get(name) is value]
        near = [name for name in near if borders.matches(borders.inputs[name], output)]
        if near:
            return near
    return []


def _operands(value: ir.Value) -> Iterator[ir.Value]:
    node = value.producer()
    if node is not None and not node.domain and node.op_type in _UPDATES:
        yield from (operand for operand in node.inputs if operand is not None)


_UPDATES = having(Trait.ADDS | Trait.SCALES) | moving(Move.BOUNDS) | {"Where", "Identity", "Cast", "Mod"}
"""The operators by which an optimiser updates state."""


def _ambiguous(problem: str, candidates: Collection[str]) -> SpecError:
    return SpecError(f"{problem}: {_listed(candidates)}", remedy="name the state, each as IN=OUT")


# The loss, and the gradients.


def _named_loss(borders: Borders, name: str) -> str:
    """Return the output of this name, or else a floating-point scalar called "loss"; "" if there is none."""
    if name and name not in borders.outputs:
        remedy = f"its outputs are {_listed(borders.outputs)}"
        raise SpecError(f"the loss '{name}' is not an output of the model", remedy=remedy)
    return name or ("loss" if _may_be_loss(borders, "loss") else "")


def _only_loss(borders: Borders, flow: Dataflow, state: Sequence[Pair]) -> str:
    """Return the only scalar output that products lead to, and that is not state."""
    updated = {pair.output for pair in state}
    candidates = [
        name
        for name, value in borders.outputs.items()
        if name not in updated and value.shape is not None and _may_be_loss(borders, name)
        if any(map(linearity.is_product, flow.before([value])))
    ]
    if len(candidates) > 1:
        raise SpecError(
            f"several outputs may be the loss: {_listed(candidates)}", remedy="name it with `loss`"
        )
    if not candidates:
        raise SpecError(
            "no train step: no output is a floating-point scalar that a product leads to, as a loss is",
            remedy=f"if one of its outputs is the loss, name it with `loss`: {_listed(borders.outputs)}",
        )
    return candidates[0]


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


# The seed of the backward pass: the value in which every gradient is linear.


def _named_seed(flow: Dataflow, types: Types, loss: str, asked: str) -> ir.Value | None:
    """Return the value of this name; without one, that of a usual name which starts a backward pass.

    Raises SpecError where there is no value of the name, or where it starts no backward pass.
    """
    values = {value.name: value for value in _values(flow)}
    if not asked:
        usual = (values.get(name) for name in (f"{loss}_grad", "loss_grad", f"{loss}.grad"))
        floats = (value for value in usual if value is not None and _is_float(types, value))
        return next((value for value in floats if analyse(flow, value).products), None)
    if asked not in values:
        raise SpecError(f"the seed '{asked}' is {_absent(flow, asked)}", remedy="name another value")
    if not _is_float(types, values[asked]):
        raise SpecError(f"the seed '{asked}' is no floating-point tensor", remedy="name another value")
    if not analyse(flow, values[asked]).values:
        raise SpecError(
            f"the seed '{asked}' starts no backward pass: nothing beyond the loss is linear in it",
            remedy="name another value, or leave it to analysis",
        )
    return values[asked]


def _first_seed(
    flow: Dataflow, types: Types, targets: Sequence[ir.Value], gradients: Sequence[ir.Value]
) -> ir.Value:
    """Return the first value of the backward pass, in order, from which all of its products and all named
    gradients are linear; else the last such output of the forward pass that it reads.
    """
    updates = flow.before(targets).difference(flow.forward)
    backward = [node for node in flow.nodes if node in updates]
    if not any(map(linearity.is_product, backward)):
        raise SpecError(
            "no train step: its state is updated without a backward pass, as no product is beyond the loss",
            remedy="give a step that computes gradients, or rewrite it as an inference graph",
        )
    operands = dict.fromkeys(value for node in backward for value in flow.reads[node])
    within: dict[ir.Value, None] = {}
    for node in backward:
        stored = (value for value in flow.reads[node] if value.producer() is None)
        within.update(dict.fromkeys((*stored, *node.outputs)))
    ahead = (value for value in reversed(operands) if value.producer() in flow.forward)
    for value in itertools.chain(within, ahead):
        analysis = analyse(flow, value, gradients) if _is_float(types, value) else None
        if analysis is None or not analysis.products or not set(gradients) <= set(analysis.values):
            continue
        if not linearity.divide_parts(flow, targets, analysis).unscaled:
            return value
    raise SpecError(
        "no value is the seed of the whole backward pass: there are two losses with a seed each, a backward "
        "pass inside the body of a node, or an operator that is not known to be linear",
        remedy="name the seed, and the gradients that are linear in it",
    )


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
            remedy="name another seed, or leave it to analysis",
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
