"""Minimum cut of a network: the smallest part that it leaves on the side of the sink.

Push-relabel (A. V. Goldberg, R. E. Tarjan: A new approach to the maximum-flow problem, J. ACM 35, 1988), from
demands towards supplies: each node passes its deficit on to one that is nearer to a supply. The cut depends
on the numbers alone, which are integers, and not on the order of nodes and edges.
"""

from __future__ import annotations

from collections import deque

UNLIMITED = 1 << 120
"""Capacity that exceeds any sum of costs."""

_ROUNDS = 64
"""Work for each node and edge after which the search is given up: then nothing is cut off."""

_AGAIN = 4
"""Work for each node and edge after which distances are measured anew."""

_TIES = 24
"""Bits appended to all numbers: a supply of one of these decides between equal cuts."""


class Network:
    """Nodes with a supply and a demand each, and edges between them."""

    def __init__(self) -> None:
        self.supply: list[int] = []
        self.demand: list[int] = []
        self._edges: list[list[int]] = []
        self._ends: list[int] = []
        self._left: list[int] = []
        self._away: list[int] = []

    def node(self) -> int:
        """Add a node and return it."""
        self.supply.append(0)
        self.demand.append(0)
        self._edges.append([])
        return len(self.supply) - 1

    def edge(self, start: int, end: int, forth: int, back: int = 0) -> None:
        """Add an edge with this capacity in either direction."""
        edge = len(self._ends)
        self._ends += (end, start)
        self._left += (forth << _TIES, back << _TIES)
        self._edges[start].append(edge)
        self._edges[end].append(edge + 1)

    def cut_off(self) -> set[int]:
        """Return the nodes whose demand exceeds all supplies that can reach them; called once.

        Linear in nodes and edges: none is cut off where the work would exceed that.
        """
        for node, supply in enumerate(self.supply):
            self.supply[node] = (supply << _TIES) + 1
            self.demand[node] <<= _TIES
        size = len(self.supply) + len(self._ends)
        budget = _ROUNDS * size
        while budget > 0:
            lacking = self._measure()
            if not lacking:
                never = len(self.supply)
                return {node for node, away in enumerate(self._away) if away >= never}
            budget -= size + self._settle(lacking, _AGAIN * size)
        return set()

    def _measure(self) -> deque[int]:
        """Measure the distance of each node from a supply; return those in reach of one with a deficit."""
        for node, demand in enumerate(self.demand):
            flow = min(demand, self.supply[node])
            self.demand[node] -= flow
            self.supply[node] -= flow
        never = len(self.supply)
        self._away = [0 if supply else never for supply in self.supply]
        todo = deque([node for node, supply in enumerate(self.supply) if supply])
        while todo:
            here = todo.popleft()
            for edge in self._edges[here]:
                there = self._ends[edge]
                if self._left[edge] and self._away[there] == never:
                    self._away[there] = self._away[here] + 1
                    todo.append(there)
        lacks = [node for node, demand in enumerate(self.demand) if demand and self._away[node] < never]
        return deque(lacks)

    def _settle(self, lacking: deque[int], most: int) -> int:
        """Pass on deficits until none can be covered, or the work is done; return the work."""
        never, work = len(self.supply), 0
        while lacking and work < most:
            node = lacking.popleft()
            while self.demand[node] and self._away[node] < never:
                work += 1 + len(self._edges[node])
                lacking.extend(self._pull(node))
                if self.demand[node]:
                    self._away[node] = self._nearest(node) + 1
        return work

    def _pull(self, node: int) -> list[int]:
        """Cover the deficit of a node from those nearer to a supply; return those with a deficit now."""
        fresh: list[int] = []
        for edge in self._edges[node]:
            giver, room = self._ends[edge], self._left[edge ^ 1]
            if not room or self._away[giver] >= self._away[node]:
                continue
            amount = min(room, self.demand[node])
            self._left[edge ^ 1] -= amount
            self._left[edge] += amount
            self.demand[node] -= amount
            if not self.demand[giver]:
                fresh.append(giver)
            self._take(giver, amount)
            if not self.demand[node]:
                break
        return [giver for giver in fresh if self.demand[giver]]

    def _take(self, giver: int, amount: int) -> None:
        flow = min(amount, self.supply[giver])
        self.supply[giver] -= flow
        self.demand[giver] += amount - flow

    def _nearest(self, node: int) -> int:
        """Return the distance of the nearest giver with residual capacity; the maximum if there is none."""
        never = len(self.supply)
        rooms = (self._ends[edge] for edge in self._edges[node] if self._left[edge ^ 1])
        return min((self._away[giver] for giver in rooms), default=never)
