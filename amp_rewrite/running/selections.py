"""What is compared in place of outputs that hide an error, or make much of it.

Half makes close scores equal. Behind a TopK rows then change places, an ArgMax takes another class, and
NonMaxSuppression another box, so that all that follows differs by far more than any value before. With the
original's selections in place of its own, the result is compared row by row.

A softmax of large numbers is 0 or 1 whatever half does to these, and so is a sigmoid, a clipped value, or the
ArgMax of one. Such an output shows no error, and proves none of what other inputs would show. A node is taken
to hide it if its output lies at the ends of its range, and differs far less than its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import element_types
from amp_rewrite.operators.catalogue import SAME_ELEMENTS, having
from amp_rewrite.operators.record import Role, Trait
from amp_rewrite.rewriting import annotations
from amp_rewrite.rewriting.instrument import instrument
from amp_rewrite.running import metrics
from amp_rewrite.running.comparison import Runs
from amp_rewrite.running.instrumented_model import InstrumentedModel, paired_values
from amp_rewrite.running.sequences import Steps
from amp_rewrite.running.sessions import Feeds

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class OtherSelection:
    """A node that selects otherwise in the rewritten model, in `places` of `of`.

    `gap` is the largest difference of the scores between which it does, and `ratio` the largest one relative
    to the scores. An unnamed node goes by the name of its first output.
    """

    node: str
    operator: str
    places: int
    of: int
    gap: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Imposed:
    """The outputs of both models with the selections of the original, and the nodes of the rewritten one that
    would select otherwise, in order.
    """

    runs: Runs
    choices: tuple[OtherSelection, ...]


def impose(before: InstrumentedModel, after: InstrumentedModel, feeds: Feeds) -> Imposed | None:
    """Run both models, the second with the selections of the first in its main graph; both graphs are edited.

    Returns None if the second makes the same selections, has none, or does not run that way, and for a
    sequence.
    """
    pairs = _pairs(before.model.graph, after.model.graph)
    if not pairs or isinstance(feeds, Steps):
        return None
    outputs = before.outputs
    chosen = [_chosen(node) for node, _ in pairs]
    try:
        expected = before.run_all({*outputs, *chosen, *_read((node for node, _ in pairs), feeds)}, feeds)
        taken = {**feeds, **{name: expected[name] for name in chosen}}
        for _, node in pairs:
            _take_as_input(after.model, node, taken[_chosen(node)])
        own = [_chosen(node) for _, node in pairs]
        actual = after.run_all({*outputs, *own, *_read((node for _, node in pairs), taken)}, taken)
    except AmpRewriteError:
        return None
    choices: list[OtherSelection] = []
    for (node, other), name in zip(pairs, own, strict=True):
        reads, others = _reads(node, {**feeds, **expected}), _reads(other, {**taken, **actual})
        found = _Selection(node, reads, others, taken[_chosen(node)], actual[name])
        if not found.has_same_shapes:
            return None
        choices += _choices(found)
    runs = Runs(feeds, *({name: values[name] for name in outputs} for values in (expected, actual)))
    return Imposed(runs, tuple(choices)) if choices else None


def worst(choices: Iterable[OtherSelection]) -> tuple[OtherSelection, ...]:
    """Return the choices of each node in the sample with the largest difference of scores."""
    nodes: dict[str, OtherSelection] = {}
    for choice in choices:
        nodes[choice.node] = max(choice, nodes.get(choice.node, choice), key=lambda each: each.gap)
    return tuple(nodes.values())


# The nodes that select, in both models.

_OF_MASKS = SAME_ELEMENTS | having(Trait.LOGICAL) | {"Cast"}


def _pairs(before: ir.Graph, after: ir.Graph) -> list[tuple[ir.Node, ir.Node]]:
    """Return the nodes that select, with those of the same output and attributes in the rewritten model."""
    theirs = {_chosen(node): node for node in _selecting(after)}
    pairs = ((node, theirs.get(_chosen(node))) for node in _selecting(before))
    return [
        (node, other)
        for node, other in pairs
        if other is not None and _attributes(node) == _attributes(other)
    ]


def _selecting(graph: ir.Graph) -> Iterator[ir.Node]:
    masks = set(_masks(graph))
    for node in graph:
        at = record_of(node).chooses
        if (at is not None and at < len(node.outputs) and _chosen(node)) or node in masks:
            yield node


def _masks(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the comparisons by which rows are selected."""
    values = [node.inputs[at] for node in graph for at in record_of(node).ports(Role.MASK)]
    visited = set[ir.Node]()
    for value in values:
        node = None if value is None else value.producer()
        if node is None or node in visited or node.graph is not graph:
            continue
        visited.add(node)
        if record_of(node).traits & Trait.ORDERS:
            yield node
        elif node.op_type in _OF_MASKS:
            values += node.inputs


def _chosen(node: ir.Node) -> str:
    return node.outputs[record_of(node).chooses or 0].name or ""


def _attributes(node: ir.Node) -> tuple[str, dict[str, Any]]:
    return node.op_type, {name: entry.value for name, entry in node.attributes.items()}


def _take_as_input(model: ir.Model, node: ir.Node, array: Array) -> None:
    """Make the selection of a node an input of the model; its own one gets another name."""
    chosen = node.outputs[record_of(node).chooses or 0]
    taken = ir.Value(type=element_types.tensor(ir.DataType.from_numpy(array.dtype)))
    model.graph.inputs.append(taken)
    with instrument(model, {}) as points:
        instead = {chosen: taken}
        if node.op_type == "TopK" and node.outputs[0].name:
            axis = node.attributes.get_int("axis", -1)
            scores, values = node.inputs[0], node.outputs[0]
            assert scores is not None, "it is required"
            gather = points.node("GatherElements", (scores, taken), values, axis=axis)
            instead[values] = points.behind(values, [gather])
        for own, other in instead.items():
            points.redirections.append((points.uses(own), other))
            other.name, own.name = own.name, points.names.of_value(own, "own")


# What they read, and how close that is where they select otherwise.


def _read(nodes: Iterable[ir.Node], feeds: Mapping[str, Any]) -> set[str]:
    """Return the values that nodes read, but for the inputs of the model."""
    return {name for node in nodes for name in _inputs(node) if name not in feeds}


def _inputs(node: ir.Node) -> list[str]:
    return [value.name for value in node.inputs if value is not None and value.name]


def _reads(node: ir.Node, values: Mapping[str, Any]) -> list[Array]:
    return [np.asarray(values[name], np.float64) for name in _inputs(node)]


@dataclass(frozen=True, slots=True)
class _Selection:
    """A node, what it reads in each model, its selection in the original, and in the other one."""

    node: ir.Node
    reads: list[Array]
    others: list[Array]
    given: Array
    own: Array

    @property
    def has_same_shapes(self) -> bool:
        """Whether both models select from the same shapes, and as much; boxes may be more or fewer."""
        is_as_much = self.node.op_type == "NonMaxSuppression" or self.given.shape == self.own.shape
        return is_as_much and [each.shape for each in self.reads] == [each.shape for each in self.others]

    @property
    def differs(self) -> NDArray[np.bool_]:
        """Where the two are different; for numbers of boxes that differ, the boxes of one only."""
        if self.node.op_type != "NonMaxSuppression":
            return self.given != self.own
        if self.given.shape == self.own.shape:
            return (self.given != self.own).any(axis=1)
        return np.unique(np.concatenate([self.given, self.own]), axis=0, return_counts=True)[1] == 1


@dataclass(frozen=True, slots=True)
class _Close:
    """Numbers that are to be close, and the scale of their difference, if they are smaller."""

    these: Array
    those: Array
    scale: float

    @property
    def gaps(self) -> Array:
        """The differences."""
        with np.errstate(invalid="ignore"):
            return np.where(self.these == self.those, 0.0, np.abs(self.these - self.those))

    @property
    def ratio(self) -> float:
        """The largest difference, relative to the numbers."""
        scales = np.maximum(np.maximum(np.abs(self.these), np.abs(self.those)), self.scale)
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.where(self.gaps == 0, 0.0, self.gaps / scales).max(initial=0.0))


def _choices(found: _Selection) -> Iterator[OtherSelection]:
    """Yield what a node selects otherwise, if it does."""
    differs, node = found.differs, found.node
    if not differs.any():
        return
    boxes = _boxes if node.op_type == "NonMaxSuppression" else _ranked
    close = _thresholds(found) if record_of(node).chooses is None else boxes(found)
    yield OtherSelection(
        node=node.name or node.outputs[0].name or "",
        operator=node.op_type,
        places=int(np.count_nonzero(differs)),
        of=differs.size,
        gap=float(close[0].gaps.max(initial=0.0)),
        ratio=max(each.ratio for each in close),
    )


def _ranked(found: _Selection) -> list[_Close]:
    """Return the scores of what either model selects along an axis, in the original and in the other one.

    Their scale is that of the better half: the last of many may be masked, by numbers far below all others.
    """
    attributes = _attributes(found.node)[1]
    axis = attributes.get("axis", -1 if found.node.op_type == "TopK" else 0)
    given, own = found.given, found.own
    if found.node.op_type != "TopK" and not attributes.get("keepdims", 1):
        given, own = np.expand_dims(given, axis), np.expand_dims(own, axis)
    close: list[_Close] = []
    for scores in (found.reads[0], found.others[0]):
        these, those = (np.take_along_axis(scores, indices, axis) for indices in (given, own))
        best = np.take(these, range((these.shape[axis] + 1) // 2), axis)
        scale = metrics.rms(best[np.isfinite(best)])
        close.append(_Close(these[given != own], those[given != own], scale))
    return close


NEAREST = 0.25
"""The share of numbers that are nearer to a threshold than the typical one: more than half may be masked."""


def _thresholds(found: _Selection) -> list[_Close]:
    """Return the numbers that are compared, in both models."""
    close: list[_Close] = []
    for reads in (found.reads, found.others):
        these, those = np.broadcast_arrays(*reads)
        distances = np.abs(these - those)
        distances = distances[np.isfinite(distances) & (distances > 0)]
        typical = float(np.quantile(distances, NEAREST)) if distances.size else 0.0
        close.append(_Close(these[found.differs], those[found.differs], typical))
    return close


def _boxes(found: _Selection) -> list[_Close]:
    """Return scores and boxes of what either model selects, in both, and the limits."""
    batch, kind, box = np.unique(np.concatenate([found.given, found.own]), axis=0).T
    both = zip(found.reads, found.others, strict=True)
    (boxes, other_boxes), (scores, other_scores), *limits = both
    pairs = [(scores[batch, kind, box], other_scores[batch, kind, box])]
    pairs += [(boxes[batch, box], other_boxes[batch, box]), *limits]
    return [_Close(these, those, metrics.rms(these)) for these, those in pairs]


# Saturated outputs: what they are computed from is compared in their place.


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value in both models, and the relative L2 error of the second."""

    name: str
    expected: Array
    actual: Array
    relative_l2: float


SHOWS = 2.0**-15
"""The relative error below which half does not show: rounding alone has about 2^-12."""

END = 2.0**-6
"""The share of the range at its ends in which a value is saturated: there a sigmoid has less than a
sixty-fourth of an error in its input."""


ALMOST_ALL = 0.9
"""The share of saturated values from which on an error below SHOWS may be that of the others alone."""


def is_suspect(expected: Array, relative_l2: float) -> bool:
    """Whether a float value may be saturated: at the ends of its range, and without an error of half."""
    return metrics.is_float(expected) and relative_l2 < SHOWS and _is_saturated(expected)


def _is_saturated(values: Array) -> bool:
    """Whether most finite values lie at the ends of their range; of -1..0 or 0..1 if they are all alike."""
    values = values[np.isfinite(values)]
    if not values.size:
        return False
    low, high = float(values.min()), float(values.max())
    ends = (low, high) if high - low > END else (-1.0, 0.0, 1.0)
    distance = np.abs(values - ends[0])
    for end in ends[1:]:
        np.minimum(distance, np.abs(values - end), out=distance)
    return float(np.mean(distance <= END * max(high - low, 1.0))) >= ALMOST_ALL


def hidden(
    before: InstrumentedModel, after: InstrumentedModel, outputs: Sequence[str], feeds: Feeds
) -> dict[str, Hidden]:
    """Return the values before the saturated nodes of the main graph, by the outputs behind these nodes.

    Empty if the models do not run that way, and for a sequence. The outputs of the models are replaced.
    """
    if isinstance(feeds, Steps):
        return {}
    there = before.values
    known = {output: there[output] for output in outputs if output in there}
    names = {value.name or "" for output in known.values() for value in _ancestors(output)}
    is_rescaled = annotations.is_rescaled(after.model.metadata_props)
    values: dict[str, Hidden] = {}
    try:
        for name, value, other in paired_values(before, after, names, feeds):
            if other is not None and other.shape == value.shape:
                actual = other / _power(value, other) if is_rescaled else other
                values[name] = Hidden(name, value, actual, metrics.measure(value, actual).relative_l2)
    except AmpRewriteError:
        return {}
    found = ((output, _shown(value, values)) for output, value in known.items())
    return {output: value for output, value in found if value is not None}


MOST = 48
"""The most values before an output that are looked at: a written-out softmax has 6."""


def _ancestors(output: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that an output is computed from, itself and the nearest first."""
    values, at = dict.fromkeys([output]), 0
    while at < min(len(values), MOST):
        value, at = list(values)[at], at + 1
        yield value
        values.update(dict.fromkeys(_sources(value)))


def _sources(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [each for each in node.inputs if each is not None]


def _power(expected: Array, actual: Array) -> float:
    """Return the power of two by which a value is stored otherwise in a rescaled model."""
    both = np.isfinite(expected) & np.isfinite(actual)
    sizes = [metrics.rms(value[both].astype(np.float64)) for value in (expected, actual)]
    return 2.0 ** round(math.log2(sizes[1] / sizes[0])) if all(sizes) else 1.0


def _shown(output: ir.Value, values: Mapping[str, Hidden]) -> Hidden | None:
    """Return the nearest value before saturated ones in which an error of half shows."""
    pending = [output]
    for value in pending:
        inputs = [each.name or "" for each in _sources(value)]
        plain = {
            name: values[name]
            for name in inputs
            if name in values and not is_suspect(values[name].expected, values[name].relative_l2)
        }
        worst = max(plain.values(), key=lambda found: found.relative_l2, default=None)
        if value.name in values and worst is not None and worst.relative_l2 >= _MUCH * SHOWS:
            return worst
        pending += [each for each in _sources(value) if each.name not in plain and each not in pending]
    return None


_MUCH = 4.0
"""The ratio to SHOWS of an error that half shows."""
