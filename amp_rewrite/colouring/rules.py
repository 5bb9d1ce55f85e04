"""The rules of colouring: HALF or FULL for every unit, with the deciding rule and the unit that caused it.

| rule    | paints                                                | walks                                  |
|---------|-------------------------------------------------------|----------------------------------------|
| allow   | ALLOW units HALF                                      |                                        |
| deny    | DENY units FULL, and suspect units behind them        | forward through CLEAR and INFER        |
| between | INFER and CLEAR units between two ALLOW units HALF    | forward and back through such units    |
| lead    | weight-derived CLEAR and marked INFER units HALF      | back from HALF units                   |
| follow  | marked INFER units HALF that no denied unit feeds     | forward from HALF units                |
| spread  | CLEAR units HALF                                      | both ways, and ties, from HALF units   |
| unpinned| INFER, weight-derived and CLEAR units that are HALF   | both ways through CLEAR units          |
|         | without pins HALF, so that a pin keeps its node alone |                                        |
| settle  | idioms FULL, units tied to a FULL unit FULL; Casts as | ties, weights and data of one kernel;  |
|         | all their neighbours                                  | then one step to each side             |
| left    | all others FULL                                       |                                        |

A rule never repaints a unit; only `settle` makes HALF units FULL, and afterwards the rules `prune` and `gate`
(pruning). `follow` and `spread` alternate to a fixed point. The rules are TensorFlow Grappler's
auto_mixed_precision passes, except `lead`, which is ours, and `follow`, which Grappler has for bfloat16
alone; where units follow, `deny` ends at operators with bounded results, such as Sin.

Keeping more units in float32 never makes a unit HALF (but see pruning): `deny` goes by the kinds from the
lists, so a pin or a finding does not change the units that it paints (Entry.unheld), and all other rules are
monotonic in the HALF units.
Lists, schemas and missing half kernels of the target are no such pins: a FIXED unit ends the paths of `deny`,
as in Grappler, and an override to FIXED may make the producer of a unit HALF.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule, Ties, edges_of
from amp_rewrite.model.dataflow import varying_values
from amp_rewrite.operators.catalogue import BOUNDED
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.policy.options import Level


def paint(
    graph: UnitGraph,
    entries: Sequence[Entry],
    unpinned: Iterable[int] = (),
    *,
    follow: bool = True,
    level: Level = Level.DEFAULT,
) -> Painting:
    """Paint all units; `unpinned` are those that are HALF without pins. Linear in the number of edges.

    Total: any graph and any entries have a painting.
    """
    rules = _Rules(graph, entries, follow=follow)
    rules.paint(Rule.ALLOW, rules.allowed())
    if level is not Level.UNSAFE_FORCE_ALL:
        rules.paint(Rule.DENY, rules.denied())
    rules.paint(Rule.BETWEEN, rules.between())
    if follow:
        rules.paint(Rule.LEAD, rules.leading())
    rules.follow_and_spread(follow=follow)
    rules.paint(Rule.UNPINNED, rules.unpinned(unpinned))
    rules.settle_idioms()
    rules.settle_types()
    rules.settle_casts()
    return Painting(rules.finish(), tuple(entries))


_Found = Mapping[int, int | None]
"""The units that a rule would paint, each with its cause."""


class _Rules:
    def __init__(self, graph: UnitGraph, entries: Sequence[Entry], *, follow: bool) -> None:
        self._graph = graph
        self._entries = entries
        self._kinds = [entry.taken_as for entry in entries]
        self._listed = [entry.unheld or entry.taken_as for entry in entries]
        self._paints: dict[int, Paint] = {}
        self._tied = Ties(graph.ties)
        self._producers, self._consumers = graph.predecessors.__getitem__, graph.successors.__getitem__
        self._bounded = frozenset(_bounded(graph, self._listed) if follow else ())

    def paint(self, rule: Rule, causes: _Found) -> list[int]:
        """Paint the units that no earlier rule has painted, and return them."""
        fresh = [unit for unit in causes if unit not in self._paints]
        colour = Colour.FULL if rule is Rule.DENY else Colour.HALF
        self._paints.update((unit, Paint(colour, rule, causes[unit])) for unit in fresh)
        return fresh

    def finish(self) -> tuple[Paint, ...]:
        default = Paint(Colour.FULL, Rule.LEFT)
        return tuple(self._paints.get(i, default) for i in range(len(self._kinds)))

    def allowed(self) -> _Found:
        return dict.fromkeys(_positions(self._kinds, Kind.ALLOW))

    def denied(self) -> _Found:
        """Return the DENY units, and the units on forward paths from these, through CLEAR and INFER, to an
        INFER or DENY unit. A pinned unit counts by its former kind: pins do not change the suspect units.
        """
        roots = list(_positions(self._listed, Kind.DENY))
        suspects = [*_positions(self._listed, Kind.INFER), *roots]
        leading = {*suspects, *reach(suspects, self._producers, self._is_listed_clear)}

        def suspect(unit: int) -> Iterable[int]:
            return () if unit in self._bounded else self._consumers(unit)

        result: dict[int, int | None] = {**reach(roots, suspect, leading.__contains__)}
        return {**result, **dict.fromkeys(roots)}

    def between(self) -> _Found:
        roots = list(_positions(self._kinds, Kind.ALLOW))
        after = reach(roots, self._consumers, self._is_open)
        return reach(roots, self._producers, after.__contains__)

    def leading(self) -> _Found:
        derived = _weight_derived(self._graph, self._entries)

        def leads(unit: int) -> bool:
            entry = self._entries[unit]
            return unit in derived and self._is_open(unit) and (entry.kind is Kind.CLEAR or entry.follow)

        return reach(self._halves(), self._producers, leads)

    def follow_and_spread(self, *, follow: bool) -> None:
        """Alternate both rules to a fixed point: units also follow through CLEAR units."""
        entering = (alike.result for alike in self._graph.alike if follow and alike.enters)
        self.paint(Rule.FOLLOW, dict.fromkeys(filter(self._is_open, entering)))
        fresh = self._halves()
        while fresh:
            followers = reach(fresh, self._consumers, self._follows) if follow else {}
            fresh = [*fresh, *self.paint(Rule.FOLLOW, followers)]
            fresh = self.paint(Rule.SPREAD, reach(fresh, self._neighbours, self._is_clear_and_open))

    def unpinned(self, halves: Iterable[int]) -> _Found:
        """Return the units that are HALF without pins, and the movers of data to or from them.

        A mover between FULL units takes their type.
        """
        open_units = frozenset(filter(self._is_open, halves))
        derived = _weight_derived(self._graph, self._entries) if open_units else ()
        roots = [u for u in sorted(open_units) if self._kinds[u] is Kind.INFER or u in derived]
        moving = open_units.difference(roots)
        return dict.fromkeys((*roots, *reach(roots, self._neighbours, moving.__contains__)))

    def settle_idioms(self) -> None:
        """Paint FULL the units that stand for an idiom, after they have passed on its colour."""
        standing = [unit for unit in self._halves() if self._entries[unit].stands_as is not None]
        origins: dict[int | None, int | None] = {}
        for unit in standing:  # in the order of painting: each after its cause
            cause = self._paints.pop(unit).cause
            origins[unit] = unit if cause is None else origins.get(cause, cause)
        for unit, paint in self._paints.items() if standing else ():
            if paint.cause in origins:
                self._paints[unit] = Paint(paint.colour, paint.rule, origins[paint.cause])

    def settle_types(self) -> None:
        """Paint FULL every unit that is tied to a FULL one, and match the weights to their data, where a
        runtime fuses both into one node of one type.

        FULL weights make the producer of the data FULL; then data that are FULL, or that any consumer reads
        as FULL (both read one Cast, which is not fused), make the weights FULL. Statistics that are forced to
        half have no Cast before them.
        """
        self._fill((unit for group in self._graph.ties for unit in group), {})
        groups = self._graph.alike
        producers = edges_of((unit, alike.producer) for alike in groups for unit in alike.weights)
        self._fill(producers, producers)
        weights = edges_of(
            (reader, unit)
            for alike in groups
            for reader in (alike.producer, *(() if self._is_half(alike.result) else alike.beside))
            for unit in alike.weights
        )
        inputs = [alike for alike in groups if alike.producer is None and not alike.enters]
        results = [alike for alike in groups if alike.leaves and not self._is_half(alike.result)]
        for alike in (*inputs, *results):
            self._paint_full({unit: alike.result for unit in alike.weights if self._is_half(unit)})
        self._fill((*weights, *producers), weights)

    def _fill(self, units: Iterable[int], edges: Mapping[int, Sequence[int]]) -> None:
        """Paint FULL the HALF units reachable, by these edges and by ties, from the FULL ones in `units`."""
        ties = Ties(self._graph.ties)
        full = [unit for unit in units if not self._is_half(unit)]
        self._paint_full(reach(full, lambda unit: (*edges.get(unit, ()), *ties.of(unit)), self._is_half))

    def _paint_full(self, causes: Mapping[int, int]) -> None:
        for unit, cause in causes.items():
            self._paints[unit] = Paint(Colour.FULL, Rule.SETTLE, cause)

    def settle_casts(self) -> None:
        """Paint the types of Casts: the input as its producer, the output HALF if all its consumers are."""
        leaving = frozenset(self._graph.root.outputs)
        for cast in self._graph.units_of("Cast"):
            beside = self._producers(cast.index) if cast.uses else self._consumers(cast.index)
            is_inner = bool(cast.uses) or leaving.isdisjoint(cast.defs)
            is_open = is_inner and not _is_held(self._entries[cast.index])
            if beside and is_open and all(map(self._is_half, beside)):
                self.paint(Rule.SETTLE, {cast.index: beside[0]})

    def _is_open(self, unit: int) -> bool:
        return unit not in self._paints and self._kinds[unit] in (Kind.INFER, Kind.CLEAR)

    def _is_clear_and_open(self, unit: int) -> bool:
        return self._kinds[unit] is Kind.CLEAR and unit not in self._paints

    def _is_listed_clear(self, unit: int) -> bool:
        return self._listed[unit] is Kind.CLEAR

    def _follows(self, unit: int) -> bool:
        """Return True for a unit that may follow a HALF one: open, marked, and with no denied producer."""
        marked = self._entries[unit].follow and self._is_open(unit)
        return marked and not any(map(self._is_denied, self._graph.predecessors[unit]))

    def _is_denied(self, unit: int) -> bool:
        paint = self._paints.get(unit)
        return paint is not None and paint.rule is Rule.DENY and unit not in self._bounded

    def _halves(self) -> list[int]:
        return [unit for unit, paint in self._paints.items() if paint.colour is Colour.HALF]

    def _is_half(self, unit: int) -> bool:
        paint = self._paints.get(unit)
        return paint is not None and paint.colour is Colour.HALF

    def _neighbours(self, unit: int) -> Iterable[int]:
        yield from self._producers(unit)
        yield from self._consumers(unit)
        yield from self._tied.of(unit)


def _bounded(graph: UnitGraph, kinds: Sequence[Kind]) -> Iterator[int]:
    """Return the units of bounded operators that are not denied themselves."""
    units = graph.units_of(*sorted(BOUNDED))
    return (unit.index for unit in units if kinds[unit.index] is not Kind.DENY)


def _weight_derived(graph: UnitGraph, entries: Sequence[Entry]) -> frozenset[int]:
    """Return the CLEAR and INFER units whose float32 inputs are stored values or outputs of other such units.

    The magnitude of their values is known from what is stored, unlike that of a model input. Units whose
    values are the same in every run are excluded: a runtime computes them once, and float32 costs nothing.
    """
    entering = frozenset(graph.root.inputs)
    varying, derived = None, set[int]()
    for unit in graph.units:
        if (
            (entries[unit.index].taken_as in (Kind.CLEAR, Kind.INFER) or _is_inside(graph, unit.index))
            and derived.issuperset(graph.predecessors[unit.index])
            and entering.isdisjoint(map(value_of, unit.uses))
        ):
            varying = varying_values(graph.nodes) if varying is None else varying  # few models need it
            if not varying.isdisjoint(unit.node.outputs):
                derived.add(unit.index)
    return frozenset(derived)


def _is_inside(graph: UnitGraph, unit: int) -> bool:
    """Whether a unit is an inner part of an idiom."""
    return unit in graph.spelled and graph.spelled[unit].part is Part.INNER


def _positions(kinds: Iterable[Kind], kind: Kind) -> Iterator[int]:
    return (unit for unit, other in enumerate(kinds) if other is kind)


def _is_held(entry: Entry) -> bool:
    """Whether more than a list keeps a unit in float32."""
    return entry.kind is Kind.FIXED and entry.authority is not Authority.LIST
