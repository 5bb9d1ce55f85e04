"""The seed of a backward pass: the value that every gradient is linear in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.errors import SpecError
from amp_rewrite.model import traversal
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.training import dataflow, parts
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linear_operators import FLOATS
from amp_rewrite.training.linearity import Subject, analyse


def find(
    subject: Subject,
    types: Types,
    kept: Sequence[ir.Value],
    gradients: Sequence[ir.Value],
    loss: str,
    said: str | None,
    guessed: list[str],
) -> ir.Value:
    """The value that is said to be the seed, that is called so, or that analysis finds.

    `kept` is what the backward pass is for, and `loss` the name of the loss. Raises SpecError where there is
    none, or where what is said cannot be one.
    """
    known = _values(subject.flow)
    if said is not None:
        return _said(subject, known, types, said)
    for name in (f"{loss}_grad", "loss_grad", f"{loss}.grad"):
        if name in known and _starts(subject, types, known[name]):
            return known[name]
    guessed.append("seed")
    return _first(subject, types, kept, gradients)


def _values(flow: Dataflow) -> dict[str, ir.Value]:
    """All values of a main graph by name."""
    outer = (*flow.graph.initializers.values(), *flow.graph.inputs)
    made = (value for node in flow.nodes for value in node.outputs)
    return {value.name: value for value in (*outer, *made) if value.name}


def _said(subject: Subject, known: dict[str, ir.Value], types: Types, name: str) -> ir.Value:
    if name not in known:
        raise SpecError(f"the seed '{name}' is {_absent(subject.flow, name)}", remedy="name another value")
    if not _is_float(types, known[name]):
        raise SpecError(f"the seed '{name}' is no floating-point tensor", remedy="name another value")
    if not analyse(subject, known[name]).values:
        raise SpecError(
            f"the seed '{name}' starts no backward pass: nothing beyond the loss is linear in it",
            remedy="name another value, or leave it to analysis",
        )
    return known[name]


def _absent(flow: Dataflow, name: str) -> str:
    inner = (graph for graph in traversal.graphs(flow.graph) if graph is not flow.graph)
    for graph in inner:
        made = (value.name for node in graph for value in node.outputs)
        if name in graph.initializers or name in made or name in [value.name for value in graph.inputs]:
            return "inside the body of a node (If, Loop or Scan), where none can be scaled"
    return "not a value of the model"


def _first(
    subject: Subject, types: Types, kept: Sequence[ir.Value], gradients: Sequence[ir.Value]
) -> ir.Value:
    """The first value of the backward pass, in order, that can be its seed; else a value that the forward
    pass makes, the last first.
    """
    if not any(map(dataflow.is_product, subject.flow.before(kept) - set(subject.forward))):
        raise SpecError(
            "no train step: its state is updated without a backward pass, as no product is beyond the loss",
            remedy="give a step that computes gradients, or rewrite it as an inference graph",
        )
    for value in _candidates(subject, kept):
        if _is_seed(subject, types, value, kept, gradients):
            return value
    raise SpecError(
        "no value is the seed of the whole backward pass: there are two losses with a seed each, a backward "
        "pass inside the body of a node, or an operator that is not known to be linear",
        remedy="name the seed, and the gradients that are linear in it",
    )


def _candidates(subject: Subject, kept: Sequence[ir.Value]) -> Iterator[ir.Value]:
    flow, forward = subject.flow, subject.forward
    needed = flow.before(kept)
    backward = [node for node in flow.nodes if node in needed and node not in forward]
    found: dict[ir.Value, None] = {}
    for node in backward:
        own = (value for value in flow.reads[node] if value.producer() is None)
        found.update(dict.fromkeys((*own, *node.outputs)))
    yield from found
    read = dict.fromkeys(value for node in backward for value in flow.reads[node])
    made_ahead = {value for node in forward for value in node.outputs}
    yield from (value for value in reversed(read) if value in made_ahead)


def _is_float(types: Types, value: ir.Value) -> bool:
    kind = types.get(value)
    return isinstance(kind, ir.TensorType) and kind.dtype in FLOATS


def _starts(subject: Subject, types: Types, value: ir.Value) -> bool:
    """Whether a product of a backward pass is linear in a value."""
    return _is_float(types, value) and bool(analyse(subject, value).products)


def _is_seed(
    subject: Subject, types: Types, value: ir.Value, kept: Sequence[ir.Value], gradients: Collection[ir.Value]
) -> bool:
    """Whether all products of the backward pass are linear in a value, and all gradients that are named."""
    if not _is_float(types, value):
        return False
    found = analyse(subject, value, gradients)
    if not found.products or not set(gradients) <= set(found.values):
        return False
    divided = parts.divide(subject.flow, subject.forward, kept, found)
    return not parts.unscaled(subject.flow, divided, found)
