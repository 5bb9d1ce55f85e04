"""Damage to valid models, at random and reproducibly: bytes, and what a model says, made wrong one by one.

Every mutation of a model takes the proto and a source of chance, and changes the proto where it can: a model
without attributes has none that could be changed, and stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

import onnx
from google.protobuf.message import Message

ODD_INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 99, 2**31 - 1, 2**31, 2**63 - 1)
ODD_FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e-12, 70000.0, 3.4e38)
ODD_NAMES = ("", "nobody", "x", "y", "a b\n", "\N{SNOWMAN}", "x" * 300, "x__float16")
ODD_TYPES = (*range(-1, 26), 99, 2**31 - 1)
OPERATORS = (
    "Add BatchNormalization Cast CastLike Clip Concat Constant ConstantOfShape Conv Dropout Expand Gather "
    "Gemm Identity If LayerNormalization Loop MatMul Optional QuantizeLinear Range Reshape Resize Scan "
    "SequenceAt SequenceConstruct SequenceMap Shape Softmax Split Where Nonsense"
).split()
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "local", "nowhere")
IR_VERSIONS = (-1, 0, 1, 2, 3, 4, 7, 8, 10, 13, 99, 2**40)
OPSETS = (-1, 0, 1, 5, 6, 7, 9, 11, 12, 13, 17, 18, 21, 22, 25, 99, 2**40)

Mutation = Callable[[onnx.ModelProto, Random], None]


def mutate(data: bytes, chance: Random) -> tuple[str, bytes]:
    """What was done, and the model with one to three things wrong in it, or with damaged bytes."""
    proto = onnx.ModelProto.FromString(data)
    chosen = chance.choices(MUTATIONS, k=chance.choice((1, 1, 1, 2, 3)))
    done = [mutation.__name__ for mutation in chosen]
    if chance.random() < SHARE_OF_BYTES:
        done = []
    else:
        for mutation in chosen:
            mutation(proto, chance)
        data = proto.SerializeToString()
    if not done or chance.random() < SHARE_OF_BYTES / 4:
        damage = chance.choice(DAMAGES)
        data = damage(data, chance)
        done.append(damage.__name__)
    return " ".join(done), data


SHARE_OF_BYTES = 0.25


# Bytes


def flip(data: bytes, chance: Random) -> bytes:
    """A few bytes become others."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        damaged[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(damaged)


def cut(data: bytes, chance: Random) -> bytes:
    """The end is missing."""
    return data[: chance.randrange(len(data))]


def repeat(data: bytes, chance: Random) -> bytes:
    """A piece stands twice."""
    start, end = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:end] + data[start:]


def leave_out(data: bytes, chance: Random) -> bytes:
    """A piece is missing."""
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randint(1, 16) :]


DAMAGES = (flip, flip, flip, cut, repeat, leave_out)


# What there is in a model


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the graphs below it."""
    yield graph
    for attribute in attributes(graph.node):
        for below in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
            yield from graphs(below)


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def attributes(nodes) -> Iterator[onnx.AttributeProto]:
    """The attributes of some nodes."""
    return itertools.chain.from_iterable(node.attribute for node in nodes)


def a_graph(proto: onnx.ModelProto, chance: Random) -> onnx.GraphProto:
    """Any graph of a model."""
    return chance.choice(list(graphs(proto.graph)))


def a_node(proto: onnx.ModelProto, chance: Random) -> onnx.NodeProto:
    """Any node of a model, of its functions included; a fresh one where there is none."""
    found = [node for graph in graphs(proto.graph) for node in graph.node]
    found += [node for function in proto.functions for node in function.node]
    return chance.choice(found) if found else onnx.NodeProto()


def an_attribute(proto: onnx.ModelProto, chance: Random) -> onnx.AttributeProto:
    """Any attribute of a model; a fresh one where there is none."""
    found = list(attributes(node for graph in graphs(proto.graph) for node in graph.node))
    return chance.choice(found) if found else onnx.AttributeProto()


def a_tensor(proto: onnx.ModelProto, chance: Random) -> onnx.TensorProto:
    """Any tensor of a model, stored or in an attribute; a fresh one where there is none."""
    found = [tensor for graph in graphs(proto.graph) for tensor in graph.initializer]
    nodes = [node for graph in graphs(proto.graph) for node in graph.node]
    found += [a.t for a in attributes(nodes) if a.type == onnx.AttributeProto.TENSOR]
    return chance.choice(found) if found else onnx.TensorProto()


def a_declaration(proto: onnx.ModelProto, chance: Random) -> onnx.ValueInfoProto:
    """Any input, output or value_info; a fresh one where there is none."""
    graph = a_graph(proto, chance)
    found = [*graph.input, *graph.output, *graph.value_info]
    return chance.choice(found) if found else onnx.ValueInfoProto()


def a_name(proto: onnx.ModelProto, chance: Random) -> str:
    """The name of a value that there is, or an odd one."""
    known = [name for graph in graphs(proto.graph) for node in graph.node for name in node.output]
    known += [info.name for info in proto.graph.input]
    return chance.choice(known if known and chance.random() < HALF_THE_TIME else ODD_NAMES)


HALF_THE_TIME = 0.5


def at_random(repeated, chance: Random) -> int | None:
    """The index of any element; None where there is none."""
    return chance.randrange(len(repeated)) if len(repeated) else None


def drop_one(repeated, chance: Random) -> None:
    """Takes any element out."""
    index = at_random(repeated, chance)
    if index is not None:
        del repeated[index]


def double_one(repeated, chance: Random) -> None:
    """Puts any element in a second time, at the end."""
    index = at_random(repeated, chance)
    if index is not None:
        repeated.append(repeated[index])


# What is made wrong


def rename_input(proto: onnx.ModelProto, chance: Random) -> None:
    """A node reads another value, perhaps one that comes later, or itself, or nobody makes."""
    node = a_node(proto, chance)
    index = at_random(node.input, chance)
    if index is not None:
        node.input[index] = a_name(proto, chance)


def rename_output(proto: onnx.ModelProto, chance: Random) -> None:
    """A node makes a value of another name, perhaps one that there is."""
    node = a_node(proto, chance)
    index = at_random(node.output, chance)
    if index is not None:
        node.output[index] = a_name(proto, chance)


def read_itself(proto: onnx.ModelProto, chance: Random) -> None:
    """A node reads what it makes."""
    node = a_node(proto, chance)
    index = at_random(node.input, chance)
    if index is not None and node.output:
        node.input[index] = chance.choice(node.output)


def rename_declaration(proto: onnx.ModelProto, chance: Random) -> None:
    """An input, output or value_info is for another value."""
    a_declaration(proto, chance).name = a_name(proto, chance)


def rename_tensor(proto: onnx.ModelProto, chance: Random) -> None:
    """A tensor has another name, perhaps that of another, or none."""
    a_tensor(proto, chance).name = a_name(proto, chance)


def retype_declaration(proto: onnx.ModelProto, chance: Random) -> None:
    """A value has another element type, perhaps one that there is not."""
    a_declaration(proto, chance).type.tensor_type.elem_type = chance.choice(ODD_TYPES)


def untype_declaration(proto: onnx.ModelProto, chance: Random) -> None:
    """A value has no type, or one of another kind."""
    info = a_declaration(proto, chance)
    info.ClearField("type")
    if chance.random() < HALF_THE_TIME:
        kind = chance.choice((info.type.sequence_type, info.type.optional_type))
        kind.elem_type.tensor_type.elem_type = chance.choice(ODD_TYPES)


def retype_tensor(proto: onnx.ModelProto, chance: Random) -> None:
    """A tensor has another element type, perhaps one that there is not."""
    a_tensor(proto, chance).data_type = chance.choice(ODD_TYPES)


def reshape_tensor(proto: onnx.ModelProto, chance: Random) -> None:
    """A tensor has a dimension more, less or other."""
    dims = a_tensor(proto, chance).dims
    index = at_random(dims, chance)
    if index is None or chance.random() < HALF_THE_TIME / 2:
        dims.append(chance.choice(ODD_INTEGERS))
    else:
        dims[index] = chance.choice(ODD_INTEGERS)


def reshape_declaration(proto: onnx.ModelProto, chance: Random) -> None:
    """A value has a dimension more, less or other."""
    dims = a_declaration(proto, chance).type.tensor_type.shape.dim
    index = at_random(dims, chance)
    if index is None or chance.random() < HALF_THE_TIME / 2:
        dims.add().dim_param = chance.choice(ODD_NAMES)
    else:
        dims[index].dim_value = chance.choice(ODD_INTEGERS)


def empty_tensor(proto: onnx.ModelProto, chance: Random) -> None:
    """A tensor has no numbers, or numbers of another kind, or too many."""
    tensor = a_tensor(proto, chance)
    if chance.random() < HALF_THE_TIME:
        tensor.ClearField("raw_data")
    if chance.random() < HALF_THE_TIME:
        tensor.float_data.extend(chance.choices(ODD_FLOATS, k=3))
    if chance.random() < HALF_THE_TIME:
        tensor.int64_data.append(chance.choice(ODD_INTEGERS))


def fill_tensor(proto: onnx.ModelProto, chance: Random) -> None:
    """The numbers of a tensor are odd ones."""
    tensor = a_tensor(proto, chance)
    if tensor.HasField("raw_data"):
        tensor.raw_data = bytes(chance.choices((0, 1, 0x7F, 0x80, 0xFF), k=len(tensor.raw_data)))


def move_tensor(proto: onnx.ModelProto, chance: Random) -> None:
    """A tensor lies in a file that is not there, or outside."""
    tensor = a_tensor(proto, chance)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key in chance.sample(("location", "offset", "length", "nonsense"), k=chance.randint(0, 4)):
        tensor.external_data.add(key=key, value=chance.choice(("w.data", "../w", "/etc/passwd", "-1", "")))


def drop_input(proto: onnx.ModelProto, chance: Random) -> None:
    """A node reads one value less."""
    drop_one(a_node(proto, chance).input, chance)


def drop_output(proto: onnx.ModelProto, chance: Random) -> None:
    """A node makes one value less."""
    drop_one(a_node(proto, chance).output, chance)


def add_input(proto: onnx.ModelProto, chance: Random) -> None:
    """A node reads one value more."""
    a_node(proto, chance).input.append(a_name(proto, chance))


def add_output(proto: onnx.ModelProto, chance: Random) -> None:
    """A node makes one value more."""
    a_node(proto, chance).output.append(a_name(proto, chance))


def change_attribute(proto: onnx.ModelProto, chance: Random) -> None:
    """A number in an attribute is another one."""
    attribute = an_attribute(proto, chance)
    attribute.i = chance.choice((*ODD_INTEGERS, *range(20)))
    attribute.f = chance.choice(ODD_FLOATS)
    index = at_random(attribute.ints, chance)
    if index is not None:
        attribute.ints[index] = chance.choice(ODD_INTEGERS)


def retype_attribute(proto: onnx.ModelProto, chance: Random) -> None:
    """An attribute says that it is of another type, perhaps of none."""
    an_attribute(proto, chance).type = chance.choice(onnx.AttributeProto.AttributeType.values())


def rename_attribute(proto: onnx.ModelProto, chance: Random) -> None:
    """An attribute has another name, or refers to one of a function."""
    attribute = an_attribute(proto, chance)
    if chance.random() < HALF_THE_TIME:
        attribute.name = chance.choice(("to", "value", "axis", "body", "dtype", *ODD_NAMES))
    else:
        attribute.ref_attr_name = chance.choice(("alpha", *ODD_NAMES))


def drop_attribute(proto: onnx.ModelProto, chance: Random) -> None:
    """A node lacks an attribute."""
    drop_one(a_node(proto, chance).attribute, chance)


def double_attribute(proto: onnx.ModelProto, chance: Random) -> None:
    """A node has an attribute twice."""
    double_one(a_node(proto, chance).attribute, chance)


def change_operator(proto: onnx.ModelProto, chance: Random) -> None:
    """A node is another operator."""
    a_node(proto, chance).op_type = chance.choice(OPERATORS)


def change_domain(proto: onnx.ModelProto, chance: Random) -> None:
    """A node is of another domain, perhaps one that is not imported."""
    a_node(proto, chance).domain = chance.choice(DOMAINS)


def name_nodes_alike(proto: onnx.ModelProto, chance: Random) -> None:
    """Two nodes have one name."""
    a_node(proto, chance).name = a_node(proto, chance).name = chance.choice(ODD_NAMES)


def swap_nodes(proto: onnx.ModelProto, chance: Random) -> None:
    """Two nodes change places."""
    nodes = a_graph(proto, chance).node
    if len(nodes) > 1:
        (i, first), (j, second) = (
            (i, onnx.NodeProto.FromString(nodes[i].SerializeToString()))
            for i in chance.sample(range(len(nodes)), 2)
        )
        nodes[i].CopyFrom(second)
        nodes[j].CopyFrom(first)


def drop_element(proto: onnx.ModelProto, chance: Random) -> None:
    """A graph lacks a node, input, output, initializer or value_info."""
    drop_one(_elements(proto, chance), chance)


def double_element(proto: onnx.ModelProto, chance: Random) -> None:
    """A graph has a node, input, output, initializer or value_info twice."""
    double_one(_elements(proto, chance), chance)


def _elements(proto: onnx.ModelProto, chance: Random):
    graph = a_graph(proto, chance)
    return chance.choice((graph.node, graph.input, graph.output, graph.initializer, graph.value_info))


def list_weight(proto: onnx.ModelProto, chance: Random) -> None:
    """A stored tensor is an input, an output or a value_info too, perhaps of another type."""
    graph = a_graph(proto, chance)
    index = at_random(graph.initializer, chance)
    if index is not None:
        tensor = graph.initializer[index]
        kind = chance.choice((tensor.data_type, *ODD_TYPES)) if tensor.data_type in range(1, 26) else 1
        info = onnx.ValueInfoProto(name=tensor.name)
        info.type.tensor_type.elem_type = kind
        chance.choice((graph.input, graph.output, graph.value_info)).append(info)


def empty_graph(proto: onnx.ModelProto, chance: Random) -> None:
    """A graph has no nodes, no inputs or no outputs."""
    del _elements(proto, chance)[:]


def change_imports(proto: onnx.ModelProto, chance: Random) -> None:
    """An opset is another one, of another domain, or not imported."""
    index = at_random(proto.opset_import, chance)
    if index is None or chance.random() < HALF_THE_TIME / 2:
        drop_one(proto.opset_import, chance)
        return
    if chance.random() < HALF_THE_TIME:
        proto.opset_import[index].domain = chance.choice(DOMAINS)
    proto.opset_import[index].version = chance.choice(OPSETS)


def double_import(proto: onnx.ModelProto, chance: Random) -> None:
    """A domain is imported twice, in two versions."""
    proto.opset_import.add(domain=chance.choice(DOMAINS), version=chance.choice(OPSETS))


def change_ir_version(proto: onnx.ModelProto, chance: Random) -> None:
    """The model is of another IR version."""
    proto.ir_version = chance.choice(IR_VERSIONS)


def change_function(proto: onnx.ModelProto, chance: Random) -> None:
    """A function is missing, has another name, or calls itself."""
    index = at_random(proto.functions, chance)
    if index is None:
        proto.functions.add(name=chance.choice(OPERATORS), domain=chance.choice(DOMAINS))
        return
    function = proto.functions[index]
    change = chance.randrange(4)
    if change == 0:
        del proto.functions[index]
    elif change == 1:
        function.name = chance.choice(OPERATORS)
    elif change == 2:
        function.node.add(op_type=function.name, domain=function.domain, output=list(function.output))
    else:
        drop_one(chance.choice((function.input, function.output, function.opset_import)), chance)


def add_leftovers(proto: onnx.ModelProto, chance: Random) -> None:
    """The model has a sparse initializer, an annotation or training information that makes no sense."""
    graph = a_graph(proto, chance)
    graph.sparse_initializer.add().values.name = a_name(proto, chance)
    graph.quantization_annotation.add(tensor_name=a_name(proto, chance))
    proto.training_info.add().algorithm.node.add(op_type=chance.choice(OPERATORS))


def clear_field(proto: onnx.ModelProto, chance: Random) -> None:
    """Any field of any message of the model is not there."""
    message: Message = proto
    while True:
        fields = message.ListFields()
        if not fields:
            return
        field, value = chance.choice(fields)
        below = [value] if isinstance(value, Message) else []
        if not below and field.message_type is not None:
            below = list(value)
        if not below or chance.random() < HALF_THE_TIME / 4:
            message.ClearField(field.name)
            return
        message = chance.choice(below)


MUTATIONS: tuple[Mutation, ...] = (
    rename_input,
    rename_output,
    read_itself,
    rename_declaration,
    rename_tensor,
    retype_declaration,
    untype_declaration,
    retype_tensor,
    reshape_tensor,
    reshape_declaration,
    empty_tensor,
    fill_tensor,
    move_tensor,
    drop_input,
    drop_output,
    add_input,
    add_output,
    change_attribute,
    retype_attribute,
    rename_attribute,
    drop_attribute,
    double_attribute,
    change_operator,
    change_domain,
    name_nodes_alike,
    swap_nodes,
    drop_element,
    double_element,
    list_weight,
    empty_graph,
    change_imports,
    double_import,
    change_ir_version,
    change_function,
    add_leftovers,
    clear_field,
)
