"""A result that is the original with Casts and rounded values, proved node by node without being numbered.

Most nodes of a result are, to the byte, those of the original, and read what has the same names. What else
a result may be is left to `proving`, which also says what is wrong with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx import ModelProto, NodeProto

from amp_rewrite.certificate import (
    calls,
    constants,
    declared_scale,
    declared_shapes,
    given_values,
    interfaces,
    numbering,
    same_nodes,
    stored_values,
    value_kinds,
)
from amp_rewrite.certificate.cast_likes import CAST
from amp_rewrite.certificate.certificate import Certificate, DifferentError
from amp_rewrite.certificate.numbered import MISSING, Numbered, Scope
from amp_rewrite.certificate.order import Row
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.small_values import SmallValues
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import FLOAT
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
    given_values.add_inputs(after)
    after.outputs = [(info.name, MISSING) for info in after.proto.graph.output]
    opsets = [numbering.imports(model.proto.opset_import) for model in (before, after)]
    return (
        not (before.proto.functions or after.proto.functions)
        and opsets[0] == opsets[1]
        and declared_scale.of(before, after) is None
        and not interfaces.problem(before, after)
    )


class _SideBySide:
    def __init__(self, before: Numbered, after: Numbered) -> None:
        self._proof = Proof(before, after)
        self._small = SmallValues(self._proof)
        opsets = numbering.imports(before.proto.opset_import)
        operators = {row[1] for row in before.rows}
        self._plain = {each for each in operators if same_nodes.says_all(each, opsets.get(each[0], 1))}
        self._equal = {"": MISSING}  # the values of the result by name, with those of the original
        self._rows: Sequence[Row] = (*before.rows, _END)
        self._places: dict[str, int] = {}  # of the nodes, by the first name that each gives

    def run(self) -> Certificate | None:
        """The certificate, if every node of the result is one of the original or a Cast between floats."""
        before, after, equal = self._proof.original, self._proof.rewritten, self._equal
        equal.update((after.names[right], left) for left, right in interfaces.inputs(self._proof))
        stored = self._stored()
        nodes = self._nodes(after.proto.graph.node)
        if nodes is None or any(equal.get(name) != left for name, left in before.outputs):
            return None
        for pair in stored:  # last, as weights may be large
            self._compare(*pair)
        self._small.compare()
        declared_shapes.refuse_other(before, after, self._proof.ranks, self._declared())
        return Certificate(True, nodes, self._proof.used())

    def _declared(self) -> Iterator[declared_shapes.Declared]:
        graph, roots = self._proof.rewritten.proto.graph, self._proof.original.roots
        for info in graph.value_info:
            left = self._equal.get(info.name, _OTHER)
            if left > MISSING:
                yield info, roots[left], MISSING

    def _stored(self) -> Sequence[Pair]:
        """What both store under one name, which is taken for equal: it is left to compare."""
        before, after = self._proof.original, self._proof.rewritten
        given_values.add_stored(after, after.initial, after.visible)
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
            nodes += row[1] != constants.OPERATOR and roots[row[3]] == row[3]
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
        return same_nodes.identical(before, proto) and self._is_plain(row)

    def _is_plain(self, row: Row) -> bool:
        return row[1] in self._plain or same_nodes.is_inside(row[1], row[0])

    def _is_cast(self, proto: Any) -> bool:
        """Whether a node casts an equal value, a float, to a float; notes what it gives."""
        if proto.op_type != "Cast" or calls.key(proto) != (*CAST, ""):
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
        if row[1] == constants.OPERATOR:
            return self._is_constant(row, proto)
        is_alike = (
            same_nodes.alike(row[0], proto) and self._is_plain(row) and self._reads(row, proto.input[:])
        )
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
        if calls.key(proto) != (*constants.OPERATOR, "") or len(proto.output) != 1 or row[4] != 1:
            return False
        after = self._proof.rewritten
        right = after.add(proto.output[0])
        after.stored[right] = constants.stored(proto, _NOWHERE)
        self._compare(row[3], right)
        return True


_END: Row = (NodeProto(), ("", ""), [], 0, 0)
"""What stands behind the last node of the original, and is no node of any result."""

_OTHER = -1
"""The number of a value of the result that is none of the original."""

_NOWHERE = Scope({}, None, {})
