"""Names that no value or node of a model has yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.onnx_types import control_flow


class Names:
    """Hands out names; none twice, and none that the graphs of a model have."""

    def __init__(self, held: Iterable[ir.Graph]) -> None:
        self._values: set[str | None] = set()
        self._nodes: set[str | None] = set()
        self._of_values, self._of_nodes = Numbered(), Numbered()
        for graph in held:
            self._values.update(value.name for value in graph.inputs)
            self._values.update(graph.initializers)
            for node in graph:
                self._nodes.add(node.name)
                for value in (*node.outputs, *node.inputs):  # nobody makes a sparse initializer
                    if value is not None:
                        self._values.add(value.name)

    def of_value(self, value: ir.Value, suffix: str) -> str:
        """`<value>__<suffix>`, numbered where that is taken."""
        return self._of_values.free(f"{value.name or 'value'}__{suffix}", self._values)

    def of_node(self, name: str) -> str:
        """The name itself, numbered where a node has it already."""
        return self._of_nodes.free(name, self._nodes)

    def tell_apart(self, graph: ir.Graph, around: frozenset[str | None] = frozenset()) -> None:
        """Renames the weights of bodies that are called as something outside is.

        Readers do not mind, but onnx's shape inference takes the type of the one for that of the other.
        """
        for value in [v for v in graph.initializers.values() if v.name in around]:
            value.name = self.of_value(value, "inner")
        bodies = list(control_flow.inner(graph))
        visible = around.union(_names(graph)) if bodies else around
        for body in bodies:
            self.tell_apart(body, visible)


def operators(held: Iterable[ir.Graph]) -> frozenset[str]:
    """The types of the nodes of these graphs, whatever their domains."""
    return frozenset([node.op_type for graph in held for node in graph])


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all graphs below it, outer ones first, in the order of the nodes."""
    yield graph
    for body in control_flow.inner(graph):
        yield from graphs(body)


def _names(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    yield from (value.name for node in graph for value in node.outputs)


class Numbered:
    """Finds free names; the search for one goes on where that for the same name ended before."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def free(self, name: str, taken: set[str] | set[str | None]) -> str:
        """The name itself, or `<name>_2` and so on where that is taken; it is taken from now on.

        What is `taken` once must stay so.
        """
        candidate, number = name, self._last.get(name, 1)
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        self._last[name] = number
        taken.add(candidate)
        return candidate
