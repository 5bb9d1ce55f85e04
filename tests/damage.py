"""Damage to valid models, at random and reproducibly: bytes, and any field of any message of a model.

What can be damaged is read from ONNX's own messages, so that a field that ONNX adds is damaged as well. A
mutation takes a model and a source of chance, changes the model, and says what it changed; a model without a
place for it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (-(2**63), -(2**31), *range(-2, 20), 99, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e-12, 70000.0, 3.4e38)
NAMES = ("", "nobody", "x", "y", "a b\n", "\N{SNOWMAN}", "x" * 300, "x__float16")
TYPES = (*range(-1, 26), 99, 2**31 - 1)
KEYS = ("location", "offset", "length", "nonsense")
PATHS = ("w.data", "../w", "/etc/passwd", "-1", "")
OPERATORS = (
    "Add BatchNormalization Cast CastLike Clip Concat Constant ConstantOfShape Conv Dropout Expand Gather "
    "Gemm Identity If LayerNormalization Loop MatMul Optional QuantizeLinear Range Reshape Resize Scan "
    "SequenceAt SequenceConstruct SequenceMap Shape Softmax Split Where Nonsense"
).split()
ODD = {
    "data_type": TYPES,
    "elem_type": TYPES,
    "op_type": OPERATORS,
    "domain": ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "local", "nowhere"),
    "ir_version": (-1, 0, 1, 2, 3, 4, 7, 8, 10, 13, 99, 2**40),
    "OperatorSetIdProto.version": (-1, 0, 1, 5, 6, 7, 9, 11, 12, 13, 17, 18, 21, 22, 25, 99, 2**40),
    "AttributeProto.name": ("to", "value", "axis", "body", "dtype", *NAMES),
    "ref_attr_name": ("alpha", *NAMES),
    "StringStringEntryProto.key": KEYS,
    "StringStringEntryProto.value": PATHS,
}
"""What a field of text or numbers may say, by its name; else by its type."""

BY_TYPE = {
    FieldDescriptor.CPPTYPE_STRING: NAMES,
    FieldDescriptor.CPPTYPE_FLOAT: FLOATS,
    FieldDescriptor.CPPTYPE_DOUBLE: FLOATS,
}


def mutate(data: bytes, chance: Random) -> tuple[str, bytes]:
    """What was done, and the model with one to three things wrong in it, or with damaged bytes."""
    proto = onnx.ModelProto.FromString(data)
    done = []
    if chance.random() >= SHARE_OF_BYTES:
        chosen = chance.choices(MUTATIONS, k=chance.choice((1, 1, 1, 2, 3)))
        done = [f"{mutation.__name__} {mutation(proto, chance)}" for mutation in chosen]
        data = proto.SerializeToString()
    if not done or chance.random() < SHARE_OF_BYTES / 4:
        damage = chance.choice(DAMAGES)
        data = damage(data, chance)
        done.append(damage.__name__)
    return ", ".join(done), data


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


def messages(message: Message) -> Iterator[Message]:
    """A message and all that are in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for below in value if field.is_repeated else (value,):
                yield from messages(below)


def pick(
    proto: Message, chance: Random, fits: Callable[[Message, FieldDescriptor], object]
) -> tuple[Message, FieldDescriptor] | None:
    """A field that fits, and a message that has it: all kinds of fields are equally likely."""
    found: dict[str, list[tuple[Message, FieldDescriptor]]] = {}
    for message in messages(proto):
        for field in message.DESCRIPTOR.fields:
            if fits(message, field):
                found.setdefault(field.full_name, []).append((message, field))
    return chance.choice(found[chance.choice(sorted(found))]) if found else None


def content(message: Message, field: FieldDescriptor):
    """What a field says."""
    return getattr(message, field.name)


def is_set(message: Message, field: FieldDescriptor) -> bool:
    """Whether a field says anything."""
    return bool(content(message, field)) if field.is_repeated else message.HasField(field.name)


def is_list(message: Message, field: FieldDescriptor) -> bool:
    """Whether a field has elements."""
    return field.is_repeated and len(content(message, field)) > 0


def odd(proto: onnx.ModelProto, field: FieldDescriptor, chance: Random, before: object = b""):
    """A value of a field that is not made for it; for a name, half the time one that the model has."""
    if field.enum_type is not None:
        return chance.choice([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes(chance.choices((0, 1, 0x7F, 0x80, 0xFF), k=len(before) or 3))
    named = f"{field.containing_type.name}.{field.name}"
    choices = ODD.get(named, ODD.get(field.name, BY_TYPE.get(field.cpp_type, NUMBERS)))
    names = [name for each in messages(proto) if isinstance(each, onnx.NodeProto) for name in each.output]
    if choices is NAMES and names and chance.randrange(2):
        return chance.choice([*names, *(info.name for info in proto.graph.input)])
    return chance.choice([value for value in choices if choices is not NUMBERS or fits(field, value)])


def fits(field: FieldDescriptor, number: int) -> bool:
    """Whether a field has the bits for a number."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        return -(2**31) <= number < 2**31
    return field.cpp_type != FieldDescriptor.CPPTYPE_UINT64 or number >= 0


def fill(proto: onnx.ModelProto, message: Message, chance: Random) -> None:
    """Says a few odd things in an empty message."""
    for field in chance.choices(list(message.DESCRIPTOR.fields), k=3):
        extend(proto, message, field, chance)


def extend(proto: onnx.ModelProto, message: Message, field: FieldDescriptor, chance: Random) -> None:
    """Sets a field, or adds an element to it."""
    if field.message_type is None:
        value = odd(proto, field, chance)
        if field.is_repeated:
            content(message, field).append(value)
        else:
            setattr(message, field.name, value)
    elif field.is_repeated:
        fill(proto, content(message, field).add(), chance)
    else:
        content(message, field).SetInParent()
        if chance.randrange(2):
            fill(proto, content(message, field), chance)


# What is made wrong


def replace(proto: onnx.ModelProto, chance: Random) -> str:
    """A number, name, type or version is another one."""
    found = pick(proto, chance, lambda message, field: field.message_type is None and is_set(message, field))
    if found is None:
        return ""
    message, field = found
    before = content(message, field)
    if field.is_repeated:
        index = chance.randrange(len(before))
        before[index] = odd(proto, field, chance, before[index])
    else:
        setattr(message, field.name, odd(proto, field, chance, before))
    return field.full_name


def drop(proto: onnx.ModelProto, chance: Random) -> str:
    """A list lacks an element."""
    found = pick(proto, chance, is_list)
    if found is not None:
        elements = content(*found)
        del elements[chance.randrange(len(elements))]
    return found[1].full_name if found else ""


def double(proto: onnx.ModelProto, chance: Random) -> str:
    """A list has an element twice."""
    found = pick(proto, chance, is_list)
    if found is not None:
        elements = content(*found)
        elements.append(chance.choice(elements))
    return found[1].full_name if found else ""


def swap(proto: onnx.ModelProto, chance: Random) -> str:
    """Two elements of a list change places."""
    found = pick(proto, chance, lambda *place: is_list(*place) and len(content(*place)) > 1)
    if found is not None:
        elements, copied = content(*found), [*content(found[0].__deepcopy__({}), found[1])]
        one, other = chance.sample(range(len(copied)), 2)
        copied[one], copied[other] = copied[other], copied[one]
        del elements[:]
        elements.extend(copied)
    return found[1].full_name if found else ""


def clear(proto: onnx.ModelProto, chance: Random) -> str:
    """A field is not there, or a list is empty."""
    found = pick(proto, chance, is_set)
    if found is not None:
        found[0].ClearField(found[1].name)
    return found[1].full_name if found else ""


def add(proto: onnx.ModelProto, chance: Random) -> str:
    """A field that says nothing says something odd, or a list has an odd element more."""
    found = pick(proto, chance, may_have_more)
    if found is not None:
        extend(proto, *found, chance)
    return found[1].full_name if found else ""


def may_have_more(message: Message, field: FieldDescriptor) -> bool:
    """Whether a field can say more. onnxruntime takes device configurations that onnx-ir cannot write."""
    return (field.is_repeated or not is_set(message, field)) and field.name != "device_configurations"


def read_itself(proto: onnx.ModelProto, chance: Random) -> str:
    """A node reads what it makes, or a function calls itself."""
    for function in proto.functions if chance.randrange(2) else ():
        function.node.add(op_type=function.name, domain=function.domain, output=list(function.output))
        return function.name
    node = _any(proto, onnx.NodeProto, chance, lambda node: node.input and node.output)
    if node is not None:
        node.input[chance.randrange(len(node.input))] = chance.choice(node.output)
    return node.op_type if node is not None else ""


def list_weight(proto: onnx.ModelProto, chance: Random) -> str:
    """A stored tensor is an input, an output or a value_info too, perhaps of another type."""
    graph = _any(proto, onnx.GraphProto, chance, lambda graph: graph.initializer)
    if graph is None:
        return ""
    tensor = chance.choice(graph.initializer)
    info = chance.choice((graph.input, graph.output, graph.value_info)).add(name=tensor.name)
    info.type.tensor_type.elem_type = chance.choice((tensor.data_type, *TYPES))
    return tensor.name


def move_tensor(proto: onnx.ModelProto, chance: Random) -> str:
    """A tensor lies in a file that is not there, or outside."""
    tensor = _any(proto, onnx.TensorProto, chance)
    if tensor is None:
        return ""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key in chance.sample(KEYS, k=chance.randint(0, 4)):
        tensor.external_data.add(key=key, value=chance.choice(PATHS))
    return tensor.name


def _any(proto: onnx.ModelProto, kind: type, chance: Random, holds=lambda _: True):
    """Any message of a kind of which something holds; None where there is none."""
    found = [each for each in messages(proto) if isinstance(each, kind) and holds(each)]
    return chance.choice(found) if found else None


MUTATIONS = (*(replace, drop, add) * 3, *(double, swap, clear) * 2, read_itself, list_weight, move_tensor)
