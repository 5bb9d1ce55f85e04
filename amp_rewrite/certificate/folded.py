"""Licence: a value that depends on stored values alone, stored; it is computed anew."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from amp_rewrite.certificate import attributes, recomputing, signatures, stored_values, tensors, value_kinds
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import MISSING, Node
from amp_rewrite.certificate.pairs import DifferentError, Proof
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


class Folded:
    """The folded values of a proof; they are computed together at its end."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._pairs: list[tuple[int, int, str]] = []
        self._nodes: dict[int, Node] = {}
        self._leaves: dict[int, TensorProto] = {}
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
        self._leaves[number] = tensor

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
        """Computes all that was added, and compares it; raises DifferentError."""
        if not self._pairs:
            return
        wanted = [*dict.fromkeys(left for left, _, _ in self._pairs)]
        arrays = dict(zip(wanted, recomputing.outputs(self._model(wanted)), strict=True))
        for left, right, output in self._pairs:
            held = Held(self._proof.rewritten.stored[right], self._proof.rewritten.folder)
            found = stored_values.compare(Held(numpy_helper.from_array(arrays[left]), None), held)
            if found.problem:
                raise DifferentError(f"computed anew, {found.problem}", (left, right, output))
            self._proof.count(found, (left, right))
            self._proof.uses[Licence.FOLDED] += 1

    def _model(self, wanted: Sequence[int]) -> ModelProto:
        graph = GraphProto(name="folded")
        for number, tensor in self._leaves.items():
            graph.initializer.append(self._float32(number, tensor))
        for _, node in sorted(self._nodes.items()):
            graph.node.append(_renamed(node))
        graph.output.extend(
            helper.make_empty_tensor_value_info(f"v{number}") for number in dict.fromkeys(wanted)
        )
        versions = {node.version for node in self._nodes.values()}
        if len(versions) > 1:
            raise DifferentError("the result stores what operators of several versions compute")
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", versions.pop())], ir_version=8)

    def _float32(self, number: int, tensor: TensorProto) -> TensorProto:
        """A stored value; of half it has the values in float32, as the Casts between are left out."""
        array = tensors.whole(tensor, self._proof.original.folder)
        if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            array = array.astype("f4")
        return numpy_helper.from_array(array, f"v{number}")


def _renamed(node: Node) -> NodeProto:
    stated = attributes.plain(attributes.of(node))
    made = NodeProto(op_type=node.operator[1])
    made.input.extend(f"v{number}" if number != MISSING else "" for number in node.inputs)
    made.output.extend(f"v{node.first + port}" for port in range(node.count))
    for name, attribute in stated.items():
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.ClearField("ref_attr_name")
        copy.MergeFrom(AttributeProto(name=name))
        made.attribute.append(copy)
    return made
