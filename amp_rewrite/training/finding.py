"""Finds what a train step is: by what was said, else its metadata, else names, else the dataflow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import SpecError
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.training import asked_spec, dataflow, parts, refusals, seeds, state_pairs
from amp_rewrite.training.asked_spec import Asked
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linear_operators import FLOATS
from amp_rewrite.training.linearity import Linearity, Subject, analyse
from amp_rewrite.training.parts import Parts
from amp_rewrite.training.spec import Pair, TrainSpec
from amp_rewrite.training.state_pairs import Borders, listed


@dataclass(frozen=True, slots=True)
class Step:
    """A model that is a train step: the spec, how its values hang together, and which part each node is in.

    `forward` are the nodes that the loss needs. `guessed` names what of the spec only the dataflow says.
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


def find(model: ir.Model, asked: Asked, suffix: str | None = None) -> Step:
    """What a model is as a train step; `model` has no functions, and its nodes are sorted.

    Raises SpecError, which says what is missing or lists the candidates, where it is none or not clear.
    """
    refusals.refuse_unknown(model)
    flow, types = dataflow.of(model.graph), element_types.infer(model)
    borders = state_pairs.borders(model.graph, types)
    said = asked.over(asked_spec.in_metadata(model.metadata_props))
    guessed: list[str] = []
    named = tuple(state_pairs.by_name(borders, suffix)) if said.state is None else said.state
    if suffix is not None and not named:
        raise SpecError(
            f"no output is called as an input with '{suffix}' behind it",
            remedy=f"its outputs are {listed(borders.outputs)}",
        )
    state_pairs.check(borders, named)
    loss = _loss(borders, flow, said.loss, named, guessed)
    forward = flow.before([borders.outputs[loss]])
    state = named
    if said.state is None and not named:
        state = tuple(state_pairs.by_dataflow(borders, forward))
        guessed += ["state"] if state else []
    gradients = _gradients(flow, said.gradients or ())
    kept = _kept(borders, state, gradients)
    if not kept:
        raise SpecError(
            "no train step: no output is the new value of an input, and no gradient is named",
            remedy=f"name the state, each as IN=OUT; its outputs are {listed(borders.outputs)}",
        )
    subject = Subject(model, flow, forward)
    seed = seeds.find(subject, types, kept, gradients, loss, said.seed, guessed)
    found = analyse(subject, seed, gradients)
    divided = parts.divide(flow, forward, kept, found)
    names = tuple(value.name or "" for value in gradients)
    spec = TrainSpec(loss, seed.name or "", state, names)
    step = Step(model, spec, types, flow, borders, forward, found, divided, tuple(guessed))
    refusals.refuse_unscaled(step.linearity, flow, divided, gradients, spec)
    return step


def _kept(borders: Borders, state: Sequence[Pair], gradients: Sequence[ir.Value]) -> list[ir.Value]:
    """What the backward pass is for: new state, else the gradients."""
    return [borders.outputs[pair.output] for pair in state] or list(gradients)


def _gradients(flow: Dataflow, names: Sequence[str]) -> tuple[ir.Value, ...]:
    made = {value.name: value for node in flow.nodes for value in node.outputs if value.name}
    for name in names:
        if name not in made:
            raise SpecError(
                f"the gradient '{name}' is not a value that a node of the main graph outputs",
                remedy="name values of the backward pass, or leave the gradients out",
            )
    return tuple(made[name] for name in names)


def _loss(
    borders: Borders, flow: Dataflow, said: str | None, state: Sequence[Pair], guessed: list[str]
) -> str:
    """The loss: what is said to be, what is called so, or the only scalar that products lead to."""
    if said is not None:
        if said not in borders.outputs:
            remedy = f"its outputs are {listed(borders.outputs)}"
            raise SpecError(f"the loss '{said}' is not an output of the model", remedy=remedy)
        return said
    paired = {pair.output for pair in state}
    scalars = [name for name in _scalars(borders) if name not in paired]
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
    """Whether there is such an output, floating-point and, as far as its shape is known, of one element."""
    value = borders.outputs.get(name)
    kind = None if value is None else borders.types.get(value)
    if value is None or not isinstance(kind, ir.TensorType) or kind.dtype not in FLOATS:
        return False
    return value.shape is None or all(size == 1 for size in value.shape)
