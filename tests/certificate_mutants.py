"""Faults that a rewrite might make, put into its results one at a time."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, TensorProto, defs, helper

from tests.mutable_places import (
    FLOATS,
    INTS,
    NUMBERS,
    NothingError,
    array_of,
    bodies,
    is_float_cast,
    live_nodes,
    origins,
    passes_on,
    pick,
    pick_node,
    pick_two,
    ports,
    read,
    store,
    tensors,
)

KINDS = []
"""Every kind of mutant: a function that changes a model, and says in a word what it changed."""


def kind(function):
    """List a kind of mutant."""
    KINDS.append(function)
    return function


def mutant(kind, model, random):
    """What was changed of a model, which is changed; None where nothing was."""
    before = model.SerializeToString(deterministic=True)
    try:
        change = kind(model, random)
    except NothingError:
        return None
    return None if model.SerializeToString(deterministic=True) == before else change


@kind
def rewired(model, random):
    """An input of a node is another value."""
    holder, node = pick_node(model, random, lambda node: any(node.input))
    port, origin = pick(random, ports(node)), origins(model)
    names = [*holder.visible, *holder.names_at(node)]
    node.input[port] = pick(random, [name for name in names if origin(name) != origin(node.input[port])])
    return f"{node.op_type} reads {node.input[port]}"


ORDERED = "Sub Div Pow MatMul Greater Less Where Gather Concat Gemm Conv PRelu Mod".split()


@kind
def swapped(model, random):
    """Two inputs of an operator that does not commute are swapped."""
    origin = origins(model)
    nodes = [n for _, n in live_nodes(model) if n.op_type in ORDERED and len(n.input) > 1]
    node = pick(random, [n for n in nodes if origin(n.input[0]) != origin(n.input[1])])
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return node.op_type


@kind
def attribute(model, random):
    """A number or a word of an attribute is another."""
    kinds = (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.STRING)
    skipped = {"Cast", "Constant", "ConstantOfShape", "EyeLike"}
    nodes = [n for _, n in live_nodes(model) if n.op_type not in skipped]
    places = [(n, a) for n in nodes for a in n.attribute if a.type in kinds and a.name != "dtype"]
    node, changed = pick(random, places)
    if changed.type == AttributeProto.INT:
        changed.i += 1
    elif changed.type == AttributeProto.INTS and changed.ints:
        changed.ints[int(random.integers(len(changed.ints)))] += 1
    elif changed.type == AttributeProto.FLOAT:
        changed.f = changed.f * 1.5 + 0.25
    else:
        changed.s += b"x"
        changed.ints.extend([1] if changed.type == AttributeProto.INTS else [])
    return f"{node.op_type}.{changed.name}"


@kind
def shuffled(model, random):
    """The numbers of an attribute are in another order."""
    attributes = [(n, a) for _, n in live_nodes(model) for a in n.attribute if a.type == AttributeProto.INTS]
    node, changed = pick(random, [(n, a) for n, a in attributes if len(set(a.ints)) > 1])
    changed.ints[:] = [int(number) for number in random.permutation(changed.ints)]
    return f"{node.op_type}.{changed.name}"


@kind
def next_number(model, random):
    """A float of an attribute is the next one that there is."""
    floats = [a for _, n in live_nodes(model) for a in n.attribute if a.type == AttributeProto.FLOAT]
    changed = pick(random, [a for a in floats if np.isfinite(a.f)])
    changed.f = float(np.nextafter(np.float32(changed.f), np.float32(np.inf)))
    return changed.name


@kind
def unstated(model, random):
    """An attribute that is not its default is left out."""
    places = [(n, a) for _, n in live_nodes(model) for a in n.attribute if says_more(model, n, a)]
    node, dropped = pick(random, [(n, a) for n, a in places if not is_float_cast(n)])
    name = f"{node.op_type}.{dropped.name}"
    node.attribute.remove(dropped)
    return name


def says_more(model, node, stated):
    """Whether an attribute is one of its operator, and not the default."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    try:
        schema = defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return False
    if stated.name not in schema.attributes or stated.type == AttributeProto.GRAPH:
        return False
    default = schema.attributes[stated.name].default_value
    if not default.name:
        return schema.attributes[stated.name].required
    return helper.get_attribute_value(default) != helper.get_attribute_value(stated)


@kind
def dropped(model, random):
    """A node is left out: what reads it reads its input."""
    _, node = pick_node(
        model, random, lambda n: n.input and n.input[0] and not passes_on(n) and n.op_type != "Constant"
    )
    name = node.output[0]
    readers = [(n, port) for _, n in live_nodes(model) for port in ports(n) if n.input[port] == name]
    if not name or not readers:
        return None
    for _, reader in live_nodes(model):
        reader.input[:] = [node.input[0] if used == name else used for used in reader.input]
    return node.op_type


@kind
def weight(model, random):
    """A bit of a stored float is another, but for its sign."""
    tensor = pick(random, tensors(model, FLOATS))
    return flip(tensor, random, 8 * FLOATS[tensor.data_type] - 1)


@kind
def integer(model, random):
    """A bit of a stored integer is another."""
    tensor = pick(random, tensors(model, INTS))
    return flip(tensor, random, 8 * INTS[tensor.data_type])


def flip(tensor, random, bits):
    """Flip one of the lower bits of an element."""
    content = np.frombuffer(bytearray(array_of(tensor).tobytes()), np.uint8).copy()
    size = NUMBERS[tensor.data_type]
    element, bit = int(random.integers(content.size // size)), int(random.choice(range(bits)))
    content[element * size + bit // 8] ^= 1 << (bit % 8)
    store(tensor, content.tobytes())
    return tensor.name


@kind
def shape(model, random):
    """A stored value, a fill's shape among them, has one axis more, or its axes in another order."""
    tensor = pick(random, tensors(model, NUMBERS))
    turned = list(tensor.dims)[::-1]
    tensor.dims[:] = turned if turned != list(tensor.dims) else [*tensor.dims, 1]
    return tensor.name


OF_EQUAL_SIZE = {
    TensorProto.INT64: TensorProto.UINT64,
    TensorProto.INT32: TensorProto.UINT32,
    TensorProto.FLOAT16: TensorProto.BFLOAT16,
    TensorProto.FLOAT: TensorProto.INT32,
}


@kind
def element_type(model, random):
    """A stored value has the same bits and another element type."""
    tensor = pick(random, tensors(model, OF_EQUAL_SIZE))
    store(tensor, array_of(tensor).tobytes())
    tensor.data_type = OF_EQUAL_SIZE[tensor.data_type]
    return tensor.name


@kind
def exchanged(model, random):
    """Two elements of a stored value that differ are exchanged."""
    tensor = pick(random, [t for t in tensors(model, NUMBERS) if np.prod(t.dims) > 1])
    array = array_of(tensor)
    flat = array.reshape(-1)
    one, other = random.integers(flat.size, size=2)
    if flat[one].tobytes() == flat[other].tobytes():
        return None
    flat[[one, other]] = flat[[other, one]]
    store(tensor, array.tobytes())
    return tensor.name


@kind
def contents(model, random):
    """Two stored values of one type and shape that differ are exchanged."""
    stored = list(tensors(model, NUMBERS))
    one = pick(random, stored)
    alike = [t for t in stored if t is not one and t.data_type == one.data_type and t.dims == one.dims]
    other = pick(random, alike)
    before, after = array_of(one).tobytes(), array_of(other).tobytes()
    if before == after:
        return None
    store(one, after)
    store(other, before)
    return f"{one.name} {other.name}"


@kind
def cast_type(model, random):
    """A Cast gives another type."""
    _, node = pick_node(model, random, lambda node: node.op_type == "Cast")
    other = [TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.UINT8]
    before = node.attribute[0].i
    node.attribute[0].i = pick(random, [t for t in other if t != before])
    return f"{before} -> {node.attribute[0].i}"


WAYS = [
    (TensorProto.INT32, TensorProto.FLOAT16),
    (TensorProto.FLOAT8E5M2, TensorProto.FLOAT),
    (TensorProto.BOOL, TensorProto.FLOAT16),
    (TensorProto.DOUBLE, TensorProto.INT64, TensorProto.FLOAT),
    (TensorProto.DOUBLE,),
]


@kind
def through_types(model, random):
    """A value goes through integers, float8, bool or a double on its way to a reader."""
    return insert(model, random, [("Cast", {"to": to}) for to in pick(random, WAYS)])


UNARY = "Abs Neg Relu Exp Floor Ceil Sqrt Sigmoid Tanh Identity Round Sign Reciprocal Erf Softmax Not".split()


@kind
def unary(model, random):
    """A value goes through an operator on its way to a reader."""
    return insert(model, random, [(pick(random, UNARY), {})])


def insert(model, random, operators):
    """Insert nodes between a value and one of its readers."""
    holder, node = pick_node(model, random, lambda node: any(node.input))
    port = pick(random, ports(node))
    for number, (name, attributes) in enumerate(operators):
        output = f"mutant{number}"
        added = helper.make_node(name, [node.input[port]], [output], **attributes)
        holder.graph.node.insert(holder.position(node), added)
        node.input[port] = output
    return f"{node.op_type} {port} {operators[0][0]}"


@kind
def output(model, random):
    """An output is another value: it takes the name of one that is computed elsewhere."""
    graph, origin = model.graph, origins(model)
    info, outputs = pick(random, graph.output), {info.name for info in graph.output}
    names = [name for node in graph.node for name in node.output if name and name not in outputs]
    other = pick(random, [name for name in names if origin(name) != origin(info.name)])
    for node in graph.node:
        rename(node, {info.name: other, other: info.name})
    return f"{info.name} is {other}"


def rename(node, names):
    """Rename values that a node and its bodies read and make."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for body in bodies(node):
        for inner in body.node:
            rename(inner, names)
        for info in body.output:
            info.name = names.get(info.name, info.name)


FAMILIES = [
    "Abs Neg Exp Log Sqrt Relu Sigmoid Tanh Erf Floor Ceil Round Sin Cos Reciprocal Softplus Identity Sign",
    "Add Sub Mul Div Pow Min Max Mod PRelu",
    "Less Greater LessOrEqual GreaterOrEqual Equal And Or Xor",
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp",
    "Reshape Expand Tile Squeeze Unsqueeze Gather GatherElements GatherND Slice Pad",
    "Softmax LogSoftmax Hardmax",
    "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool",
    "LSTM GRU RNN",
    "ArgMax ArgMin",
    "Shape Size",
]
FAMILY = {name: family.split() for family in FAMILIES for name in family.split()}


@kind
def relative(model, random):
    """A node is of another operator of its family."""
    _, node = pick_node(model, random, lambda node: node.op_type in FAMILY and not node.domain)
    before = node.op_type
    node.op_type = pick(random, [name for name in FAMILY[before] if name != before])
    return f"{before} {node.op_type}"


@kind
def domain(model, random):
    """A node is of another domain."""
    _, node = pick_node(model, random, lambda node: node.op_type != "Cast")
    node.domain = "mutant"
    return node.op_type


@kind
def missing(model, random):
    """The last input is left out."""
    _, node = pick_node(model, random, lambda node: len(node.input) > 1 and node.input[-1])
    del node.input[-1]
    return node.op_type


@kind
def emptied(model, random):
    """An input is left out, where others follow."""
    _, node = pick_node(model, random, lambda node: sum(map(bool, node.input)) > 1)
    port = pick(random, ports(node))
    node.input[port] = ""
    return f"{node.op_type} {port}"


@kind
def variadic(model, random):
    """The inputs of a node that takes several are in another order."""
    names, origin = "Concat Where Gemm Conv Max Min Sum SequenceConstruct".split(), origins(model)
    _, node = pick_node(model, random, lambda node: node.op_type in names and len(set(node.input)) > 1)
    turned = [str(name) for name in random.permutation(node.input)]
    if [origin(name) for name in turned] == [origin(name) for name in node.input]:
        return None
    node.input[:] = turned
    return node.op_type


@kind
def more_inputs(model, random):
    """A node reads one value more, behind others or behind some that are left out."""
    holder, node = pick_node(model, random, lambda node: node.input)
    value = pick(random, [*holder.names_at(node), *holder.visible])
    node.input.extend([*[""] * int(random.integers(3)), value])
    return f"{node.op_type} reads {value} as well"


@kind
def more_outputs(model, random):
    """A node gives one value more, which nobody reads."""
    _, node = pick(random, live_nodes(model))
    node.output.append("mutant")
    return node.op_type


@kind
def outputs(model, random):
    """Two outputs of a node change places."""
    return exchange_outputs(model, random, bool)


@kind
def port(model, random):
    """Two outputs of a node that are read change places."""
    used = {name for _, n in live_nodes(model) for name in read(n)} | {o.name for o in model.graph.output}
    return exchange_outputs(model, random, used.__contains__)


def exchange_outputs(model, random, counts):
    """Exchange two outputs of a node whose names count."""
    _, node = pick_node(model, random, lambda node: sum(map(counts, node.output)) > 1)
    one, other = pick_two(random, [i for i, name in enumerate(node.output) if counts(name)])
    node.output[one], node.output[other] = node.output[other], node.output[one]
    return f"{node.op_type} {one} {other}"


@kind
def branches(model, random):
    """The branches of an If are swapped."""
    _, node = pick_node(model, random, lambda node: node.op_type == "If")
    first, second = node.attribute
    if first.g.SerializeToString() == second.g.SerializeToString():
        return None
    first.name, second.name = second.name, first.name
    return node.name


@kind
def negated(model, random):
    """An If takes its branches the other way round."""
    holder, node = pick_node(model, random, lambda node: node.op_type == "If")
    holder.graph.node.insert(holder.position(node), helper.make_node("Not", [node.input[0]], ["mutant"]))
    node.input[0] = "mutant"
    return node.name


@kind
def carried(model, random):
    """Two values that a body gives, takes, or that a loop starts with, are in another order."""
    loops = [(n, g) for _, n in live_nodes(model) if n.op_type in ("Loop", "Scan") for g in bodies(n)]
    node, body = pick(random, loops)
    side = pick(random, ["outputs", "inputs", "node"])
    values = {"outputs": body.output, "inputs": body.input, "node": node.input}[side]
    start = {"outputs": 1, "inputs": 2, "node": 2}[side] if node.op_type == "Loop" else 0
    names = [getattr(value, "name", value) for value in values]
    one, other = pick_two(random, [i for i in range(start, len(values)) if names[i]])
    if names[one] == names[other]:
        return None
    if side != "node":
        values[one].name, values[other].name = names[other], names[one]
        return f"{side} {one} {other}"
    if origins(model)(names[one]) == origins(model)(names[other]):
        return None
    values[one], values[other] = names[other], names[one]
    return f"{side} {one} {other}"


@kind
def body_result(model, random):
    """A body gives another of its values."""
    body = pick(random, [body for _, n in live_nodes(model) for body in bodies(n) if len(body.output)])
    info, origin = pick(random, body.output), origins(model)
    names = [name for node in body.node for name in node.output] + [value.name for value in body.input]
    info.name = pick(random, [name for name in names if name and origin(name) != origin(info.name)])
    return info.name


@kind
def body_inputs(model, random):
    """Two inputs of a body are read for each other."""
    body = pick(random, [body for _, n in live_nodes(model) for body in bodies(n) if len(body.input) > 1])
    one, other = pick_two(random, [info.name for info in body.input])
    names = {one: other, other: one}
    if names.keys().isdisjoint(name for inner in body.node for name in read(inner)):
        return None
    for inner in body.node:
        inner.input[:] = [names.get(name, name) for name in inner.input]
    return f"{one} {other}"
