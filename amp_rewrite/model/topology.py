"""Whether the nodes of a model can be run one after the other, and in that order."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.onnx_types import control_flow


def sort_nodes(model: ir.Model, where: str | Path, sparse: Container[str | None] = frozenset[str]()) -> None:
    """Puts nodes that read what comes later behind it, as runtimes do; a model in order stays as it is.

    `sparse` names the sparse initializers, of which onnx-ir knows nothing. Raises ModelError, which names the
    model as `where`, for a value that nothing makes, and for nodes that wait for each other.
    """
    made: set[ir.Value] = set()
    unsorted = False
    for node in _nodes(model.graph):
        for value in node.inputs if node.op_type != "Constant" else ():  # whose inputs nobody reads
            if value is None or value in made:
                continue
            if value.producer() is not None:
                unsorted = True
            elif not (value.is_graph_input() or value.is_initializer() or value.name in sparse):
                raise _broken(f"reads '{value.name}', which nothing makes", where)
        made.update(node.outputs)
    if unsorted:
        _sort(model.graph, where)


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes, each behind those of its bodies, which may not read what it makes."""
    for node in graph:
        for body in control_flow.bodies(node):
            yield from _nodes(body)
        yield node


def _sort(graph: ir.Graph, where: str | Path) -> None:
    try:
        graph.sort()
    except ValueError as error:
        raise _broken("has nodes that wait for each other in a circle", where) from error


def _broken(problem: str, where: str | Path) -> ModelError:
    return ModelError(problem, where=where, remedy=EXPORT_AGAIN)
