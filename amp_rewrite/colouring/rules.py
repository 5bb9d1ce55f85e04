"""The rules of colour: HALF or FULL for every unit, with the rule that says so and the unit that caused it.

The rules come in order, and the first that paints a unit wins. They are TensorFlow Grappler's
auto_mixed_precision passes, but for `lead`, which is ours, and `follow`, which it has for bfloat16 alone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from amp_rewrite.analysis import findings
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring import weight_derived
from amp_rewrite.colouring.classification import BY_PIN, BY_SCHEMA
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.policy.options import Level


class Colour(enum.Enum):
    """What is decided for a unit: half precision, or float32 as before."""

    HALF = "half"
    FULL = "full"


class Rule(enum.Enum):
    """The rules, in the order in which they are applied."""

    ALLOW = "allow"
    DENY = "deny"
    BETWEEN = "between"
    LEAD = "lead"
    FOLLOW = "follow"
    SPREAD = "spread"
    SETTLE = "settle"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Paint:
    """A colour, the rule that gave it, and the unit that caused it (None: its own kind did)."""

    colour: Colour
    rule: Rule
    cause: int | None = None


@dataclass(frozen=True, slots=True)
class Painting:
    """A paint and an entry (the kind, and why) for every unit of a graph, by position."""

    paints: tuple[Paint, ...]
    entries: tuple[Entry, ...]

    def is_half(self, unit: int) -> bool:
        """Whether a unit is HALF."""
        return self.paints[unit].colour is Colour.HALF

    def why(self, unit: int) -> tuple[int, ...]:
        """The chain of causes from a unit to the one where it all began, that unit included."""
        chain: dict[int, None] = {}
        step: int | None = unit
        while step is not None and step not in chain:  # a saved plan may have been edited to a circle
            chain[step] = None
            step = self.paints[step].cause
        return tuple(chain)


def paint(
    graph: UnitGraph,
    entries: Sequence[Entry],
    *,
    follow: bool = True,
    level: Level = Level.DEFAULT,
) -> Painting:
    """Colours for all units; linear in the number of edges.

    Raises nothing: any graph and any entries have a painting.
    """
    rules = _Rules(graph, entries)
    rules.allow()
    if level is not Level.UNSAFE_FORCE_ALL:
        rules.deny()
    rules.between()
    if follow:
        rules.lead()
        rules.spread_and_follow()
    else:
        rules.spread()
    rules.settle()
    return Painting(rules.finish(), tuple(entries))


class _Rules:
    def __init__(self, graph: UnitGraph, entries: Sequence[Entry]) -> None:
        self._graph = graph
        self._entries = entries
        self._kinds = [entry.kind for entry in entries]
        self._paints: dict[int, Paint] = {}
        self._tied = _Ties(graph.ties)
        self._leaving = frozenset(graph.root.outputs)

    def finish(self) -> tuple[Paint, ...]:
        left = Paint(Colour.FULL, Rule.LEFT)
        return tuple(self._paints.get(i, left) for i in range(len(self._kinds)))

    def allow(self) -> None:
        """Every ALLOW unit."""
        half = Paint(Colour.HALF, Rule.ALLOW)
        self._paints.update((unit, half) for unit in self._of(Kind.ALLOW))

    def deny(self) -> None:
        """Every DENY unit, and what lies on a forward path from it, through CLEAR and INFER, that ends
        in an INFER or DENY unit.
        """
        suspect = self._leading_to_suspects()
        roots = list(self._of(Kind.DENY))
        found = reach(roots, self._consumers, suspect.__contains__)
        full = Paint(Colour.FULL, Rule.DENY)
        self._paints.update((unit, full) for unit in roots)
        for unit, cause in found.items():
            self._paints.setdefault(unit, Paint(Colour.FULL, Rule.DENY, cause))

    def _leading_to_suspects(self) -> set[int]:
        suspects = [*self._of(Kind.INFER), *self._of(Kind.DENY)]
        return {*suspects, *reach(suspects, self._producers, self._is_clear)}

    def between(self) -> None:
        """INFER and CLEAR units on a path between two ALLOW units."""
        roots = list(self._of(Kind.ALLOW))
        after = reach(roots, self._consumers, self._is_open)
        before = reach(roots, self._producers, after.__contains__)
        for unit, cause in before.items():
            self._paints[unit] = Paint(Colour.HALF, Rule.BETWEEN, cause)

    def _is_open(self, unit: int) -> bool:
        return unit not in self._paints and self._kinds[unit] in (Kind.INFER, Kind.CLEAR)

    def lead(self) -> None:
        """Rooted units on the way to a HALF one, through their like: CLEAR, or INFER and marked to follow."""
        found = weight_derived.find(self._graph, self._entries)

        def leads(unit: int) -> bool:
            entry = self._entries[unit]
            marked = entry.kind is Kind.CLEAR or entry.follow
            return unit in found and marked and unit not in self._paints

        for unit, cause in reach(self._halves(), self._producers, leads).items():
            self._paints[unit] = Paint(Colour.HALF, Rule.LEAD, cause)

    def spread_and_follow(self) -> None:
        """Both rules until neither paints any more: what follows also follows through CLEAR units."""
        fresh = self._halves()
        while fresh:
            followed = self._follow(fresh)
            fresh = self.spread([*fresh, *followed])

    def _follow(self, roots: Iterable[int]) -> list[int]:
        """INFER units that are marked so, fed by a HALF unit and by no denied one, and so on."""
        painted: list[int] = []
        todo = list(roots)
        while todo:
            unit = todo.pop()
            for reader in self._graph.consumers[unit]:
                if self._may_follow(reader):
                    self._paints[reader] = Paint(Colour.HALF, Rule.FOLLOW, unit)
                    painted.append(reader)
                    todo.append(reader)
        return painted

    def _may_follow(self, unit: int) -> bool:
        entry = self._entries[unit]
        if unit in self._paints or entry.kind is not Kind.INFER or not entry.follow:
            return False
        return not any(self._is_denied(maker) for maker in self._graph.producers[unit])

    def _is_denied(self, unit: int) -> bool:
        paint = self._paints.get(unit)
        return paint is not None and paint.rule is Rule.DENY

    def spread(self, roots: Iterable[int] | None = None) -> list[int]:
        """CLEAR units connected to a HALF unit through CLEAR units, in both directions."""
        start = self._halves() if roots is None else roots
        found = reach(start, self._neighbours, self._is_clear_and_open)
        for unit, cause in found.items():
            self._paints[unit] = Paint(Colour.HALF, Rule.SPREAD, cause)
        return list(found)

    def _is_clear_and_open(self, unit: int) -> bool:
        return self._kinds[unit] is Kind.CLEAR and unit not in self._paints

    def settle(self) -> None:
        """One FULL unit makes all that is tied to it FULL; then Casts take the colour beside them."""
        full = [u for group in self._graph.ties for u in group if not self._is_half(u)]
        for unit, cause in reach(full, _Ties(self._graph.ties).of, self._is_half).items():
            self._paints[unit] = Paint(Colour.FULL, Rule.SETTLE, cause)
        for unit in self._graph.units:
            if unit.node.op_type == "Cast" and unit.node.domain == "":
                self._settle_cast(unit.index, reads=bool(unit.reads))

    def _settle_cast(self, unit: int, *, reads: bool) -> None:
        """A Cast takes what its maker gives; what it gives is HALF when all who read it are."""
        entry = self._entries[unit]
        if unit in self._paints or _is_held(entry):
            return
        beside = self._graph.producers[unit] if reads else self._graph.consumers[unit]
        borders = reads or self._is_read_inside(unit)
        if beside and borders and all(map(self._is_half, beside)):
            self._paints[unit] = Paint(Colour.HALF, Rule.SETTLE, beside[0])

    def _is_read_inside(self, unit: int) -> bool:
        return self._leaving.isdisjoint(self._graph.units[unit].makes)

    def _of(self, kind: Kind) -> Iterator[int]:
        return (unit for unit, other in enumerate(self._kinds) if other is kind)

    def _halves(self) -> list[int]:
        return [unit for unit, paint in self._paints.items() if paint.colour is Colour.HALF]

    def _is_half(self, unit: int) -> bool:
        paint = self._paints.get(unit)
        return paint is not None and paint.colour is Colour.HALF

    def _is_clear(self, unit: int) -> bool:
        return self._kinds[unit] is Kind.CLEAR

    def _producers(self, unit: int) -> Iterable[int]:
        return self._graph.producers[unit]

    def _consumers(self, unit: int) -> Iterable[int]:
        return self._graph.consumers[unit]

    def _neighbours(self, unit: int) -> Iterable[int]:
        yield from self._graph.producers[unit]
        yield from self._graph.consumers[unit]
        yield from self._tied.of(unit)


def _is_held(entry: Entry) -> bool:
    """Whether more than a list holds a unit in float32: a range, the schema, a pin or a flag."""
    asked = entry.kind is Kind.FIXED and entry.source.startswith("--")
    return asked or entry.source in (*findings.SOURCES, BY_SCHEMA, BY_PIN)


class _Ties:
    """What a unit is tied to; a group is given out once, since who asked has gone to all of it."""

    def __init__(self, ties: Sequence[tuple[int, ...]]) -> None:
        self._ties = ties
        self._groups: dict[int, list[int]] = {}
        self._given: set[int] = set()
        for group, members in enumerate(ties):
            for unit in members:
                self._groups.setdefault(unit, []).append(group)

    def of(self, unit: int) -> Iterator[int]:
        for group in self._groups.get(unit, ()):
            if group not in self._given:
                self._given.add(group)
                yield from self._ties[group]
