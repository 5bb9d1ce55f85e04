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
        stored = self._model.stored.get(number)
        if stored is not None:
            return len(stored.dims)
        node = self._model.makers[number]
        found = self._by_operator(node) if node is not None else None
        return self._by_name(self._model.names[number]) if found is None else found

    def _by_operator(self, node: Node) -> int | None:
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
