"""The nodes that add error: both models' intermediate values, compared node by node."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis import unit_building
from amp_rewrite.colouring.pins import pinnable
from amp_rewrite.model import inlining, loading, traversal
from amp_rewrite.numerics.half import FLOAT16, HALF_TYPES
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.operators.catalogue import CONTROL_FLOW, EXACT, names
from amp_rewrite.policy import node_patterns
from amp_rewrite.preparing import preparing
from amp_rewrite.running import emulation, metrics, selections, sessions
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.instrumented_model import InstrumentedModel, paired_values
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.selections import OtherSelection
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable


@dataclass(frozen=True, slots=True)
class NodeError:
    """An output of a node of the original, compared with the same value in the rewritten model.

    `error` is the relative L2 error of the value, for a gate (GATES) the error of tolerances
    (Metrics.error), which is small for a gate that is nearly closed; infinite if the value has infinities or
    NaN in only one of the two models. `added` is the increase of the rest over the largest of the node's
    inputs, and `rounds` says whether the node rounds: it is half, and does more than move
    values. `non_finite` counts values that are NaN or infinite in only one of the two models, and is 0 if an
    input has such values. `largest` is the largest finite magnitude of the value in the original. `low` and
    `high` bound the node's inputs in the rewritten model; None if none is finite or was compared. `readers`
    are the consumers of the value. `effect` is the error that rounding at the node adds to the model's
    outputs (tuning.sensitivity); None if not measured. An unnamed node goes by the name of its first output.
    """

    node: str
    operator: str
    value: str
    error: float
    added: float
    rounds: bool
    non_finite: int
    largest: float
    low: float | None
    high: float | None
    readers: tuple[str, ...]
    effect: float | None = None

    def to_keep(self, names: Collection[str]) -> tuple[str, ...]:
        """Yield the nodes among `names` to keep in float32: this node, and also its consumers if the value
        itself overflows, if rounding the value causes the error (`effect`; a Cast before a half consumer
        would round it again), or if this node is not among `names` (a Constant, for example).
        """
        alone = self.node in names and not self.non_finite and not self.effect
        candidates = (self.node,) if alone else (self.node, *self.readers)
        return tuple(name for name in dict.fromkeys(candidates) if name in names)


@dataclass(frozen=True, slots=True)
class Blame:
    """All comparable nodes, in descending order of what they add to the error of the outputs, else of their
    own added error, those that round first.

    `first_lost` is the first node in graph order whose output becomes non-finite; `keep_full` are pins that
    keep the nodes of `worst` in float32, as far as pins can. `choice` is the first node that selects other
    indices; None if there is none.
    """

    nodes: tuple[NodeError, ...]
    first_lost: NodeError | None
    keep_full: tuple[str, ...] = ()
    choice: OtherSelection | None = None

    @property
    def worst(self) -> NodeError | None:
        """The node to inspect: the first non-finite one, else the one with the largest added error.
        Nodes that round come first, if there are any (two float32 models may differ too).
        """
        return self.first_lost or next(iter(self.nodes), None)


def blame(
    original: Runnable,
    rewritten: Runnable,
    feeds: Feeds,
    *,
    effects: Mapping[str, float] | None = None,
    device: Device | None = None,
    libraries: Libraries = (),
    is_advised: bool = True,
) -> Blame:
    """Run both models and compare all values of the main graph that exist in both, in chunks.

    `effects` are the errors that nodes add to the outputs (tuning.sensitivity); None if they are not known.
    The pins, none unless `is_advised`, are those of the nodes that add most, or of one that loses values.
    Functions of the original are inlined, so that nodes have the names that pins refer to. `libraries`
    implement custom operators. Raises as `InstrumentedModel` does.
    """
    where = device or sessions.best_device()
    with (
        emulation.reference(original, where, libraries) as float32,
        emulated(rewritten, where) as runnable,
    ):
        float32.session = None
        before = InstrumentedModel(float32.model, where, libraries)
        after = InstrumentedModel(runnable, where, libraries)
        differences = dict(_compare((name, value, value) for name, value in feeds.items()))
        differences.update(_compare(paired_values(before, after, before.values, feeds)))
        imposed = selections.impose(before, after, feeds)
    errors = list(_node_errors(tuple(before.model.graph), differences, _of_float32(rewritten)))
    if effects is not None:
        errors = [replace(error, effect=effects.get(error.node, 0.0)) for error in errors]
    first = next((error for error in errors if error.non_finite), None)
    ranking = sorted(errors, key=_rank)
    blamed = Blame(tuple(ranking), first, choice=imposed.choices[0] if imposed is not None else None)
    if not is_advised:
        return blamed
    adding = _most(ranking) if first is None else []
    return replace(blamed, keep_full=pins(original, adding or filter(None, [blamed.worst])))


def pins(original: Runnable, blamed: Iterable[NodeError]) -> tuple[str, ...]:
    """Return patterns for `Pins.keep_full` that keep these nodes in float32, as far as pins can."""
    model = loading.load(original).model
    inlining.inline(model)
    types = element_types.infer(model)
    preparing.bypass_casts(traversal.every_node(model.graph), types)
    names = pinnable(unit_building.build(model, types))
    node_names = dict.fromkeys(name for error in blamed for name in error.to_keep(names))
    return tuple(node_patterns.pattern_for(name, names) for name in node_names)


@dataclass(frozen=True, slots=True)
class _Difference:
    metrics: Metrics
    largest: float
    low: float | None
    high: float | None


def _compare(values: Iterable[tuple[str, Any, Any]]) -> Iterator[tuple[str, _Difference]]:
    """Yield the error and range of each (name, expected, actual) that is a float tensor of the same shape in
    both models.
    """
    for name, reference, actual in values:
        if not isinstance(reference, np.ndarray) or not metrics.is_float(reference):
            continue
        if not isinstance(actual, np.ndarray) or actual.shape != reference.shape or not actual.size:
            continue
        clamped = (
            (np.abs(reference) > FLOAT16.largest) & (np.abs(actual) >= FLOAT16.fill / 2) & np.isfinite(actual)
        )
        expected = np.where(clamped, actual, reference)  # a clamped mask is not an error
        finite = actual[np.isfinite(actual)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
        largest = float(np.max(np.abs(reference[np.isfinite(reference)]), initial=0.0))
        yield name, _Difference(metrics.measure(expected, actual), largest, low, high)


def _of_float32(rewritten: Runnable) -> frozenset[str]:
    """Return the names of the nodes without a half output."""
    model = loading.load(rewritten).model
    inlining.inline(model)
    types = element_types.infer(model)
    return frozenset(
        node_patterns.pinned_as(node)
        for node in model.graph
        if not any(value in types and types[value].dtype in HALF_TYPES for value in node.outputs)
    )


def _rounds(node: ir.Node, of_float32: Collection[str]) -> bool:
    """Return whether a node may round; one with bodies may, and so does a constant stored in half."""
    moves = node.op_type in _MOVING and not node.domain
    return not moves and node_patterns.pinned_as(node) not in of_float32


GATES = names(lambda each: each.limits == frozenset((0.0, 1.0))) - {"Exp"}
"""Operators with results in 0..1 that scale others: a result of almost 0 is as good as 0."""

_MOVING = EXACT - {"Constant", "ConstantOfShape"} - CONTROL_FLOW


def _node_errors(
    nodes: Sequence[ir.Node], differences: Mapping[str, _Difference], of_float32: Collection[str]
) -> Iterator[NodeError]:
    consumers: dict[str, dict[str, None]] = {}
    for node in nodes:
        for name in _names(node.inputs):
            consumers.setdefault(name, {})[node_patterns.pinned_as(node)] = None
    for node in nodes:
        inputs = [differences[name] for name in _names(node.inputs) if name in differences]
        entering = max((value.metrics.relative_l2 for value in inputs), default=0.0)
        lost_before = any(value.metrics.non_finite for value in inputs)
        for name in _names(node.outputs):
            value = differences.get(name)
            if value is not None:
                lost = value.metrics.non_finite
                error = value.metrics.error() if node.op_type in GATES else value.metrics.relative_l2
                yield NodeError(
                    node=node_patterns.pinned_as(node),
                    operator=schema.written(node.domain, node.op_type),
                    value=name,
                    error=math.inf if lost else error,
                    added=error - entering,
                    rounds=_rounds(node, of_float32),
                    non_finite=0 if lost_before else lost,
                    largest=value.largest,
                    low=min((v.low for v in inputs if v.low is not None), default=None),
                    high=max((v.high for v in inputs if v.high is not None), default=None),
                    readers=tuple(consumers.get(name, ())),
                )


def _names(values: Iterable[ir.Value | None]) -> Iterator[str]:
    return (value.name for value in values if value is not None and value.name)


def _most(nodes: Sequence[NodeError]) -> list[NodeError]:
    """Return the first nodes of a ranking that together add MOST of the squared error, at most PINNED."""
    adding = list({error.node: error for error in nodes if error.effect}.values())
    squared = [(error.effect or 0.0) ** 2 for error in adding]
    remainder = sum(squared) * (1 - MOST)
    return adding[: next((n for n in range(1, PINNED) if sum(squared[n:]) <= remainder), PINNED)]


MOST, PINNED = 0.9, 3
"""The share of the squared error that pins should remove, and the most nodes they may name."""


def _rank(error: NodeError) -> tuple[float, ...]:
    return (-error.non_finite, -(error.effect or 0.0), not error.rounds, -error.added)
