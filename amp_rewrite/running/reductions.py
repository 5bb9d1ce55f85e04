"""A model that gives a few numbers for every float value, reduced within the run, or the value itself.

Its outputs are three vectors, where anything is reduced: the largest elements of the values, the smallest,
and sums; then the values that are handed out. A Slot says which values have the next numbers, or are the next
output. The numbers of bodies are handed out of them (`carried_reductions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

from amp_rewrite.model import proto_traversal
from amp_rewrite.running import carried_reductions, followers, nan_free, reducible_values
from amp_rewrite.running.carried_reductions import Vectors
from amp_rewrite.running.followers import Follower
from amp_rewrite.running.reducible_values import FloatTypes
from amp_rewrite.running.slots import Slot, Treatment
from amp_rewrite.running.value_reductions import PREFIX, Builder, Numbers

_HAND_OUT = {
    "If": carried_reductions.of_if,
    "Loop": carried_reductions.of_loop,
    "Scan": carried_reductions.of_scan,
}
_SINCE_STATES = 9
"""The opset from which on a Scan has no batch axis."""


Treat = Callable[[str], Treatment]
"""Says what is done with the value of a name."""


def add(
    proto: onnx.ModelProto, types: FloatTypes, opset: int, treat: Treat, handed_out: Container[str] = ()
) -> Sequence[Slot]:
    """Makes numbers of the values with these `types` the outputs of a model, in place of its own.

    Returns what they are of, in their order: first those that are reduced. Values in `handed_out`, which are
    of the main graph, are outputs themselves, in float32; `treat` is not asked about them.

    The model stays as it is where it has no such values.
    """
    return _Reducer(proto, types, opset, treat, handed_out).run()


@dataclass(slots=True)
class _Found:
    """What is reduced in a graph: the scalars of its own values, and the vectors of its bodies.

    `outputs` are the values that are handed out, as float32.
    """

    numbers: list[Numbers] = field(default_factory=list[Numbers])
    slots: list[Slot] = field(default_factory=list[Slot])
    vectors: list[Vectors] = field(default_factory=list[Vectors])
    inner: list[Slot] = field(default_factory=list[Slot])
    outputs: list[str] = field(default_factory=list[str])
    handed_out: list[Slot] = field(default_factory=list[Slot])
    by_name: dict[str, tuple[Slot, Follower]] = field(default_factory=dict[str, tuple[Slot, Follower]])


class _Reducer:
    def __init__(
        self,
        proto: onnx.ModelProto,
        types: FloatTypes,
        opset: int,
        treat: Treat,
        handed_out: Container[str],
    ) -> None:
        self._graph = proto.graph
        self._types = iter(types)
        self._opset = opset
        self._asked, self._handed_out = treat, handed_out
        self._stored = followers.stored(proto.graph)
        self._builder = Builder(proto_traversal.unused_prefix(proto.graph, PREFIX), opset)

    def run(self) -> Sequence[Slot]:
        """Changes the model; returns the slots of its outputs."""
        found = self._reduce(self._graph, self._types_of_root())
        vectors = self._pack(self._graph, found)
        if vectors:
            _prepend(self._graph, self._builder.limits())
        if vectors or found.outputs:
            del self._graph.output[:]
            self._graph.output.extend(vectors.infos if vectors else ())
            self._graph.output.extend(map(_output, found.outputs))
        return (*found.slots, *found.inner, *found.handed_out)

    def _types_of_root(self) -> Mapping[str, int]:
        """Those of the main graph's values, without its inputs: these are measured where they are given."""
        inputs = {entry.name for entry in self._graph.input}
        return {name: dtype for name, dtype in next(self._types).items() if name not in inputs}

    def _reduce(self, graph: onnx.GraphProto, types: Mapping[str, int]) -> _Found:
        """Adds the nodes that reduce the values of a graph, each behind the node that makes it."""
        found, nodes = _Found(), list[onnx.NodeProto]()
        unsummed = self._unsummed(graph, types)
        for entry in graph.input:
            self._value(entry.name, types, unsummed, found, nodes)
        for node in graph.node:
            self._bodies(node, found, nodes)
            nodes.append(node)
            if not self._follows(node, types, found):
                for name in node.output:
                    self._value(name, types, unsummed, found, nodes)
        del graph.node[:]
        graph.node.extend(nodes)
        return found

    def _unsummed(self, graph: onnx.GraphProto, types: Mapping[str, int]) -> Container[str]:
        """The values of a graph of which others tell whether they have a NaN."""

        def is_known(name: str) -> bool:
            return types.get(name) == TensorProto.FLOAT and self._treat(name) is Treatment.REDUCED

        free = nan_free.values(graph, is_known, self._stored)
        return free | reducible_values.passing_nan_on(graph, types.keys() - free)

    def _follows(self, node: onnx.NodeProto, types: Mapping[str, int], found: _Found) -> bool:
        """Whether what is known of its input tells all of the output of a node; then it is told so."""
        known = found.by_name.get(node.input[0]) if node.input and node.domain == "" else None
        if known is None:
            return False
        slot, follower = known[0], followers.of(node, known[1], self._opset, self._stored)
        if follower is None or not (follower.is_same or self._is_told(follower, slot, types)):
            return False
        found.by_name[follower.name] = slot, follower
        if follower.is_same:
            slot.names.append(follower.name)
        else:
            slot.followers.append(follower)
        return True

    def _is_told(self, follower: Follower, slot: Slot, types: Container[str]) -> bool:
        """Whether extremes are all that is asked of it; how many zeros a Pad adds is not known of arrays."""
        if follower.name not in types or self._treat(follower.name) is not slot.treatment:
            return False
        is_reduced, is_handed_out = (slot.treatment is t for t in (Treatment.REDUCED, Treatment.HANDED_OUT))
        return is_reduced or (is_handed_out and not follower.padded)

    def _value(
        self,
        name: str,
        types: Mapping[str, int],
        unsummed: Container[str],
        found: _Found,
        nodes: list[onnx.NodeProto],
    ) -> None:
        if name not in types:
            return
        treatment = self._treat(name)
        value = self._builder.as_float(nodes, name, types[name])
        if treatment is Treatment.HANDED_OUT:
            slot = Slot([name], treatment)
            found.outputs.append(value)
            found.handed_out.append(slot)
        else:
            numbers = self._numbers(nodes, value, treatment, summed=name not in unsummed)
            slot = Slot([name], treatment, len(numbers.sums))
            found.numbers.append(numbers)
            found.slots.append(slot)
        found.by_name[name] = slot, Follower(name)

    def _numbers(
        self, nodes: list[onnx.NodeProto], value: str, treatment: Treatment, *, summed: bool
    ) -> Numbers:
        if treatment is Treatment.SEPARATED:
            return self._builder.separated(nodes, value)
        if treatment is Treatment.COUNTED:
            return self._builder.counted(nodes, value)
        return (self._builder.summed if summed else self._builder.extremes)(nodes, value)

    def _treat(self, name: str) -> Treatment:
        return Treatment.HANDED_OUT if name in self._handed_out else self._asked(name)

    def _bodies(self, node: onnx.NodeProto, found: _Found, nodes: list[onnx.NodeProto]) -> None:
        """Hands out what is reduced in the bodies of a node; what stands before it goes to `nodes`."""
        hand_out = _HAND_OUT.get(node.op_type) if node.domain == "" else None
        if node.op_type == "Scan" and self._opset < _SINCE_STATES:
            hand_out = None
        for body in proto_traversal.bodies(node):
            if hand_out is None:
                for _ in proto_traversal.graphs(body):
                    next(self._types, None)
                continue
            inner = self._reduce(body, next(self._types, {}))
            if vectors := self._pack(body, inner):
                handed = hand_out(node, body, vectors, self._builder.name)
                nodes.extend(handed.before)
                found.vectors.append(handed.vectors)
                found.inner.extend((*inner.slots, *inner.inner))

    def _pack(self, graph: onnx.GraphProto, found: _Found) -> Vectors | None:
        """Adds the nodes that make three vectors of what was found in a graph; None if nothing was."""
        if not found.numbers and not found.vectors:
            return None
        highs = [numbers.high for numbers in found.numbers]
        lows = [numbers.low for numbers in found.numbers]
        sums = list(itertools.chain.from_iterable(numbers.sums for numbers in found.numbers))
        nodes, names, sizes = list[onnx.NodeProto](), list[str](), list[int]()
        for at, scalars in enumerate((highs, lows, sums)):
            names.append(
                self._builder.packed(nodes, scalars, [vectors.names[at] for vectors in found.vectors])
            )
            sizes.append(len(scalars) + sum(vectors.sizes[at] for vectors in found.vectors))
        graph.node.extend(nodes)
        return Vectors(tuple(names), tuple(sizes))


def _output(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _prepend(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend((*nodes, *rest))
