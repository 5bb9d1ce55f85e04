"""The nodes that onnxruntime executes -> the nodes of the model that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import onnx_ir as ir

from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.placement.saved_graph import COPIES, SavedGraph, operator, own_name


def find(executed: SavedGraph, model: ir.Model) -> dict[ir.Node, tuple[ir.Node, ...]]:
    """The nodes of a model that each executed node stands for, first that which outputs its value.

    onnxruntime keeps the name of the value that a fused node outputs: what leads to it, and outputs nothing
    that is still there, was fused. A node that it inserts stands for none, and one that it folded, merged
    with an equal one or moved beyond recognition is in none. Constants are left out.
    """
    nodes = [node for node in every_node(model.graph) if node.op_type != "Constant"]
    made = {value.name: node for node in nodes for value in node.outputs}
    made.update(_renamed(executed, made))
    named = {node.name: node for node in nodes if node.name}
    search = _Search(made, frozenset(_present(executed.model)))
    return {node: search.of(node) or _same(node, named) for node in executed.nodes}


def is_fused(node: ir.Node, origins: Sequence[ir.Node]) -> bool:
    """Whether an executed node has another operator than the node of the model that it stands for first."""
    return bool(origins) and operator(node) != operator(origins[0])


_MOVERS = ("Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "ReorderOutput", *COPIES)
"""What onnxruntime puts behind a node in order to change it; the value keeps its name behind them."""

_Made = dict[str | None, ir.Node]


def _renamed(executed: SavedGraph, made: _Made) -> _Made:
    """What makes, in the model, the values whose names onnxruntime changed: those before movers that it put
    in, and those in another precision.
    """
    found: _Made = {}
    for node in reversed([*executed.nodes]):
        output = node.outputs[0].name if node.outputs else None
        origin = found.get(output) or made.get(output)
        if origin is None and operator(node) != "Cast" and _uncast(output) in made:
            found[output] = made[_uncast(output)]
        elif origin is not None and _is_mover(node) and operator(origin) != operator(node):
            value = node.inputs[0]
            if value is not None and value.producer() is not None and value.name not in made:
                found[value.name], found[output] = origin, node
    return found


def _is_mover(node: ir.Node) -> bool:
    return operator(node).rpartition(":")[2] in _MOVERS and bool(node.inputs)


class _Search:
    def __init__(self, made: Mapping[str | None, ir.Node], present: Set[str]) -> None:
        self._made = made
        self._present = present
        self._taken: set[ir.Node] = set()

    def of(self, executed: ir.Node) -> tuple[ir.Node, ...]:
        """The producers of its outputs, and for a fused node what leads to them alone."""
        producers = (self._made.get(value.name) for value in executed.outputs if value.name)
        found = [node for node in dict.fromkeys(producers) if node is not None and node is not executed]
        if is_fused(executed, found):
            self._taken.update(found)
            for node in found:  # which grows
                found += self._absorbed(node)
        return tuple(found)

    def _absorbed(self, node: ir.Node) -> Iterator[ir.Node]:
        """The producers of its inputs that are not there any more; each node is absorbed once."""
        for value in node.inputs:
            producer = None if value is None or value.name in self._present else value.producer()
            if producer is not None and producer not in self._taken and producer.op_type != "Constant":
                self._taken.add(producer)
                yield producer


def _present(model: ir.Model) -> Iterator[str]:
    """The names of all values of a graph."""
    for graph in graphs(model.graph):
        held = (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs))
        for value in held:
            yield from filter(None, {value.name, _uncast(value.name)})


def _uncast(name: str | None) -> str | None:
    """The name of a value in the model, where onnxruntime has it in another precision under a longer name."""
    return name.removeprefix("InsertedPrecisionFreeCast_") if name else name


def _same(executed: ir.Node, named: Mapping[str, ir.Node]) -> tuple[ir.Node, ...]:
    """The node of its name, which onnxruntime may have extended, and of its operator."""
    node = named.get(own_name(executed.name or ""))
    return () if node is None or operator(node) != operator(executed) else (node,)
