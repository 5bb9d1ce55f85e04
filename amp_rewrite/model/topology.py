"""The order of nodes: each after the nodes whose outputs it uses."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.model import traversal


def sort_nodes(model: ir.Model, where: str | Path, sparse: Container[str | None] = frozenset[str]()) -> None:
    """Sorts the nodes of a model topologically, as runtimes do; a sorted model is not changed.

    `sparse` names the sparse initializers, which onnx-ir does not know. Raises ModelError, with the model's
    place `where`, for a value without a definition, and for cyclic dependencies.
    """
    graph, is_sorted = model.graph, True
    defined: set[ir.Value] = set()
    for node in traversal.nodes_inner_first(graph):  # a body may not use the outputs of its node
        for value in node.inputs if node.op_type != "Constant" else ():  # a Constant's inputs are ignored
            if value is None or value in defined:
                continue
            if value.producer() is not None:
                is_sorted = False
            elif not (value.is_graph_input() or value.is_initializer() or value.name in sparse):
                problem = f"uses '{value.name}', which is not defined"
                raise ModelError(problem, where=where, remedy=EXPORT_AGAIN)
        defined.update(node.outputs)
    if is_sorted:
        return
    try:
        graph.sort()
    except ValueError as error:
        raise ModelError("has nodes with cyclic dependencies", where=where, remedy=EXPORT_AGAIN) from error
