"""The dataflow of a main graph: a node with bodies is one step, with captured values as operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model import traversal
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.entries import Kind


@dataclass(frozen=True, slots=True)
class Dataflow:
    """The nodes of a main graph in topological order, their operands, and the consumers of each value.

    `reads` includes values captured by bodies. `readers` has every use of a value once: the consumer in the
    main graph, and the use itself, which may be in a body of that node.
    """

    graph: ir.Graph
    nodes: Sequence[ir.Node]
    reads: Mapping[ir.Node, tuple[ir.Value, ...]]
    readers: Mapping[ir.Value, Sequence[tuple[ir.Node, Use]]]

    def before(self, values: Iterable[ir.Value]) -> set[ir.Node]:
        """Return all nodes on which these values depend."""
        producers = (value.producer() for value in values)
        return reach(filter(None, producers), self._makers)

    def behind(self, nodes: Iterable[ir.Node]) -> set[ir.Node]:
        """Return these nodes and all that depend on them."""
        return reach(nodes, self.successors)

    def successors(self, node: ir.Node) -> Iterator[ir.Node]:
        """Yield the consumers of a node's outputs."""
        for value in node.outputs:
            yield from (reader for reader, _ in self.readers.get(value, ()))

    def _makers(self, node: ir.Node) -> Iterator[ir.Node]:
        yield from filter(None, (value.producer() for value in self.reads[node]))


def of(graph: ir.Graph) -> Dataflow:
    """Return the dataflow of a main graph whose nodes are sorted."""
    nodes = tuple(graph)
    outer = set(nodes)
    reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
    readers: dict[ir.Value, list[tuple[ir.Node, Use]]] = {}
    for node in nodes:
        uses = [(value, use) for value, use in _uses(node) if _is_outer(value, outer, graph)]
        reads[node] = tuple(dict.fromkeys(value for value, _ in uses))
        for value, use in uses:
            readers.setdefault(value, []).append((node, use))
    return Dataflow(graph, nodes, reads, readers)


def _is_outer(value: ir.Value, outer: Collection[ir.Node], graph: ir.Graph) -> bool:
    """Whether a value belongs to the main graph, not to a body."""
    node = value.producer()
    return value.graph in (graph, None) if node is None else node in outer


def _uses(node: ir.Node) -> Iterator[tuple[ir.Value, Use]]:
    """Yield all uses of values by a node and in its bodies, values local to the bodies included."""
    yield from ((value, Use(node, port)) for port, value in enumerate(node.inputs) if value is not None)
    for body in control_flow.bodies(node):
        for inner in body:
            yield from _uses(inner)
        yield from ((value, Use(body, port)) for port, value in enumerate(body.outputs))


def reach(
    start: Iterable[ir.Node],
    following: Callable[[ir.Node], Iterable[ir.Node]],
    passes: Callable[[ir.Node], bool] = lambda _: True,
) -> set[ir.Node]:
    """Return the nodes reachable from these along `following`, through nodes that satisfy `passes` only."""
    closure, todo = set[ir.Node](), list(start)
    while todo:
        node = todo.pop()
        if node not in closure and passes(node):
            closure.add(node)
            todo += following(node)
    return closure


def is_product(node: ir.Node) -> bool:
    """Whether a node is, or has in a body, an operator of the shipped allow list (matrix product,
    convolution, attention, recurrent network) or the gradient of a convolution.
    """
    lists = operator_lists.load("default")
    for inner in traversal.nodes_inner_first([node]):
        entry = lists.find(inner.domain, inner.op_type)
        if (entry is not None and entry.kind is Kind.ALLOW) or inner.op_type == "ConvGrad":
            return True
    return False
