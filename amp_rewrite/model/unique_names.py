"""Unique names for values and nodes of a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.model import traversal


class UniqueNames:
    """A generator of names that no value or node of these graphs has, each of them once."""

    def __init__(self, graphs: Iterable[ir.Graph]) -> None:
        self._values: set[str | None] = set()
        self._nodes: set[str | None] = set()
        self._value_numbering, self._node_numbering = Numbering(), Numbering()
        for graph in graphs:
            nodes = tuple(graph)
            self._nodes.update([node.name for node in nodes])
            # inputs too: a sparse initializer has uses, but no definition in onnx-ir
            ports = itertools.chain.from_iterable((*node.inputs, *node.outputs) for node in nodes)
            values = {*graph.inputs, *graph.initializers.values(), *ports}
            self._values.update([value.name for value in values if value is not None])

    def of_value(self, value: ir.Value, suffix: str) -> str:
        """Return `<value>__<suffix>`, with a number if that is in use."""
        return self._value_numbering.free(f"{value.name or 'value'}__{suffix}", self._values)

    def new_value(self, name: str) -> str:
        """Return the name itself, with a number if another value has it."""
        return self._value_numbering.free(name, self._values)

    def of_node(self, name: str) -> str:
        """Return the name itself, with a number if another node has it."""
        return self._node_numbering.free(name, self._nodes)

    def constant(self, like: ir.Value, suffix: str, tensor: ir.TensorProtocol) -> ir.Node:
        """Return a Constant outside any graph, whose value is named after another."""
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
        node.outputs[0].name = self.of_value(like, suffix)
        node.name = self.of_node(node.outputs[0].name)
        return node

    def rename_shadowing(self, graph: ir.Graph, outer: frozenset[str | None] = frozenset()) -> None:
        """Rename the initializers of bodies that have the name of a value of an enclosing graph.

        ONNX allows this, but onnx's shape inference confuses the types of the two.
        """
        for value in [v for v in graph.initializers.values() if v.name in outer]:
            value.name = self.of_value(value, "inner")
        bodies = list(traversal.bodies(graph))
        visible = outer.union(_defined(graph)) if bodies else outer
        for body in bodies:
            self.rename_shadowing(body, visible)


def rename_twins(model: ir.Model) -> tuple[str, ...]:
    """Rename nodes that have the name of an earlier one in their graph; return a warning, if there were any.

    onnxruntime rejects a model with two nodes of one name.
    """
    twins: list[ir.Node] = []
    for nodes in traversal.nodes(model.graph).values():
        names: set[str] = set()
        for node in nodes:
            if node.name and node.name in names:
                twins.append(node)
            names.add(node.name or "")
    if not twins:
        return ()
    unique = UniqueNames(traversal.graphs(model.graph))
    first = twins[0].name
    for node in twins:
        node.name = unique.of_node(node.name or "")
    count = "1 node has" if len(twins) == 1 else f"{len(twins):,} nodes have"
    which = "it" if len(twins) == 1 else "the first"
    message = f"{count} the name of another ('{first}'), which onnxruntime refuses"
    return (f"{message}; the result calls {which} '{twins[0].name}'",)


def _defined(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    yield from (value.name for node in graph for value in node.outputs)


class Numbering:
    """A numbering that makes names unique; for the same name, the search continues where it stopped."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def free(self, name: str, used_names: set[str] | set[str | None]) -> str:
        """Return the name itself, or `<name>_2` and so on if that is in use; add the result to `used_names`.

        A name that was in `used_names` once must stay there.
        """
        candidate, number = name, self._last.get(name, 1)
        while candidate in used_names:
            number += 1
            candidate = f"{name}_{number}"
        self._last[name] = number
        used_names.add(candidate)
        return candidate
