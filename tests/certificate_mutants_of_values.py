"""More faults that a rewrite might make: of the order of elements, of bodies, of what is put in between."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.certificate_mutants import (
    FLOATS,
    INTS,
    bodies,
    live_nodes,
    origins,
    pick,
    ports,
    position,
    read,
    tensors,
)

_ALL = {**INTS, **FLOATS}


def _array(tensor):
    return onnx.numpy_helper.to_array(tensor)


def _put(tensor, array):
    for field in ("float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.raw_data = np.ascontiguousarray(array).tobytes()


def exchanged(model, random):
    """Two elements of a stored value that differ are exchanged."""
    tensor = pick(random, [t for t in tensors(model, _ALL) if np.prod(t.dims) > 1])
    array = _array(tensor).copy()
    flat = array.reshape(-1)
    one, other = random.integers(flat.size, size=2)
    if flat[one].tobytes() == flat[other].tobytes():
        return None
    flat[one], flat[other] = flat[other].copy(), flat[one].copy()
    _put(tensor, array)
    return tensor.name


def contents(model, random):
    """Two stored values of one type and shape that differ are exchanged."""
    held = list(tensors(model, _ALL))
    one = pick(random, held)
    alike = [t for t in held if t is not one and t.data_type == one.data_type and t.dims == one.dims]
    other = pick(random, alike)
    arrays = _array(one).copy(), _array(other).copy()
    if arrays[0].tobytes() == arrays[1].tobytes():
        return None
    _put(one, arrays[1])
    _put(other, arrays[0])
    return f"{one.name} {other.name}"


def _between(model, random, make):
    """Puts nodes between a value and one of its readers."""
    holder, node = pick(random, [(h, n) for h, n in live_nodes(model) if any(n.input)])
    port = pick(random, ports(node))
    at, added = position(holder.graph, node), make(node.input[port])
    node.input[port] = added[-1].output[0]
    for each in reversed(added):
        holder.graph.node.insert(at, each)
    return f"{node.op_type} {port} {added[0].op_type}"


_UNARY = (
    "Abs Neg Relu Exp Floor Ceil Sqrt Sigmoid Tanh Identity Round Sign Reciprocal Erf Softmax Not".split()
)


def unary(model, random):
    """A value goes through an operator on its way to a reader."""
    name = pick(random, _UNARY)
    return _between(model, random, lambda read: [helper.make_node(name, [read], ["mutant"])])


def through_types(model, random):
    """A value goes through float8, bool or integers of a double on its way to a reader."""
    ways = [
        (TensorProto.FLOAT8E5M2, TensorProto.FLOAT),
        (TensorProto.BOOL, TensorProto.FLOAT16),
        (TensorProto.DOUBLE, TensorProto.INT64, TensorProto.FLOAT),
        (TensorProto.DOUBLE,),
    ]
    types = pick(random, ways)

    def make(read):
        names = [read, *(f"mutant{i}" for i in range(len(types)))]
        pairs = zip(names, names[1:], types, strict=False)
        return [helper.make_node("Cast", [before], [after], to=to) for before, after, to in pairs]

    return _between(model, random, make)


def shuffled(model, random):
    """The numbers of an attribute are in another order."""
    nodes = [n for _, n in live_nodes(model)]
    found = [
        (n, a) for n in nodes for a in n.attribute if a.type == AttributeProto.INTS and len(set(a.ints)) > 1
    ]
    node, given = pick(random, found)
    given.ints[:] = [int(number) for number in random.permutation(given.ints)]
    return f"{node.op_type}.{given.name}"


_FAMILIES = [
    "Abs Neg Exp Log Sqrt Relu Sigmoid Tanh Erf Floor Ceil Round Sin Cos Reciprocal Softplus Identity Sign",
    "Add Sub Mul Div Pow Min Max Mod PRelu",
    "Less Greater LessOrEqual GreaterOrEqual Equal And Or Xor",
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp",
    "Reshape Expand Tile Squeeze Unsqueeze Gather GatherElements GatherND Slice Pad",
    "Softmax LogSoftmax Hardmax",
    "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool",
    "LSTM GRU RNN",
]
_FAMILY = {name: family.split() for family in _FAMILIES for name in family.split()}


def relative(model, random):
    """A node is of another operator of its family."""
    node = pick(random, [n for _, n in live_nodes(model) if n.op_type in _FAMILY and not n.domain])
    before = node.op_type
    node.op_type = pick(random, [name for name in _FAMILY[before] if name != before])
    return f"{before} {node.op_type}"


def variadic(model, random):
    """The inputs of a node that takes several are in another order."""
    origin = origins(model)
    names = "Concat Where Gemm Conv Max Min Sum SequenceConstruct".split()
    node = pick(random, [n for _, n in live_nodes(model) if n.op_type in names and len(set(n.input)) > 1])
    turned = [str(name) for name in random.permutation(node.input)]
    if [origin(name) for name in turned] == [origin(name) for name in node.input]:
        return None
    node.input[:] = turned
    return node.op_type


def _held(model):
    return [(n, body) for _, n in live_nodes(model) for body in bodies(n)]


def negated(model, random):
    """An If takes its branches the other way round."""
    found = [(h, n) for h, n in live_nodes(model) if n.op_type == "If"]
    holder, node = pick(random, found)
    at = position(holder.graph, node)
    holder.graph.node.insert(at, helper.make_node("Not", [node.input[0]], ["mutant"]))
    node.input[0] = "mutant"
    return node.name


def body_result(model, random):
    """A body gives another of its values."""
    _, body = pick(random, [(n, b) for n, b in _held(model) if len(b.output)])
    info = pick(random, body.output)
    made = [name for node in body.node for name in node.output] + [given.name for given in body.input]
    origin = origins(model)
    info.name = pick(random, [name for name in made if name and origin(name) != origin(info.name)])
    return info.name


def body_inputs(model, random):
    """Two inputs of a body are read for each other."""
    node, body = pick(random, [(n, b) for n, b in _held(model) if len(b.input) > 1])
    one, other = (body.input[int(i)].name for i in random.choice(len(body.input), 2, replace=False))
    names = {one: other, other: one}
    used = {name for inner in body.node for name in read(inner)}
    if used.isdisjoint(names):
        return None
    for inner in body.node:
        inner.input[:] = [names.get(name, name) for name in inner.input]
    return f"{node.op_type} {one} {other}"


def emptied(model, random):
    """An input is left out, where others follow."""
    node = pick(random, [n for _, n in live_nodes(model) if sum(map(bool, n.input)) > 1])
    port = pick(random, ports(node))
    node.input[port] = ""
    return f"{node.op_type} {port}"


KINDS = (
    exchanged,
    contents,
    unary,
    through_types,
    shuffled,
    relative,
    variadic,
    negated,
    body_result,
    body_inputs,
    emptied,
)
