"""How many axes a value has, as far as stored values, declarations and a few operators tell."""

from __future__ import annotations

from onnx import TensorProto

from amp_rewrite.certificate import attributes
from amp_rewrite.certificate.numbered import Node, Numbered


class Ranks:
    """The ranks of the values of a model; declarations of its main graph are read once they are needed."""

    def __init__(self, model: Numbered) -> None:
        self._model = model
        self._declared: dict[str, int] | None = None

    def of(self, number: int) -> int | None:
        """The rank of a value; None where it is not known."""
        while (found := self._alone(number)) is None:
            node = self._model.makers[number]
            if node is None or node.operator[0] or node.operator[1] not in _AS_FIRST or node.count != 1:
                return None
            number = node.inputs[0]
        return found

    def _alone(self, number: int) -> int | None:
        """The rank of a value by what makes it and by its declaration."""
        stored = self._model.stored.get(number)
        if stored is not None:
            return len(stored.dims)
        node = self._model.makers[number]
        found = self._by_operator(node) if node is not None else None
        return self._by_name(self._model.names[number]) if found is None else found

    def _by_operator(self, node: Node) -> int | None:
        if node.operator in (("", "Gemm"), ("", "Flatten")):
            return 2
        if node.operator == ("", "Transpose"):
            perm = attributes.of(node).get("perm")
            return None if perm is None else len(perm.attribute.ints) or None
        if node.operator == ("", "Reshape") and len(node.inputs) > 1:
            sizes = self._model.stored.get(node.inputs[1])
            if isinstance(sizes, TensorProto) and len(sizes.dims) == 1:
                return sizes.dims[0]
        return None

    def _by_name(self, name: str) -> int | None:
        if self._declared is None:
            graph = self._model.proto.graph
            infos = (*graph.value_info, *graph.input, *graph.output)
            kinds = ((info.name, info.type.tensor_type) for info in infos)
            self._declared = {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}
        return self._declared.get(name)


_AS_FIRST = frozenset(
    """Abs AveragePool BatchNormalization Cast Ceil Clip Conv ConvTranspose Dropout Elu Erf Exp Floor
    GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Hardmax Identity InstanceNormalization LRN LeakyRelu
    Log LogSoftmax MaxPool Neg Pad Reciprocal Relu Round Selu Sigmoid Sign Softmax Softplus Softsign Sqrt Tanh
    ThresholdedRelu""".split()
)
"""Operators whose only output has as many axes as their first input."""
