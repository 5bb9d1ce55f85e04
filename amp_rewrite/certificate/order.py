"""The order of the nodes of a graph: each after those that it reads from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp_rewrite.certificate import attributes, bodies, tensors
from amp_rewrite.certificate.numbered import MISSING, Scope
from amp_rewrite.errors import EXPORT_AGAIN, ModelError

Read = int | str
"""The number of a value that stands before a node in its own graph, else the name."""

Reads = tuple[int, ...] | list[Read]
"""What a node reads: a tuple where all of it stands before the node in its own graph."""

Row = tuple[Any, tuple[str, str], Reads, int, int]
"""A node, its operator, what it reads, and the number of its first output and of its outputs."""


class Order:
    """Puts the nodes of graphs in order; what a body reads from around it is found once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}  # with the body, of which protobuf makes one

    def of(self, rows: list[Row], scope: Scope) -> Sequence[Row]:
        """The nodes of a graph in an order in which each can be computed; ModelError where there is none."""
        names = scope.names
        if not any(self._is_late(row, names) for row in rows if _reaches_out(row)):
            return rows
        made = {number: i for i, row in enumerate(rows) for number in range(row[3], row[3] + row[4])}
        needs = [{made[n] for n in self._numbers(row, names) if n in made} for row in rows]
        return [rows[i] for i in _sorted(needs)]

    def refuse_hidden(self, graphs: Sequence[Any]) -> None:
        """ModelError for bodies of one node of which one defines a name that another reads from around it:
        onnxruntime gives both what stands around.
        """
        for graph in graphs if len(graphs) > 1 else ():
            read = self._free(other for other in graphs if other is not graph)
            for name in _own(graph).intersection(read):
                raise ModelError(f"defines '{name}' in a body, and around it", remedy=EXPORT_AGAIN)

    def _is_late(self, row: Row, names: Mapping[str, int]) -> bool:
        """Whether a node stands before one that it reads from."""
        return any(number >= row[3] for number in self._numbers(row, names))

    def _numbers(self, row: Row, names: Mapping[str, int]) -> Iterator[int]:
        """What a node reads of its own graph, in its bodies as well."""
        proto, operator, read, _, _ = row
        yield from (each if isinstance(each, int) else names.get(each, MISSING) for each in read)
        if operator in bodies.KNOWN or operator[0]:
            yield from (names.get(name, MISSING) for name in self._free(_bodies((proto,))))

    def _free(self, graphs: Iterable[Any]) -> Iterator[str]:
        """The names that bodies read from around them."""
        for graph in graphs:
            if id(graph) not in self._known:
                names = {*_read(graph), *self._free(_bodies(graph.node))}
                self._known[id(graph)] = graph, frozenset(names - _own(graph))
            yield from self._known[id(graph)][1]


def _reaches_out(row: Row) -> bool:
    """Whether a node, or a body of it, may read what does not stand before it in its own graph."""
    return not isinstance(row[2], tuple) or bool(row[1][0]) or row[1] in bodies.KNOWN


def _bodies(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from attributes.graphs(attribute)


def _read(graph: Any) -> Iterator[str]:
    """The names that the nodes of a body read, and those that it gives."""
    for node in graph.node:
        yield from node.input
    yield from (info.name for info in graph.output)


def _own(graph: Any) -> set[str]:
    """The names that a body defines."""
    own = {info.name for info in graph.input} | tensors.initial(graph).keys()
    return own | {name for node in graph.node for name in node.output}


def _sorted(needs: Sequence[Iterable[int]]) -> list[int]:
    waiting = [len(set(each)) for each in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for reader, each in enumerate(needs):
        for made in each:
            readers[made].append(reader)
    ready = [i for i, count in enumerate(waiting) if not count]
    for i in ready:  # which grows
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(ready) < len(needs):
        raise ModelError("has nodes with cyclic dependencies", remedy=EXPORT_AGAIN)
    return ready
