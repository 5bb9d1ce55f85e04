"""Minimum cut of a network: the smallest part that it leaves on the side of the sink.

Augmenting paths (L. R. Ford, D. R. Fulkerson: Maximal flow through a network, Canad. J. Math. 8, 1956): each
demand draws on the nearest supply that can still reach it. What reaches an uncovered demand is cut off.
"""

from __future__ import annotations

from collections import deque

UNLIMITED = 1 << 120
"""Capacity that exceeds any sum of costs."""

_WORK = 64
"""Steps for each node and edge after which the rest stays: what is cut off until then is part of the cut."""


class Network:
    """Nodes with a supply and a demand each, and edges between them."""

    def __init__(self) -> None:
        self.supply: list[int] = []
        self.demand: list[int] = []
        self._edges: list[list[int]] = []
        self._starts: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """Add a node and return it."""
        self.supply.append(0)
        self.demand.append(0)
        self._edges.append([])
        return len(self.supply) - 1

    def edge(self, start: int, end: int, forth: int, back: int = 0) -> None:
        """Add an edge with this capacity in either direction."""
        edge = len(self._starts)
        self._starts += (start, end)
        self._left += (forth, back)
        self._edges[end].append(edge)
        self._edges[start].append(edge + 1)

    def cut_off(self) -> set[int]:
        """Return the nodes whose demand exceeds all supplies that can reach them; called once."""
        cut: set[int] = set()
        work = _WORK * (len(self.supply) + len(self._starts))
        for node in range(len(self.demand)):
            while self.demand[node] and node not in cut and work > 0:
                giver, edges = self._nearest_supply(node, cut)
                work -= len(edges)
                if giver is None:
                    cut.update(edges)
                else:
                    self._draw(node, giver, edges)
        return cut

    def _nearest_supply(self, node: int, cut: set[int]) -> tuple[int | None, dict[int, int]]:
        """Return a node with a supply for this one, if any, and all nodes reached, each with its edge."""
        edges, todo = {node: -1}, deque([node])
        while todo:
            here = todo.popleft()
            if self.supply[here]:
                return here, edges
            for edge in self._edges[here]:
                start = self._starts[edge]
                if self._left[edge] and start not in edges and start not in cut:
                    edges[start] = edge
                    todo.append(start)
        return None, edges

    def _draw(self, node: int, giver: int, edges: dict[int, int]) -> None:
        """Cover a demand from a supply, as far as that and the edges between them last."""
        path, here = list[int](), giver
        while here != node:
            path.append(edges[here])
            here = self._starts[edges[here] ^ 1]
        amount = min(self.demand[node], self.supply[giver], *(self._left[edge] for edge in path))
        self.demand[node] -= amount
        self.supply[giver] -= amount
        for edge in path:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
