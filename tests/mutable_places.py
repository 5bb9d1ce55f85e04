"""Where a model has a place for a fault: its live nodes, what they can read, and what it stores."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, TensorProto

INTS = {TensorProto.INT64: 8, TensorProto.INT32: 4}
FLOATS = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2}
NUMBERS = {**INTS, **FLOATS}


class Holder:
    """A graph of a model: its live nodes, and the names that they can read."""

    def __init__(self, graph, live, visible):
        self.graph, self.live, self.visible = graph, live, visible

    def position(self, node):
        """The index of a node."""
        return next(i for i, other in enumerate(self.graph.node) if other.output[:] == node.output[:])

    def names_at(self, node):
        """The names that a node can read: those of the graph, and of the nodes before it."""
        before = self.graph.node[: self.position(node)]
        return [name for other in before for name in other.output if name]


class NothingError(Exception):
    """A model has no place for a fault."""


def pick(random, options):
    """One of the options; NothingError where there is none."""
    options = list(options)
    if not options:
        raise NothingError
    return options[random.integers(len(options))]


def pick_two(random, options):
    """Two of the options."""
    options = list(options)
    if len(options) < 2:
        raise NothingError
    return (options[int(i)] for i in random.choice(len(options), 2, replace=False))


def pick_node(model, random, holds):
    """A live node of which something holds, and its graph."""
    return pick(random, [(holder, node) for holder, node in live_nodes(model) if holds(node)])


def live_nodes(model):
    """Every live node with its graph."""
    return [(holder, node) for holder in holders(model.graph) for node in holder.live]


def holders(graph, around=()) -> Iterator[Holder]:
    """A graph and those of its live nodes."""
    wanted = {info.name for info in graph.output}
    live = []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            live.append(node)
            wanted.update(read(node))
    visible = [*around, *(info.name for info in graph.input)]
    visible += [tensor.name for tensor in graph.initializer]
    yield Holder(graph, live, visible)
    before = [name for node in graph.node for name in node.output if name]
    for node in live:
        for body in bodies(node):
            yield from holders(body, [*visible, *before])


def bodies(node):
    """The graphs of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def read(node):
    """The names that a node and its bodies read."""
    yield from node.input
    for body in bodies(node):
        yield from (name for inner in body.node for name in read(inner))
        yield from (info.name for info in body.output)


def ports(node):
    """The inputs of a node that say what it computes: a CastLike reads nothing of the second but its type."""
    return [i for i, name in enumerate(node.input) if name and (node.op_type, i) != ("CastLike", 1)]


def is_float_cast(node):
    """Whether a node is a Cast to a float of at most 32 bits."""
    return node.op_type == "Cast" and node.attribute[0].i in FLOATS


def passes_on(node):
    """Whether a node gives what it reads, but for precision: a Cast to a float, or an Identity."""
    return node.op_type == "Identity" or is_float_cast(node)


def origins(model):
    """For each value, the value behind the Casts to floats and Identities that make it."""
    sources = {node.output[0]: node.input[0] for _, node in live_nodes(model) if passes_on(node)}

    def origin(name):
        while name in sources:
            name = sources[name]
        return name

    return origin


def tensors(model, types):
    """The live stored tensors of these types that have elements."""
    for holder in holders(model.graph):
        used = {name for node in holder.live for name in read(node)}
        used |= {info.name for info in holder.graph.output}
        stored = [tensor for tensor in holder.graph.initializer if tensor.name in used]
        for node in holder.live:
            if node.op_type == "Constant" and not node.domain:
                stored += [a.t for a in node.attribute if a.type == AttributeProto.TENSOR]
        yield from (tensor for tensor in stored if tensor.data_type in types and 0 not in tensor.dims)


def array_of(tensor):
    """A copy of the elements of a tensor."""
    return onnx.numpy_helper.to_array(tensor).copy()


def store(tensor, content):
    """Store bytes in a tensor."""
    for field in ("float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.raw_data = content
