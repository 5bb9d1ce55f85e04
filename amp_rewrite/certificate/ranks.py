"""How many axes a value has, as far as stored values, declarations, a few operators and onnx tell."""

from __future__ import annotations

import functools

from onnx import GraphProto

from amp_rewrite.certificate import attributes, inferred_shapes, lengths
from amp_rewrite.certificate.numbered import Node, Numbered


class Ranks:
    """The ranks of the values of a model; declarations of its main graph are read once they are needed.

    What onnx infers from inputs comes first; what a model declares besides counts only if it is `believed`.
    """

    def __init__(self, model: Numbered, *, believed: bool = True) -> None:
        self._model, self._believed = model, believed
        self._known: dict[int, int | None] = {}

    def of(self, number: int) -> int | None:
        """The rank of a value; None where it is not known."""
        known, waiting = self._known, [number]
        while waiting:
            top = waiting.pop()
            if known.get(top) is not None:
                continue
            used = self._used(top)
            if used and top not in known:
                known[top] = None
                waiting += (top, *(value for value in used if value not in known))
            else:
                known[top] = self._found(top, used)
        return known[number]

    def _used(self, number: int) -> list[int]:
        """The inputs of its node that may tell the rank of a value."""
        node = self._model.makers[number]
        if node is None or number in self._model.stored or node.count != 1 or node.operator[0]:
            return []
        name = node.operator[1]
        if name == "Reshape" and len(node.inputs) > 1:
            return [*lengths.shaped(self._model, node.inputs[1])]
        return node.inputs if name in _BROADCAST else node.inputs[: _INPUTS.get(name, 0)]

    def _found(self, number: int, used: list[int]) -> int | None:
        """The rank of a value by what makes it, by those of what it is made from, and by its declaration."""
        stored, node = self._model.stored.get(number), self._model.makers[number]
        if stored is not None:
            return len(stored.dims)
        found = self._by_operator(node) if node is not None else None
        if found is None and node is not None and used:
            found = _by_inputs(node.operator[1], [self._known.get(value) for value in used])
            found = found if node.operator[1] != "Unsqueeze" else self._with_axes(node, found)
        return self._by_name(number) if found is None else found

    def _by_operator(self, node: Node) -> int | None:
        if node.operator in (("", "Gemm"), ("", "Flatten")):
            return 2
        if node.operator == ("", "Transpose"):
            perm = attributes.of(node).get("perm")
            return None if perm is None else len(perm.attribute.ints) or None
        if node.operator == ("", "Reshape") and len(node.inputs) > 1:
            return lengths.of(self._model, node.inputs[1], self._known.get)
        return None

    def _with_axes(self, node: Node, rank: int | None) -> int | None:
        """The rank of what an Unsqueeze makes of a value of this rank."""
        stated = attributes.of(node).get("axes")
        stored = self._model.stored.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if rank is not None and stated is not None:
            return rank + len(stated.attribute.ints)
        return rank + stored.dims[0] if rank is not None and stored and len(stored.dims) == 1 else None

    def _by_name(self, number: int) -> int | None:
        """The declared rank of a value of the main graph; those inside of functions may have its names."""
        node, name = self._model.makers[number], self._model.names[number]
        if (self._model.inputs.get(name) != number) if node is None else (node.scope.outer is not None):
            return None
        inferred = self._inferred.get(name)
        return self._declared.get(name) if inferred is None and self._believed else inferred

    @functools.cached_property
    def _declared(self) -> dict[str, int]:
        return _said(self._model.proto.graph)

    @functools.cached_property
    def _inferred(self) -> dict[str, int]:
        return _said(inferred_shapes.of(self._model.proto))


def _said(graph: GraphProto) -> dict[str, int]:
    """The ranks that a graph declares, by the names of its values."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    kinds = ((info.name, info.type.tensor_type) for info in infos)
    return {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}


def _by_inputs(name: str, ranks: list[int | None]) -> int | None:
    if None in ranks or name == "Reshape":
        return None
    known = [rank for rank in ranks if rank is not None]
    if name in _BROADCAST:
        return max(known)
    if name == "MatMul":
        return max(known) if min(known) > 1 else None
    return known[0]


_AS_FIRST = """Abs AveragePool BatchNormalization Cast Ceil Clip Conv ConvTranspose Dropout Elu Erf Exp Floor
    GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Hardmax Identity InstanceNormalization LRN LeakyRelu
    Concat Log LogSoftmax MaxPool Neg PRelu Pad Reciprocal Relu Round Selu Sigmoid Sign Slice Softmax Softplus
    Softsign Sqrt Tanh ThresholdedRelu Transpose Unsqueeze""".split()
"""Operators whose only output has as many axes as their first input."""
_BROADCAST = frozenset("Add And Div Equal Greater Less Max Mean Min Mod Mul Or Pow Sub Sum Where Xor".split())
_INPUTS = {**dict.fromkeys(_AS_FIRST, 1), "MatMul": 2}
"""How many of its inputs tell the rank of an operator's output."""
