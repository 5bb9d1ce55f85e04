"""Faults that a rewrite might make, put into its results one at a time.

A kind of fault is a function that changes a model in place, where it has a place for it: live nodes, what
they can read, and what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

INTS = {TensorProto.INT64: 8, TensorProto.INT32: 4}
FLOATS = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2}
NUMBERS = {**INTS, **FLOATS}


class NothingError(Exception):
    """A model has no place for a fault."""


def mutant(kind, model: onnx.ModelProto, chance: Random) -> onnx.ModelProto | None:
    """A copy of a model with a fault; None where it has no place for one, or nothing changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        kind(copy, chance)
    except NothingError:
        return None
    same = copy.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
    return None if same else copy


# ---- places


@dataclass(frozen=True)
class Place:
    """A live node of a graph, and the names that it can read."""

    graph: onnx.GraphProto
    node: onnx.NodeProto
    names: list[str]

    def insert(self, operator: str, name: str, output: str, **attributes: object) -> None:
        """Puts a node before this one."""
        position = next(i for i, node in enumerate(self.graph.node) if node.output == self.node.output)
        self.graph.node.insert(position, helper.make_node(operator, [name], [output], **attributes))


def places(model: onnx.ModelProto) -> list[Place]:
    """Every live node with its place."""
    return [*_places(model.graph, [])]


def _places(graph: onnx.GraphProto, around: list[str]) -> Iterator[Place]:
    visible = [*around, *(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)]
    for node in live(graph):
        made = [name for other in graph.node for name in other.output if name]
        yield Place(graph, node, [*visible, *made[: made.index(next(filter(None, node.output)))]])
        for body in bodies(node):
            yield from _places(body, [*visible, *made])


def live(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph that its outputs depend on."""
    wanted, found = {info.name for info in graph.output}, []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            found.append(node)
            wanted.update(read(node))
    return found


def nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Every live node."""
    return [place.node for place in places(model)]


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs of a node."""
    for attribute in node.attribute:
        yield from (*([attribute.g] if attribute.type == AttributeProto.GRAPH else ()), *attribute.graphs)


def all_bodies(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graphs of all live nodes."""
    return [body for node in nodes(model) for body in bodies(node)]


def read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node and its bodies read."""
    yield from node.input
    for body in bodies(node):
        yield from names_read(body)


def names_read(graph: onnx.GraphProto) -> set[str]:
    """The names that the nodes and the outputs of a graph read."""
    return {name for node in graph.node for name in read(node)} | {info.name for info in graph.output}


def ports(node: onnx.NodeProto) -> list[int]:
    """The inputs of a node that say what it computes: a CastLike reads nothing of the second but its type."""
    return [i for i, name in enumerate(node.input) if name and (node.op_type, i) != ("CastLike", 1)]


def is_float_cast(node: onnx.NodeProto) -> bool:
    """Whether a node is a Cast to a float of at most 32 bits."""
    return node.op_type == "Cast" and node.attribute[0].i in FLOATS


def passes_on(node: onnx.NodeProto) -> bool:
    """Whether a node gives what it reads, but for precision: a Cast to a float, or an Identity."""
    return node.op_type == "Identity" or is_float_cast(node)


def others(model: onnx.ModelProto, name: str, names: Iterable[str]) -> list[str]:
    """The names of other values than this, behind Casts to floats and Identities; constants by content."""
    sources = {node.output[0]: node.input[0] for node in nodes(model) if passes_on(node)}
    stored = {
        tensor.name: tensor for graph in (model.graph, *all_bodies(model)) for tensor in graph.initializer
    }
    constants = {node.output[0]: node.attribute[0] for node in nodes(model) if node.op_type == "Constant"}
    stored |= {name: attribute.t for name, attribute in constants.items() if attribute.name == "value"}

    def origin(name: str) -> object:
        tensor = stored.get(name)
        if tensor is not None and tensor.data_type in NUMBERS:
            return *tensor.dims, array_of(tensor).astype(float).tobytes()
        if name in constants:
            return constants[name].SerializeToString()
        return origin(sources[name]) if name in sources else name

    return [other for other in names if other and origin(other) != origin(name)]


def tensors(model: onnx.ModelProto, types: Iterable[int]) -> list[TensorProto]:
    """The live stored tensors of these types that have elements."""
    stored = []
    for graph in (model.graph, *all_bodies(model)):
        used = {name for node in live(graph) for name in read(node)} | {info.name for info in graph.output}
        stored += [tensor for tensor in graph.initializer if tensor.name in used]
    constants = [node for node in nodes(model) if node.op_type == "Constant" and not node.domain]
    stored += [a.t for node in constants for a in node.attribute if a.type == AttributeProto.TENSOR]
    return [tensor for tensor in stored if tensor.data_type in types and 0 not in tensor.dims]


def array_of(tensor: TensorProto):
    """A copy of the elements of a tensor."""
    return numpy_helper.to_array(tensor).copy()


def store(tensor: TensorProto, array) -> None:
    """Store other elements in a tensor."""
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def pick(chance: Random, options):
    """One of the options; NothingError where there is none."""
    return pick_some(chance, options, 1)[0]


def pick_some(chance: Random, options, count: int = 2) -> list:
    """Two of the options; NothingError where there are fewer."""
    options = list(options)
    if len(options) < count:
        raise NothingError
    return chance.sample(options, count)


def pick_place(model: onnx.ModelProto, chance: Random, holds) -> Place:
    """The place of a live node of which something holds."""
    return pick(chance, [place for place in places(model) if holds(place.node)])


def pick_node(model: onnx.ModelProto, chance: Random, holds) -> onnx.NodeProto:
    """A live node of which something holds."""
    return pick_place(model, chance, holds).node


# ---- inputs and outputs of nodes


def rewired(model, chance):
    """An input of a node is another value."""
    place = pick_place(model, chance, lambda node: any(node.input))
    port = pick(chance, ports(place.node))
    place.node.input[port] = pick(chance, others(model, place.node.input[port], place.names))


ORDERED = """Sub Div Pow MatMul Greater Less Where Gather Concat Gemm Conv PRelu Mod
    Max Min Sum SequenceConstruct""".split()


def reordered(model, chance):
    """The inputs of a node of an operator that takes several are in another order."""
    node = pick_node(model, chance, lambda node: node.op_type in ORDERED and len(set(node.input)) > 1)
    turned = chance.sample(list(node.input), len(node.input))
    if any(others(model, before, [after]) for before, after in zip(node.input, turned, strict=True)):
        node.input[:] = turned


def missing(model, chance):
    """An input is left out, perhaps where others follow."""
    node = pick_node(model, chance, lambda node: sum(map(bool, node.input)) > 1)
    if chance.randrange(2):
        del node.input[-1]
    else:
        node.input[pick(chance, ports(node))] = ""


def more_ports(model, chance):
    """A node gives one value more, or reads one more, behind others or behind some that are left out."""
    place = pick(chance, places(model))
    if chance.randrange(2) or not place.node.input:
        place.node.output.append("mutant")
    else:
        place.node.input.extend([*[""] * chance.randrange(3), pick(chance, place.names)])


def outputs(model, chance):
    """Two outputs of a node change places, half the time such as are read."""
    used = {name for node in nodes(model) for name in read(node)} | {info.name for info in model.graph.output}
    counts = pick(chance, [bool, used.__contains__])
    node = pick_node(model, chance, lambda node: sum(map(counts, node.output)) > 1)
    one, other = pick_some(chance, [i for i, name in enumerate(node.output) if counts(name)])
    node.output[one], node.output[other] = node.output[other], node.output[one]


def output(model, chance):
    """An output is another value: it takes the name of one that is computed elsewhere."""
    graph = model.graph
    info, known = pick(chance, graph.output), {info.name for info in graph.output}
    names = [name for node in graph.node for name in node.output if name not in known]
    other = pick(chance, others(model, info.name, names))
    for node in graph.node:
        rename(node, {info.name: other, other: info.name})


def rename(node, names):
    """Rename values that a node and its bodies read and make."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for body in bodies(node):
        for inner in body.node:
            rename(inner, names)
        for info in body.output:
            info.name = names.get(info.name, info.name)


# ---- nodes


def dropped(model, chance):
    """A node is left out: what reads it reads its input."""

    def holds(node):
        return node.input and node.input[0] and not passes_on(node) and node.op_type != "Constant"

    node = pick_node(model, chance, holds)
    for reader in nodes(model):
        for port in ports(reader):
            if reader.input[port] and reader.input[port] == node.output[0]:
                reader.input[port] = node.input[0]


WAYS = [
    (TensorProto.INT32, TensorProto.FLOAT16),
    (TensorProto.FLOAT8E5M2, TensorProto.FLOAT),
    (TensorProto.BOOL, TensorProto.FLOAT16),
    (TensorProto.DOUBLE, TensorProto.INT64, TensorProto.FLOAT),
    (TensorProto.DOUBLE,),
]
UNARY = "Abs Neg Relu Exp Floor Ceil Sqrt Sigmoid Tanh Identity Round Sign Reciprocal Erf Softmax Not".split()


def inserted(model, chance):
    """A value goes through an operator, or through other types, on its way to a reader."""
    casts = [("Cast", {"to": to}) for to in pick(chance, WAYS)]
    operators = pick(chance, [casts, [(pick(chance, UNARY), {})]])
    place = pick_place(model, chance, lambda node: any(node.input))
    port = pick(chance, ports(place.node))
    for number, (name, attributes) in enumerate(operators):
        place.insert(name, place.node.input[port], f"mutant{number}", **attributes)
        place.node.input[port] = f"mutant{number}"


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


def relative(model, chance):
    """A node is of another operator of its family."""
    node = pick_node(model, chance, lambda node: node.op_type in FAMILY and not node.domain)
    node.op_type = pick(chance, [name for name in FAMILY[node.op_type] if name != node.op_type])


def domain(model, chance):
    """A node is of another domain."""
    pick_node(model, chance, lambda node: node.op_type != "Cast").domain = "mutant"


def cast_type(model, chance):
    """A Cast gives another type."""
    to = pick_node(model, chance, lambda node: node.op_type == "Cast").attribute[0]
    types = [TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.UINT8]
    to.i = pick(chance, [each for each in types if each != to.i])


# ---- attributes


def attributes(model, *types):
    """The attributes of these types of live nodes, each with its node."""
    return [(node, a) for node in nodes(model) for a in node.attribute if a.type in types]


def attribute(model, chance):
    """A number or a word of an attribute is another, if only the next; or numbers are in another order."""
    kinds = AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.STRING
    skipped = {"Cast", "Constant", "ConstantOfShape", "EyeLike"}
    found = [a for node, a in attributes(model, *kinds) if node.op_type not in skipped and a.name != "dtype"]
    chosen = pick(chance, sorted({a.type for a in found}))
    changed = pick(chance, [a for a in found if a.type == chosen])
    if changed.type == AttributeProto.INT:
        changed.i += 1
    elif changed.type == AttributeProto.FLOAT:
        following = float(np.nextafter(np.float32(changed.f), np.float32(np.inf)))
        changed.f = pick(chance, [changed.f * 1.5 + 0.25, following])
    elif changed.type == AttributeProto.STRING:
        changed.s += b"x"
    elif len(set(changed.ints)) > 1 and chance.randrange(2):
        changed.ints[:] = chance.sample(list(changed.ints), len(changed.ints))
    elif changed.ints:
        changed.ints[chance.randrange(len(changed.ints))] += 1
    else:
        changed.ints.append(1)


def unstated(model, chance):
    """An attribute that is not its default is left out."""
    found = attributes(model, *AttributeProto.AttributeType.values())
    node, left_out = pick(
        chance, [(n, a) for n, a in found if says_more(model, n, a) and not is_float_cast(n)]
    )
    node.attribute.remove(left_out)


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


# ---- stored tensors


def bit(model, chance):
    """A bit of a stored number is another, but for the sign of a float."""
    tensor = pick(chance, tensors(model, pick(chance, [FLOATS, INTS])))
    array, size = array_of(tensor), NUMBERS[tensor.data_type]
    flipped = chance.randrange(8 * size - (tensor.data_type in FLOATS))
    array.reshape(-1).view(np.uint8)[chance.randrange(array.size) * size + flipped // 8] ^= 1 << (flipped % 8)
    store(tensor, array)


def shape(model, chance):
    """A stored value, a fill's shape among them, has one axis more, or its axes in another order."""
    tensor = pick(chance, tensors(model, NUMBERS))
    turned = list(tensor.dims)[::-1]
    tensor.dims[:] = turned if turned != list(tensor.dims) else [*tensor.dims, 1]


OF_EQUAL_SIZE = {
    TensorProto.INT64: TensorProto.UINT64,
    TensorProto.INT32: TensorProto.UINT32,
    TensorProto.FLOAT16: TensorProto.BFLOAT16,
    TensorProto.FLOAT: TensorProto.INT32,
}


def element_type(model, chance):
    """A stored value has the same bits and another element type."""
    tensor = pick(chance, tensors(model, OF_EQUAL_SIZE))
    store(tensor, array_of(tensor))
    tensor.data_type = OF_EQUAL_SIZE[tensor.data_type]


def exchanged(model, chance):
    """Two elements of a stored value that differ are exchanged."""
    tensor = pick(chance, [each for each in tensors(model, NUMBERS) if np.prod(each.dims) > 1])
    array = array_of(tensor)
    flat = array.reshape(-1)
    one, other = chance.sample(range(flat.size), 2)
    if flat[one].tobytes() != flat[other].tobytes():
        flat[[one, other]] = flat[[other, one]]
        store(tensor, array)


def contents(model, chance):
    """Two stored values of one type and shape that differ are exchanged."""
    stored = tensors(model, NUMBERS)
    one = pick(chance, stored)
    alike = [each for each in stored if each.data_type == one.data_type and each.dims == one.dims]
    before = array_of(one)
    other = pick(chance, [each for each in alike if array_of(each).tobytes() != before.tobytes()])
    store(one, array_of(other))
    store(other, before)


# ---- bodies


def branches(model, chance):
    """The branches of an If are swapped, or it takes them the other way round."""
    place = pick_place(model, chance, lambda node: node.op_type == "If")
    first, second = place.node.attribute
    if chance.randrange(2):
        place.insert("Not", place.node.input[0], "mutant")
        place.node.input[0] = "mutant"
    elif first.g.SerializeToString() != second.g.SerializeToString():
        first.name, second.name = second.name, first.name


def carried(model, chance):
    """Two values that a body gives or takes, or that a loop starts with, are in another order."""
    loops = [node for node in nodes(model) if node.op_type in ("Loop", "Scan")]
    node, body = pick(chance, [(node, body) for node in loops for body in bodies(node)])
    values, first = pick(chance, [(body.output, 1), (body.input, 2), (node.input, 2)])
    names = [getattr(value, "name", value) for value in values]
    start = first if node.op_type == "Loop" and (values is node.input or chance.randrange(2)) else 0
    one, other = pick_some(chance, [i for i in range(start, len(values)) if names[i]])
    if values is body.input and {names[one], names[other]}.isdisjoint(names_read(body)):
        return
    if values is not node.input:
        values[one].name, values[other].name = names[other], names[one]
    elif others(model, names[one], [names[other]]):
        values[one], values[other] = names[other], names[one]


def body_result(model, chance):
    """A body gives another of its values."""
    body = pick(chance, [body for body in all_bodies(model) if body.output])
    info = pick(chance, body.output)
    names = [*(name for node in body.node for name in node.output), *(value.name for value in body.input)]
    info.name = pick(chance, others(model, info.name, names))


KINDS = (
    *(rewired, reordered, missing, more_ports, outputs, output),
    *(dropped, inserted, relative, domain, cast_type),
    *(attribute, unstated),
    *(bit, shape, element_type, exchanged, contents),
    *(branches, carried, body_result),
)
"""Every kind of fault."""
