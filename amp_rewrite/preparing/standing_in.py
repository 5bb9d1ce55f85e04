"""A value that stands in for another one, whose node goes; an output of a graph keeps its name and type."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir


def may(value: ir.Value | None, node: ir.Node, kept: Container[ir.Node], held: Container[str]) -> bool:
    """Whether a value may stand in for the only output of a node: where that is an output of a graph, it has
    to be made in the same graph by a node that is not `kept`, be no output itself, and not be `held` by name.
    """
    output = node.outputs[0]
    if value is None or node in kept:
        return False
    if not output.is_graph_output():
        return True
    maker, graph = value.producer(), node.graph
    if maker is None or maker.op_type == "Constant" or maker in kept or maker.graph is not graph:
        return False
    is_held = any(each.name is not None and each.name in held for each in (value, output))
    return not value.is_graph_output() and not is_held and _times(output, graph) == 1


def put(value: ir.Value, node: ir.Node, root: ir.Graph) -> None:
    """Has a value stand in for the only output of a node, and removes the node. Outputs of the model, which
    is `root`, keep the shape that they declare; of others, what is known of the value is as exact.
    """
    output, graph = node.outputs[0], node.graph
    assert graph is not None, "every node of a model is in a graph"
    name, leaves = output.name, output.is_graph_output()
    output.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if leaves:
        value.name, value.type = name, output.type or value.type
        value.shape = output.shape if graph is root else value.shape or output.shape
        value.doc_string = output.doc_string
        value.metadata_props.update(output.metadata_props)
        value.meta.update(output.meta)


def _times(output: ir.Value, graph: object) -> int:
    """How often a value is an output of a graph."""
    return sum(value is output for value in graph.outputs) if isinstance(graph, ir.Graph) else 0
