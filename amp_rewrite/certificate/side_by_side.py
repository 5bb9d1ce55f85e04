"""A result that is the original with Casts and rounded values, proved node by node without being numbered.

Most nodes of a result are, to the byte, those of the original, and read what has the same names. What else
a result may be is left to `proving`, which also says what is wrong with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from amp_rewrite.certificate import numbering, stored_values, value_kinds
from amp_rewrite.certificate.certificate import Certificate, DifferentError
from amp_rewrite.certificate.folding import SmallValues
from amp_rewrite.certificate.loss_scale import declared_scale
from amp_rewrite.certificate.node_comparison import BIT_CAST, FILL, HOLDING, state_the_same
from amp_rewrite.certificate.numbered import (
    CONSTANT,
    MISSING,
    WITH_BODIES,
    Numbered,
    Scope,
    add_inputs,
    add_stored,
    constant_value,
)
from amp_rewrite.certificate.numbering import Row, called_key
from amp_rewrite.certificate.proof import Pair, Proof
from amp_rewrite.certificate.proving import equal_inputs, interface_problem
from amp_rewrite.certificate.shapes import Declared, refuse_other_shapes
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import CAST, FLOAT, find_schema
from amp_rewrite.errors import ModelError


def proved(original: Numbered, model: ModelProto, folder: Folder | None) -> Certificate | None:
    """The certificate of a result; None where this does not tell."""
    after = Numbered(model, folder)
    try:
        return _SideBySide(original, after).run() if _has_one_frame(original, after) else None
    except (DifferentError, ModelError):
        return None


def _has_one_frame(before: Numbered, after: Numbered) -> bool:
    """Whether both have the same inputs, outputs, and opsets, and neither has functions."""
    add_inputs(after)
    after.outputs = [(info.name, MISSING) for info in after.proto.graph.output]
    opsets = [numbering.imports(model.proto.opset_import) for model in (before, after)]
    return (
        not (before.proto.functions or after.proto.functions)
        and opsets[0] == opsets[1]
        and declared_scale(before, after) is None
        and not interface_problem(before, after)
    )


class _SideBySide:
    def __init__(self, before: Numbered, after: Numbered) -> None:
        self._proof = Proof(before, after)
        self._small = SmallValues(self._proof)
        opsets = numbering.imports(before.proto.opset_import)
        operators = {row[1] for row in before.rows}
        self._plain = {each for each in operators if says_all(each, opsets.get(each[0], 1))}
        self._equal = {"": MISSING}  # the values of the result by name, with those of the original
        self._rows: Sequence[Row] = (*before.rows, _END)
        self._places: dict[str, int] = {}  # of the nodes, by the first name that each gives

    def run(self) -> Certificate | None:
        """The certificate, if every node of the result is one of the original or a Cast between floats."""
        before, after, equal = self._proof.original, self._proof.rewritten, self._equal
        equal.update((after.names[right], left) for left, right in equal_inputs(self._proof))
        stored = self._stored()
        nodes = self._nodes(after.proto.graph.node)
        if nodes is None or any(equal.get(name) != left for name, left in before.outputs):
            return None
        for pair in stored:  # last, as weights may be large
            self._compare(*pair)
        self._small.compare()
        refuse_other_shapes(before, after, self._proof.ranks, self._declared())
        return Certificate(True, nodes, self._proof.used())

    def _declared(self) -> Iterator[Declared]:
        graph, roots = self._proof.rewritten.proto.graph, self._proof.original.roots
        for info in graph.value_info:
            left = self._equal.get(info.name, _OTHER)
            if left > MISSING:
                yield info, roots[left], MISSING

    def _stored(self) -> Sequence[Pair]:
        """What both store under one name, which is taken for equal: it is left to compare."""
        before, after = self._proof.original, self._proof.rewritten
        add_stored(after, after.initial, after.visible)
        pairs: list[Pair] = []
        for right in after.stored:
            left = before.visible.get(after.names[right], _OTHER)
            if left in before.stored:
                pairs.append((left, right))
            self._equal[after.names[right]] = left if left in before.stored else _OTHER
        return pairs

    def _compare(self, left: int, right: int) -> None:
        if not self._small.add(left, right, ""):
            self._proof.count(stored_values.compare(*self._proof.held(left, right)), (left, right))

    def _nodes(self, protos: Iterable[Any]) -> int | None:
        """How many nodes of the original are nodes of the result in their order; None where one of the result
        is neither that nor a Cast that is added.
        """
        names, roots = self._proof.original.names, self._proof.original.roots
        place = nodes = 0
        for proto in protos:
            row = self._rows[place]
            if self._is_unchanged(row, proto):
                given = names[row[3] : row[3] + row[4]]
            elif self._is_cast(proto):
                continue
            elif (found := self._found(place, proto)) is not None:
                place, row, given = found, self._rows[found], proto.output[:]
            else:
                return None
            if not self._note(row, given):
                return None
            place += 1
            nodes += row[1] != CONSTANT and roots[row[3]] == row[3]
        return nodes

    def _note(self, row: Row, names: Iterable[str]) -> bool:
        """Notes what a node gives; False where it gives a name that there is already."""
        equal = self._equal
        for number, name in enumerate(names, row[3]):
            if name:
                if name in equal:
                    return False
                equal[name] = number
        return True

    def _is_unchanged(self, row: Row, proto: Any) -> bool:
        """Whether a node is one of the original to the byte, but for metadata, and reads equal values."""
        before, _, read, _, _ = row
        names, equal = self._proof.original.names, self._equal
        if not isinstance(read, tuple):
            return False
        for number in read:
            if equal.get(names[number]) != number:
                return False
        return identical(before, proto) and self._is_plain(row)

    def _is_plain(self, row: Row) -> bool:
        return row[1] in self._plain or is_inside(row[1], row[0])

    def _is_cast(self, proto: Any) -> bool:
        """Whether a node casts an equal value, a float, to a float; notes what it gives."""
        if proto.op_type != "Cast" or called_key(proto) != (*CAST, ""):
            return False
        sizes = len(proto.input), len(proto.output), len(proto.attribute)
        if sizes != (1, 1, 1) or value_kinds.stated(proto.attribute[0], CAST) != FLOAT:
            return False
        left, name = self._equal.get(proto.input[0], _OTHER), proto.output[0]
        if left <= MISSING or self._proof.original.kinds[left] != FLOAT or name in self._equal:
            return False
        self._equal[name] = left
        return proto.attribute[0].name == "to"

    def _found(self, place: int, proto: Any) -> int | None:
        """Where the node stands that one of the result is, from a place on: some may be gone."""
        if not self._places:
            names, rows = self._proof.original.names, self._rows
            self._places = {names[row[3]]: at for at, row in enumerate(rows)}
        at = self._places.get(next(iter(proto.output), ""), place)
        return at if at >= place and self._is_same(self._rows[at], proto) else None

    def _is_same(self, row: Row, proto: Any) -> bool:
        """Whether a node does what one of the original does, with equal values."""
        if row[1] == CONSTANT:
            return self._is_constant(row, proto)
        is_alike = are_alike(row[0], proto) and self._is_plain(row) and self._reads(row, proto.input[:])
        return is_alike or self._is_unchanged(row, proto)

    def _reads(self, row: Row, names: list[str]) -> bool:
        """Whether these are names of what a node of the original reads."""
        roots, read = self._proof.original.roots, row[2]
        if not isinstance(read, tuple) or len(names) != len(read):
            return False
        found = [self._equal.get(name, _OTHER) for name in names]
        return _OTHER not in found and [roots[n] for n in found] == [roots[n] for n in read]

    def _is_constant(self, row: Row, proto: Any) -> bool:
        """Compares what two Constants store."""
        if called_key(proto) != (*CONSTANT, "") or len(proto.output) != 1 or row[4] != 1:
            return False
        after = self._proof.rewritten
        right = after.add(proto.output[0])
        after.stored[right] = constant_value(proto, _NOWHERE)
        self._compare(row[3], right)
        return True


_END: Row = (NodeProto(), ("", ""), [], 0, 0)
"""What stands behind the last node of the original, and is no node of any result."""

_OTHER = -1
"""The number of a value of the result that is none of the original."""

_NOWHERE = Scope({}, None, {})


# ---- nodes that are those of the original by what they say themselves


_UNLIKE = WITH_BODIES | {BIT_CAST}
"""Operators that may do something else in another precision, or by what stands around them."""
_STORING = (CONSTANT, FILL)


def says_all(operator: tuple[str, str], version: int) -> bool:
    """Whether a node of this operator is all that its bytes and inputs say, in any precision."""
    is_other = operator[0] or operator in _UNLIKE or operator in _STORING
    return not is_other and find_schema(*operator, version) is not None


def is_inside(operator: tuple[str, str], proto: Any) -> bool:
    """The same of one node whose operator may refer to what is stored elsewhere."""
    return operator not in _UNLIKE and all(map(_is_inside, proto.attribute))


def _is_inside(attribute: AttributeProto) -> bool:
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t.data_location != TensorProto.EXTERNAL
    return attribute.type not in HOLDING


def identical(before: Any, after: Any) -> bool:
    """Whether two nodes are the same to the byte, names included, but for metadata that the second adds."""
    said, text = before.SerializeToString(), after.SerializeToString()
    return text.startswith(said) and _is_metadata(text[len(said) :])


_METADATA, _HEADER, _SHORT = NodeProto.METADATA_PROPS_FIELD_NUMBER << 3 | 2, 2, 128
"""How a short entry of metadata begins in bytes: its tag, and in one byte the length of what follows."""


def _is_metadata(text: bytes) -> bool:
    """Whether a part of a node has nothing but metadata."""
    if not text or (text[0] == _METADATA and text[1] == len(text) - _HEADER < _SHORT):
        return True
    try:
        node = NodeProto.FromString(text)
    except DecodeError:
        return False
    node.ClearField("metadata_props")
    return not node.ByteSize()


def are_alike(before: Any, after: Any) -> bool:
    """Whether two nodes have the same operator and attributes, and leave out the same outputs."""
    return (
        before.op_type == after.op_type
        and called_key(before) == called_key(after)
        and state_the_same(before, after)
        and [not name for name in before.output] == [not name for name in after.output]
    )
