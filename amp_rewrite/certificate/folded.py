"""Licence: a value that depends on stored values alone, stored; it is computed anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from amp_rewrite.certificate import attributes, recomputing, signatures, stored_values, tensors, value_kinds
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.numbered import MISSING, Node
from amp_rewrite.certificate.pairs import Proof
from amp_rewrite.certificate.stored_values import Held

MOST = 1 << 28
"""The bytes of stored values that are computed with at most."""

_VARYING = frozenset(
    """
    Bernoulli BitCast Dropout If Loop Multinomial RandomNormal RandomNormalLike RandomUniform
    RandomUniformLike Scan
    """.split()
)
"""What is not computed before a run, and what reads the bits of a float, which may be a half's."""

_DIVISIONS = frozenset(("Div", "Mod"))
_FRACTIONS = frozenset((value_kinds.FLOAT, int(TensorProto.DOUBLE)))


_Folding = tuple[int, int, str]
"""A value of the original, the stored one of the result, and the output that they are read for."""


class Folded:
    """The folded values of a proof; they are computed together at its end."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._pairs: list[_Folding] = []
        self._nodes: dict[int, Node] = {}
        self._leaves: set[int] = set()
        self._bytes = 0

    def add(self, left: int, right: int, output: str) -> None:
        """Notes a computed value that the result stores; DifferentError where it needs more than that."""
        self._proof.same_kind(left, right)
        waiting = [left]
        while waiting:
            number = waiting.pop()
            node = self._proof.original.makers[number]
            if number == MISSING or number in self._leaves:
                continue
            if node is None:
                self._leaf(number)
            elif node.first not in self._nodes:
                self._nodes[node.first] = self._allowed(node)
                waiting.extend(node.inputs)
        self._pairs.append((left, right, output))

    def _leaf(self, number: int) -> None:
        tensor = self._proof.original.stored.get(number)
        if not isinstance(tensor, TensorProto) or tensor.data_type == TensorProto.STRING:
            raise DifferentError("the result stores what the original computes from its inputs")
        self._bytes += 4 * prod(tensors.dims(tensor))
        if self._bytes > MOST:
            raise DifferentError("the result stores what the original computes from very large values")
        self._leaves.add(number)

    def _allowed(self, node: Node) -> Node:
        is_known = signatures.find(*node.operator, node.version) is not None
        if node.operator[0] or node.operator[1] in _VARYING or node.bodies or not is_known:
            raise DifferentError(
                "the result stores what the original computes with more than plain operators"
            )
        if node.operator[1] in _DIVISIONS and self._may_trap(node):
            raise DifferentError("the result stores quotients of integers that are not known to be any")
        return node

    def _may_trap(self, division: Node) -> bool:
        """Whether a processor may end the program: it divides integers by 0, or the least of them by -1."""
        original = self._proof.original
        if original.kinds[division.first] in _FRACTIONS:
            return False
        divisor = original.stored.get(division.inputs[1])
        if not isinstance(divisor, TensorProto) or 4 * prod(tensors.dims(divisor)) > MOST:
            return True
        return bool(np.isin(tensors.whole(divisor, original.folder), (0, -1)).any())

    def prove(self) -> None:
        """Computes all that was added, and compares it; raises DifferentError.

        Either with the Casts of the original, which round what is computed as it does itself, or without them.
        """
        failed = self._differing(self._pairs, casts=True) if self._pairs else {}
        for error in self._differing(failed, casts=False).values() if failed else ():
            raise error

    def _differing(self, pairs: Collection[_Folding], *, casts: bool) -> Mapping[_Folding, DifferentError]:
        """The pairs that are not what computing makes of the original; the others are counted."""
        wanted, failed = [*dict.fromkeys(left for left, _, _ in pairs)], dict[_Folding, DifferentError]()
        try:
            arrays = dict(zip(wanted, recomputing.outputs(self._model(wanted, casts)), strict=True))
        except DifferentError as error:
            return dict.fromkeys(pairs, error)
        for left, right, output in pairs:
            held = Held(self._proof.rewritten.stored[right], self._proof.rewritten.folder)
            found = stored_values.compare(Held(numpy_helper.from_array(arrays[left]), None), held)
            if found.problem:
                place = (left, right, output)
                failed[place] = DifferentError(f"computed anew, {found.problem}", place)
                continue
            self._proof.count(found, (left, right))
            self._proof.uses[Licence.FOLDED] += 1
        return failed

    def _model(self, wanted: Sequence[int], casts: bool) -> ModelProto:
        """What computes values of the original; without its Casts between floats, all of them are float32."""
        original, graph = self._proof.original, GraphProto(name="folded")
        reached, versions, waiting = set[int](), set[int](), [(number, False) for number in wanted]
        while waiting:
            number, has_inputs = waiting.pop()
            node = original.makers[number]
            first = number if node is None else node.first
            if has_inputs and node is not None:
                graph.node.append(_renamed(node, original.read(node) if casts else node.inputs))
                versions.add(node.version)
            elif first not in reached and number != MISSING:
                reached.add(first)
                if node is None:
                    graph.initializer.append(self._stored(number, casts))
                else:
                    read = original.read(node) if casts else node.inputs
                    waiting += ((first, True), *((each, False) for each in read))
        graph.output.extend(helper.make_empty_tensor_value_info(f"v{number}") for number in wanted)
        if len(versions) > 1:
            raise DifferentError("the result stores what operators of several versions compute")
        opset = helper.make_opsetid("", versions.pop())
        return helper.make_model(graph, opset_imports=[opset], ir_version=max(original.proto.ir_version, _IR))

    def _stored(self, number: int, casts: bool) -> TensorProto:
        """A stored value; of half it has the values in float32, where the Casts between are left out."""
        original = self._proof.original
        array = tensors.whole(original.stored[number], original.folder)
        is_half = original.kinds[number] == value_kinds.FLOAT and not casts
        return numpy_helper.from_array(array.astype("f4") if is_half else array, f"v{number}")


_IR = 8
"""The IR version of what is computed, where the original has an older one."""


def _renamed(node: Node, read: Sequence[int]) -> NodeProto:
    stated = attributes.plain(attributes.of(node))
    made = NodeProto(op_type=node.operator[1])
    made.input.extend(f"v{number}" if number != MISSING else "" for number in read)
    made.output.extend(f"v{node.first + port}" for port in range(node.count))
    for name, attribute in stated.items():
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.ClearField("ref_attr_name")
        copy.MergeFrom(AttributeProto(name=name))
        made.attribute.append(copy)
    return made
