"""Faults that a rewrite might make, put into its results one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

INTS = {TensorProto.INT64: 8, TensorProto.INT32: 4}
FLOATS = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2}


class Holder:
    """A graph of a model: its live nodes, and the names that they can read."""

    def __init__(self, graph, live, visible):
        self.graph, self.live, self.visible = graph, live, visible


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
    found = Holder(graph, live, visible)
    yield found
    before = [name for node in graph.node for name in node.output if name]
    for node in live:
        for body in bodies(node):
            yield from holders(body, [*visible, *before])


def live_nodes(model):
    """Every live node with its graph."""
    return [(holder, node) for holder in holders(model.graph) for node in holder.live]


def ports(node):
    """The inputs of a node that say what it computes: a CastLike reads nothing of the second but its type."""
    return [i for i, name in enumerate(node.input) if name and (node.op_type, i) != ("CastLike", 1)]


class NothingError(Exception):
    """A model has no place for a fault."""


def pick(random, options):
    """One of the options; NothingError where there is none."""
    options = list(options)
    if not options:
        raise NothingError
    return options[random.integers(len(options))]


def mutant(kind, model, random):
    """What was changed of a model, which is changed; None where nothing was."""
    before = model.SerializeToString(deterministic=True)
    try:
        what = kind(model, random)
    except NothingError:
        return None
    return None if model.SerializeToString(deterministic=True) == before else what


def is_float_cast(node):
    """Whether a node is a Cast to a float of at most 32 bits."""
    return node.op_type == "Cast" and node.attribute[0].i in FLOATS


def passes_on(node):
    """Whether a node gives what it reads, but for precision: a Cast to a float, or an Identity."""
    return node.op_type == "Identity" or is_float_cast(node)


def origins(model):
    """For each value, the value behind the Casts to floats and Identities that make it."""
    made = {node.output[0]: node.input[0] for _, node in live_nodes(model) if passes_on(node)}

    def origin(name):
        while name in made:
            name = made[name]
        return name

    return origin


def rewired(model, random):
    """An input of a node is another value."""
    holder, node = pick(random, [(h, n) for h, n in live_nodes(model) if any(n.input)])
    port = pick(random, ports(node))
    origin = origins(model)
    at = position(holder.graph, node)
    before = [name for other in holder.graph.node[:at] for name in other.output if name]
    other = pick(random, [n for n in (*holder.visible, *before) if origin(n) != origin(node.input[port])])
    node.input[port] = other
    return f"{node.op_type} reads {other}"


def position(graph, node):
    """Where a node stands in its graph."""
    return next(i for i, other in enumerate(graph.node) if other.output[:] == node.output[:])


ORDERED = {
    "Sub",
    "Div",
    "Pow",
    "MatMul",
    "Greater",
    "Less",
    "Where",
    "Gather",
    "Concat",
    "Gemm",
    "Conv",
    "PRelu",
    "Mod",
}


def swapped(model, random):
    """Two inputs of an operator that does not commute are swapped."""
    origin = origins(model)
    found = [n for _, n in live_nodes(model) if n.op_type in ORDERED and len(n.input) > 1]
    node = pick(random, [n for n in found if origin(n.input[0]) != origin(n.input[1])])
    first, second = node.input[0], node.input[1]
    node.input[0], node.input[1] = second, first
    return node.op_type


def attribute(model, random):
    """A number or a word of an attribute is another."""
    kinds = (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.STRING)
    skipped = {"Cast", "Constant", "ConstantOfShape", "EyeLike"}
    nodes = [n for _, n in live_nodes(model) if n.op_type not in skipped]
    found = pick(
        random, [(n, a) for n in nodes for a in n.attribute if a.type in kinds and a.name != "dtype"]
    )
    node, given = found
    if given.type == AttributeProto.INT:
        given.i += 1
    elif given.type == AttributeProto.INTS and given.ints:
        given.ints[int(random.integers(len(given.ints)))] += 1
    elif given.type == AttributeProto.FLOAT:
        given.f = given.f * 1.5 + 0.25
    else:
        given.s = given.s + b"x"
        given.ints.extend([1] if given.type == AttributeProto.INTS else [])
    return f"{node.op_type}.{given.name}"


def dropped(model, random):
    """A node is left out: what reads it reads its input."""
    found = [(h, n) for h, n in live_nodes(model) if n.input and n.input[0] and not passes_on(n)]
    found = [(h, n) for h, n in found if n.op_type != "Constant"]
    _, node = pick(random, found)
    name, kept = node.output[0], node.input[0]
    if not name or name not in {n.input[port] for _, n in live_nodes(model) for port in ports(n)}:
        return None
    for _, other in live_nodes(model):
        for port, used in enumerate(other.input):
            if used == name:
                other.input[port] = kept
    return node.op_type


def tensors(model, types):
    """The live stored tensors of these types that have elements."""
    for holder in holders(model.graph):
        used = {name for node in holder.live for name in read(node)}
        used |= {info.name for info in holder.graph.output}
        yield from (
            t for t in holder.graph.initializer if t.name in used and t.data_type in types and 0 not in t.dims
        )
        for node in holder.live:
            if node.op_type == "Constant" and not node.domain:
                for a in node.attribute:
                    if a.type == AttributeProto.TENSOR and a.t.data_type in types and 0 not in a.t.dims:
                        yield a.t


def _flip(tensor, random, bits):
    array = np.frombuffer(bytearray(_raw(tensor)), np.uint8).copy()
    size = {**INTS, **FLOATS}[tensor.data_type]
    element = int(random.integers(array.size // size))
    bit = int(random.choice(bits))
    array[element * size + bit // 8] ^= 1 << (bit % 8)
    for field in ("float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.raw_data = array.tobytes()


def _raw(tensor):
    return tensor.raw_data if tensor.HasField("raw_data") else onnx.numpy_helper.to_array(tensor).tobytes()


def weight(model, random):
    """A bit of a stored float is another."""
    tensor = pick(random, tensors(model, FLOATS))
    _flip(tensor, random, range(8 * FLOATS[tensor.data_type] - 1))
    return tensor.name


def integer(model, random):
    """A stored integer is another."""
    tensor = pick(random, tensors(model, INTS))
    _flip(tensor, random, range(8 * INTS[tensor.data_type]))
    return tensor.name


def shape(model, random):
    """A stored value, a fill's shape among them, has one axis more, or its axes in another order."""
    tensor = pick(random, tensors(model, {**INTS, **FLOATS}))
    turned = list(tensor.dims)[::-1]
    tensor.dims[:] = turned if turned != list(tensor.dims) else [*tensor.dims, 1]
    return tensor.name


def cast_type(model, random):
    """A Cast gives another type."""
    node = pick(random, [n for _, n in live_nodes(model) if n.op_type == "Cast"])
    other = [TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.UINT8]
    before = node.attribute[0].i
    node.attribute[0].i = pick(random, [t for t in other if t != before])
    return f"{before} -> {node.attribute[0].i}"


def cast_type_added(model, random):
    """A value goes through integers, or through a double and integers, on its way to a reader."""
    holder, node = pick(random, [(h, n) for h, n in live_nodes(model) if any(n.input)])
    port = pick(random, ports(node))
    middle, back = f"{node.input[port]}__mutant", f"{node.input[port]}__back"
    at = position(holder.graph, node)
    casts = [
        helper.make_node("Cast", [node.input[port]], [middle], to=TensorProto.INT32),
        helper.make_node("Cast", [middle], [back], to=TensorProto.FLOAT16),
    ]
    node.input[port] = back
    for added in reversed(casts):
        holder.graph.node.insert(at, added)
    return node.op_type


def branches(model, random):
    """The branches of an If are swapped."""
    node = pick(random, [n for _, n in live_nodes(model) if n.op_type == "If"])
    first, second = node.attribute
    if first.g.SerializeToString() == second.g.SerializeToString():
        return None
    first.name, second.name = second.name, first.name
    return node.name


def carried(model, random):
    """Two values that a body gives, takes, or that a loop starts with, are in another order."""
    found = [(n, g) for _, n in live_nodes(model) if n.op_type in ("Loop", "Scan") for g in bodies(n)]
    chosen = pick(random, found)
    node, body = chosen
    side = pick(random, ["outputs", "inputs", "node"])
    names = {"outputs": body.output, "inputs": body.input, "node": node.input}[side]
    start = {"outputs": 1, "inputs": 2, "node": 2}[side] if node.op_type == "Loop" else 0
    places = [i for i in range(start, len(names)) if getattr(names[i], "name", names[i])]
    if len(places) < 2:
        return None
    a, b = (int(i) for i in random.choice(places, 2, replace=False))
    if side == "node":
        if origins(model)(names[a]) == origins(model)(names[b]):
            return None
        names[a], names[b] = names[b], names[a]
    else:
        if names[a].name == names[b].name:
            return None
        names[a].name, names[b].name = names[b].name, names[a].name
    return f"{side} {a} {b}"


def output(model, random):
    """An output is another value: it takes the name of one that is computed elsewhere."""
    graph = model.graph
    origin = origins(model)
    info = pick(random, graph.output)
    made = [name for node in graph.node for name in node.output if name and origin(name) != origin(info.name)]
    made = [name for name in made if name not in {other.name for other in graph.output}]
    other = pick(random, made)
    swapped_names = {info.name: other, other: info.name}
    for node in graph.node:
        _rename(node, swapped_names)
    return f"{info.name} is {other}"


def _rename(node, names):
    for ports in (node.input, node.output):
        ports[:] = [names.get(name, name) for name in ports]
    for body in bodies(node):
        for inner in body.node:
            _rename(inner, names)
        for info in body.output:
            info.name = names.get(info.name, info.name)


OPERATORS = {
    "Add": "Sub", "Mul": "Add", "Sub": "Add", "Div": "Mul", "Relu": "Tanh", "Tanh": "Sigmoid",
    "Sigmoid": "Tanh", "Exp": "Neg", "Sqrt": "Exp", "Greater": "Less", "Less": "Greater", "Equal": "Greater",
    "MaxPool": "AveragePool", "ReduceMean": "ReduceSum", "ArgMax": "ArgMin", "Min": "Max", "Max": "Min",
    "And": "Or", "Ceil": "Floor", "Floor": "Ceil", "Neg": "Exp", "Squeeze": "Unsqueeze", "Shape": "Size",
}  # fmt: skip


def operator(model, random):
    """A node is of another operator."""
    node = pick(random, [n for _, n in live_nodes(model) if n.op_type in OPERATORS and not n.domain])
    before, node.op_type = node.op_type, OPERATORS[node.op_type]
    return before


def domain(model, random):
    """A node is of another domain."""
    node = pick(random, [n for _, n in live_nodes(model) if n.op_type != "Cast"])
    node.domain = "mutant"
    return node.op_type


def missing(model, random):
    """An input is left out."""
    nodes = [n for _, n in live_nodes(model) if len(n.input) > 1 and n.input[-1]]
    node = pick(random, nodes)
    del node.input[-1]
    return node.op_type


def port(model, random):
    """Two outputs of a node are swapped."""
    used = {name for _, n in live_nodes(model) for name in read(n)} | {o.name for o in model.graph.output}
    nodes = [n for _, n in live_nodes(model) if sum(name in used for name in n.output) > 1]
    node = pick(random, nodes)
    a, b = (
        int(i)
        for i in random.choice([i for i, name in enumerate(node.output) if name in used], 2, replace=False)
    )
    node.output[a], node.output[b] = node.output[b], node.output[a]
    return node.op_type


def element_type(model, random):
    """A stored value has the same bits and another element type."""
    tensor = pick(
        random,
        tensors(
            model, {TensorProto.INT64: 8, TensorProto.INT32: 4, TensorProto.FLOAT16: 2, TensorProto.FLOAT: 4}
        ),
    )
    raw = _raw(tensor)
    for field in ("float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.raw_data = raw
    tensor.data_type = _AS_LARGE[tensor.data_type]
    return tensor.name


_AS_LARGE = {
    TensorProto.INT64: TensorProto.UINT64,
    TensorProto.INT32: TensorProto.UINT32,
    TensorProto.FLOAT16: TensorProto.BFLOAT16,
    TensorProto.FLOAT: TensorProto.INT32,
}


KINDS = (
    rewired,
    swapped,
    attribute,
    dropped,
    weight,
    integer,
    shape,
    cast_type,
    cast_type_added,
    branches,
    carried,
    output,
    operator,
    domain,
    missing,
    port,
    element_type,
)
