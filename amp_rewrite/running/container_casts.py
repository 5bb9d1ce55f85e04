"""Casts of what holds tensors: every element of a sequence, and what is in an optional, if anything is."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import tensor
from amp_rewrite.rewriting import editing

SINCE: dict[type[ir.TypeProtocol], int] = {ir.SequenceType: 13, ir.OptionalType: 16}
"""The opsets from which on a Loop carries sequences, and an If gives optionals away (ONNX 1.8 and 1.11)."""


def nodes(value: ir.Value, kind: ir.TypeProtocol, dtype: ir.DataType, names: UniqueNames) -> list[ir.Node]:
    """Nodes that cast a value of a type, in order; the result is the only output of the last.

    They are not in any graph yet. All that they make has a type, and a name that nothing else has.
    """
    made = _Nodes(value, names)
    _cast(made, value, kind, dtype)
    return made.nodes


class _Nodes:
    """Nodes that are made one after the other, under names that begin alike."""

    def __init__(self, whose: ir.Value, names: UniqueNames) -> None:
        self._whose = whose
        self._names = names
        self.nodes: list[ir.Node] = []

    def add(
        self, operator: str, inputs: Sequence[ir.Value], made: ir.TypeProtocol, *attributes: ir.Attr
    ) -> ir.Value:
        """A node's only output, which has that type."""
        node = ir.Node("", operator, inputs, attributes)
        self.nodes.append(node)
        value = self._entitle(node.outputs[0], operator, made)
        node.name = self._names.of_node(value.name or "")
        return value

    def input(self, suffix: str, kind: ir.TypeProtocol, shape: ir.Shape | None = None) -> ir.Value:
        """An input for a body."""
        return self._entitle(ir.Value(shape=shape), suffix, kind)

    def body(self) -> _Nodes:
        """Nodes for a body, under names of the same kind."""
        return _Nodes(self._whose, self._names)

    def graph(self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Attr:
        """The attribute that holds these nodes as a body."""
        return ir.AttrGraph(name, ir.Graph(inputs, outputs, nodes=self.nodes, name=name))

    def _entitle(self, value: ir.Value, suffix: str, kind: ir.TypeProtocol) -> ir.Value:
        value.name = self._names.of_value(self._whose, suffix)
        value.type = kind
        return value


def _cast(at: _Nodes, value: ir.Value, kind: ir.TypeProtocol, dtype: ir.DataType) -> ir.Value:
    if isinstance(kind, ir.SequenceType):
        return _each(at, value, kind, dtype)
    if isinstance(kind, ir.OptionalType):
        return _if_there(at, value, kind, dtype)
    return at.add("Cast", [value], tensor(dtype), ir.AttrInt64("to", int(dtype)))


def _each(at: _Nodes, value: ir.Value, kind: ir.SequenceType, dtype: ir.DataType) -> ir.Value:
    """A Loop that casts one element after the other, and adds it to what it has."""
    wanted, within = editing.with_element(kind, dtype), at.body()
    length = at.add("SequenceLength", [value], _INTEGER)
    always = at.add("Constant", [], _BOOL, ir.AttrTensor("value", ir.tensor(True)))
    empty = at.add("SequenceEmpty", [], wanted, ir.AttrInt64("dtype", int(dtype)))
    index, go = within.input("index", _INTEGER, ir.Shape(())), within.input("go", _BOOL, ir.Shape(()))
    before = within.input("before", wanted)
    goes_on = within.add("Identity", [go], _BOOL)
    element = within.add("SequenceAt", [value, index], kind.elem_type)
    cast = _cast(within, element, kind.elem_type, dtype)
    after = within.add("SequenceInsert", [before, cast], wanted)
    body = within.graph("body", [index, go, before], [goes_on, after])
    return at.add("Loop", [length, always, empty], wanted, body)


def _if_there(at: _Nodes, value: ir.Value, kind: ir.OptionalType, dtype: ir.DataType) -> ir.Value:
    """An If that casts what is there, or makes an empty optional of the other type."""
    wanted, full, empty = editing.with_element(kind, dtype), at.body(), at.body()
    element = full.add("OptionalGetElement", [value], kind.elem_type)
    some = full.add("Optional", [_cast(full, element, kind.elem_type, dtype)], wanted)
    held = ir.TypeAndShape(editing.with_element(kind.elem_type, dtype), None)
    none = empty.add("Optional", [], wanted, ir.Attr("type", ir.AttributeType.TYPE_PROTO, held))
    branches = (full.graph("then_branch", [], [some]), empty.graph("else_branch", [], [none]))
    return at.add("If", [at.add("OptionalHasElement", [value], _BOOL)], wanted, *branches)


_INTEGER, _BOOL = tensor(ir.DataType.INT64), tensor(ir.DataType.BOOL)
