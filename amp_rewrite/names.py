"""Names that no value or node of a model has yet."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite import control


class Names:
    """Hands out names; none twice, and none that the model has in any of its graphs."""

    def __init__(self, model: ir.Model) -> None:
        self._values: set[str | None] = set()
        self._nodes: set[str | None] = set()
        for graph in graphs(model.graph):
            self._values.update(value.name for value in graph.inputs)
            self._values.update(graph.initializers)
            for node in graph:
                self._nodes.add(node.name)
                self._values.update([value.name for value in node.outputs])

    def of_value(self, value: ir.Value, suffix: str) -> str:
        """`<value>__<suffix>`, numbered where that is taken."""
        return _free(f"{value.name or 'value'}__{suffix}", self._values)

    def of_node(self, name: str) -> str:
        """The name itself, numbered where a node has it already."""
        return _free(name, self._nodes)


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all graphs below it, outer ones first, in the order of the nodes."""
    yield graph
    for node in graph:
        for body in control.bodies(node):
            yield from graphs(body)


def _free(name: str, taken: set[str | None]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate
