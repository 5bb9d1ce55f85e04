"""Minimum cut of a network: the smallest part that it leaves on the side of the sink.

Augmenting paths (L. R. Ford, D. R. Fulkerson: Maximal flow through a network, Canad. J. Math. 8, 1956): each
demand draws on the nearest supplies that can reach it. All that could reach an uncovered one is cut off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

UNLIMITED = 1 << 120
"""Capacity that exceeds any sum of costs."""

_WORK = 64
"""Visits for each node and edge after which the search ends; what was cut off until then remains so."""


class Network:
    """Nodes with a supply and a demand each, and edges between them."""

    def __init__(self) -> None:
        self.supply, self.demand = Counter[Hashable](), Counter[Hashable]()
        self._room: defaultdict[Hashable, dict[Hashable, int]] = defaultdict(dict)  # by end, then start

    def edge(self, start: Hashable, end: Hashable, capacity: int) -> None:
        """Add capacity from one node to another."""
        self._room[end][start] = self._room[end].get(start, 0) + capacity
        self._room[start].setdefault(end, 0)

    def cut_off(self) -> set[Hashable]:
        """Return the nodes whose demand exceeds all supplies that can reach them; called once."""
        cut: set[Hashable] = set()
        work = _WORK * (len(self.demand) + sum(map(len, self._room.values())))
        for node in self.demand:
            while self.demand[node] and node not in cut and work > 0:
                giver, taker = self._nearest_supply(node, cut)
                work -= len(taker)
                if giver is None:
                    cut.update(taker)
                else:
                    self._draw(node, giver, taker)
        return cut

    def _nearest_supply(
        self, node: Hashable, cut: set[Hashable]
    ) -> tuple[Hashable | None, dict[Hashable, Hashable]]:
        """Return a node with a supply for this one, if any; and all nodes visited, each with the next one."""
        taker, visited = {node: node}, [node]
        for here in visited:
            if self.supply[here]:
                return here, taker
            for giver, room in self._room[here].items():
                if room and giver not in taker and giver not in cut:
                    taker[giver] = here
                    visited.append(giver)
        return None, taker

    def _draw(self, node: Hashable, giver: Hashable, taker: dict[Hashable, Hashable]) -> None:
        """Cover a demand from a supply, as far as that and the edges between them last."""
        path, here = [], giver
        while here != node:
            path.append((here, taker[here]))
            here = taker[here]
        rooms = [self._room[end][start] for start, end in path]
        amount = min(self.demand[node], self.supply[giver], *rooms)
        self.demand[node] -= amount
        self.supply[giver] -= amount
        for start, end in path:
            self._room[end][start] -= amount
            self._room[start][end] += amount
