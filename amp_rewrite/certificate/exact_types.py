"""Element types of values, with float32 and half types told apart: what BitCast and custom operators read."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of, leaving_bodies
from amp_rewrite.certificate.value_kinds import FLOAT, find_signature, find_typed, rules, stated_element


class ExactTypes:
    """The element types of the values of a model, computed on demand."""

    def __init__(self, model: Numbered) -> None:
        self._model = model
        infos = (info for info in model.proto.graph.input if info.name in model.inputs)
        self._inputs = {model.inputs[info.name]: info.type for info in infos} | model.typed
        self._elements = {MISSING: int(TensorProto.UNDEFINED)}

    def of(self, number: int) -> int:
        """Return the element type of a value, or of what a sequence holds, without looking through Casts.

        It is negated where the model's declarations alone tell it, and 0 where nothing does.
        """
        elements, waiting = self._elements, [number]
        while waiting:
            element, sources = self._origin(waiting[-1])
            unknown = next((source for source in sources if source not in elements), None)
            if unknown is not None:
                waiting.append(unknown)
                continue
            value, types = waiting.pop(), [elements[source] for source in sources]
            elements[value] = element or max(types, default=0)
            if elements[value] <= 0:
                elements[value] = min(types, default=0) or -self._declared(value)
        return elements[number]

    def _declared(self, number: int) -> int:
        """Return the element type that the model declares for the output of a node; UNDEFINED if none."""
        node = self._model.makers[number]
        info = None if node is None else node.scope.declared.get(self._model.names[number])
        return TensorProto.UNDEFINED if info is None else info.type.tensor_type.elem_type

    def _origin(self, number: int) -> tuple[int, Sequence[int]]:
        """Return the element type of a value, or 0 and the values that have the same type."""
        model, node = self._model, self._model.makers[number]
        element, sources = 0, [model.passed.get(number, MISSING)]
        if node is not None:
            element, sources = self._of_output(node, number - node.first)
        elif number in self._inputs:
            element = self._inputs[number].tensor_type.elem_type
        elif number in model.stored:
            tensor = model.stored[number]
            element = (tensor if isinstance(tensor, TensorProto) else tensor.values).data_type
        return element, [] if element else [*map(model.computed, sources)]

    def _of_output(self, node: Node, port: int) -> tuple[int, Sequence[int]]:
        reads, custom = self._model.read(node), self._model.op_types.get(node.operator)
        if custom is not None:
            return custom.ports.get(~port, 0), [reads[i] for i in self._model.variable_ports(node)]
        if (typed := find_typed(node.operator)) is not None:
            stated = attributes_of(node).get(typed.attribute)
            if stated is None and typed.like is not None:
                return 0, reads[typed.like : typed.like + 1]
            return typed.default or 0 if stated is None else stated_element(stated.attribute), []
        if node.bodies:
            return 0, [outputs[port] for outputs in leaving_bodies(node) if port < len(outputs)]
        rule = rules(*node.operator, node.version, node.count)[port]
        if rule is None or rule[0] == "kind":
            return rule[1] if rule is not None and isinstance(rule[1], int) and rule[1] != FLOAT else 0, []
        return 0, [reads[i] for i in _ports_alike(node, rule[1]) if i < len(reads)]


def _ports_alike(node: Node, port: int) -> Sequence[int]:
    """Return the inputs of a node that have the same type as one of them."""
    signature = find_signature(*node.operator, node.version)
    if signature is None:
        return [port]
    formals = [signature.inputs[min(i, len(signature.inputs) - 1)] for i in range(len(node.inputs))]
    return [i for i, formal in enumerate(formals) if formal == (formals[port][0], True)] or [port]
