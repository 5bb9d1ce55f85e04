"""Propagation: the exponents that follow from what must be stored smaller, row by row in node order.

A row that does not hold is settled by one variable: a stored value that nothing else reads, within its
limits; else the one that costs the fewest Muls, rather what the node produces than what it reads. Where two
factors would serve alike, as in a product of queries and keys, each takes half. A region in which a row
cannot be settled is given up, and its values stay float32. Every change enters a heap of the rows of one
class, so that the work is linear in the rows but for the heap.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from amp_rewrite.analysis.observed import HEADROOM, Seen
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.rescaling import system as systems
from amp_rewrite.rescaling.system import FREE, Class, Limits, Row, System, Variable

HEADROOMS = (64.0, 32.0, 16.0, 8.0)
"""The factors between what was observed and half's range, the best first: other inputs may be larger."""

ATTEMPTS = 8
"""The exponents that are tried for a class: a square root needs an even one."""

_LOW_END = 4
"""The binades below 1 to which the largest element of a value may sink before its small ones lose digits."""

Exponents = Mapping[Variable, int]
"""The exponents that are not 0, by variable."""


@dataclass(frozen=True, slots=True)
class Demands:
    """The values that must fit into half, and all values that half would store, by the largest magnitude."""

    beyond: Mapping[ir.Value, float]
    halves: Mapping[ir.Value, float]


def demands(values: Iterable[ir.Value], beyond: Iterable[ir.Value], observations: Seen) -> Demands:
    """Return the demands of these values, those `beyond` half's range and all, as far as observed."""

    def largest(values: Iterable[ir.Value]) -> dict[ir.Value, float]:
        pairs = ((value, observations.get(value.name or "")) for value in values)
        return {value: seen.most for value, seen in pairs if seen is not None and seen.most > 0}

    return Demands(largest(beyond), largest(values))


def binades(most: float, headroom: float = HEADROOM) -> int:
    """Return the least exponent by which a magnitude fits into half with this headroom."""
    return math.ceil(math.log2(most * headroom / FLOAT16.largest))


def solve(system: System, wanted: Demands) -> Exponents:
    """Return exponents that meet the demands, as far as there are any."""
    solver = _Solver(system, wanted)
    for of in sorted(solver.most, key=lambda of: -solver.most[of]):
        if of not in solver.settled:
            solver.settle(of)
    return {variable: e for variable in system.variables if (e := solver.settled.get(system.of(variable), 0))}


class _StuckError(Exception):
    """A row cannot be settled."""


class _Solver:
    """The state of a propagation: exponents that are `settled`, by class."""

    def __init__(self, system: System, wanted: Demands) -> None:
        self.settled: dict[Class, int] = {}
        self.system = system
        self.most = _largest(system, wanted.beyond)
        self.rows: Sequence[Row] = system.rows
        self.rows_of: dict[Class, list[int]] = defaultdict(list)
        for at, row in enumerate(self.rows):
            for of in row.of:
                self.rows_of[of].append(at)
        self._members = systems.members(system)
        self._limits = dict(systems.class_limits(system))
        self._read: set[Class] = set()
        fitting = {value: most for value, most in wanted.halves.items() if binades(most) <= 0}
        self.floors = {of: binades(most) for of, most in _largest(system, fitting).items()}
        self.sizes = _smallest(system, {**fitting, **wanted.beyond})
        self.first = {of: self._first(variables) for of, variables in self._members.items()}
        self.muls = self._count_muls()
        self.own = self._own_factors()
        self.cost = self._cost_backwards()

    def _first(self, variables: Iterable[Variable]) -> int:
        made = self.system.made
        return max((made.get(v, -1) for v in variables if isinstance(v, ir.Value)), default=-1)

    def _count_muls(self) -> Counter[Class]:
        """Return the number of Muls that an exponent of a class takes; many for a stored value that stays."""
        system, muls = self.system, Counter[Class]()
        for value in {*system.reads, *system.produced}:
            if value in system.variables:
                muls[system.of(value)] += 1
        for variable in system.fixed:
            muls[system.of(variable)] += _NEVER
        return muls

    def _own_factors(self) -> frozenset[Class]:
        """Return the classes of stored values, or what is computed from these alone, that are in one row."""
        system = self.system
        return frozenset(
            of
            for of, variables in self._members.items()
            if len(self.rows_of.get(of, ())) == 1
            and not self.muls[of]
            and all(system.source(v) is not None or v in system.computed_once for v in variables)
        )

    def _cost_backwards(self) -> Counter[Class]:
        """Return the Muls that a change of a class takes towards the inputs: none where a stored value before
        it makes up for the change.
        """
        cost = Counter(self.muls)
        for row in sorted(self.rows, key=lambda row: row.position):
            if self.own.isdisjoint(row.of):
                made = [of for of in row.of if self.first[of] == row.position]
                read = [cost[of] for of in row.of if self.first[of] != row.position]
                for of in made if read else ():
                    cost[of] += min(read)
        return cost

    def limits(self, of: Class) -> Limits:
        """Return the limits of a class, with those of its stored values, which are read once."""
        if of not in self._read:
            self._read.add(of)
            for variable in self._members[of]:
                joint = self._limits.get(of, FREE).join(self.system.limits(variable))
                self._limits[of] = Limits(max(joint.low, self.floors.get(of, -99)), joint.high, joint.soft)
        return self._limits.get(of, FREE)

    def settle(self, of: Class) -> None:
        """Settle the region of a demand, with the most headroom that costs no low end; or give it up."""
        best: tuple[int, dict[Class, int]] | None = None
        for headroom in HEADROOMS:
            found = self._attempt(of, headroom)
            if found is not None:
                lost = self._count_lost(found)
                best = (lost, found) if best is None or lost < best[0] else best
                if not lost:
                    break
        if best is not None:
            self.settled.update(best[1])

    def _count_lost(self, exponents: Mapping[Class, int]) -> int:
        """Return the number of classes that lose their low end."""
        return sum(
            e > min(self.limits(of).soft, max(0, self.sizes.get(of, 99) + _LOW_END)) if e > 0 else False
            for of, e in exponents.items()
        )

    def _attempt(self, of: Class, headroom: float) -> dict[Class, int] | None:
        """Return the exponents of a region that meet all demands in it; None where there are none."""
        e = binades(self.most[of], headroom)
        for _ in range(ATTEMPTS):
            try:
                region = _Region(self, of, e).grow()
            except _StuckError:
                e += 1
                continue
            needs = (
                binades(self.most[each], headroom) - x for each, x in region.items() if each in self.most
            )
            missing = max(needs, default=0)
            if missing <= 0:
                return region
            e += missing
        return None


_NEVER = 1 << 20


def _largest(system: System, magnitudes: Mapping[ir.Value, float]) -> dict[Class, float]:
    by_class: dict[Class, float] = {}
    for value, most in magnitudes.items():
        if value in system.variables:
            of = system.of(value)
            by_class[of] = max(by_class.get(of, 0.0), most)
    return by_class


def _smallest(system: System, magnitudes: Mapping[ir.Value, float]) -> dict[Class, int]:
    """Return the binade of the smallest of the largest magnitudes of each class."""
    by_class: dict[Class, int] = {}
    for value, most in magnitudes.items():
        if value in system.variables:
            of = system.of(value)
            by_class[of] = min(by_class.get(of, 99), math.frexp(most)[1] - 1)
    return by_class


@dataclass(slots=True)
class _Region:
    """The classes that change with one, at exponent `e`."""

    solver: _Solver
    start: Class
    e: int
    exponents: dict[Class, int] = field(default_factory=dict[Class, int])
    _heap: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _queued: set[int] = field(default_factory=set[int])

    def grow(self) -> dict[Class, int]:
        """Return the exponents of the region; raise _StuckError where a row cannot be settled."""
        self._set(self.start, self.e)
        while self._heap:
            _, at = heapq.heappop(self._heap)
            self._queued.discard(at)
            self._settle(self.solver.rows[at])
        return self.exponents

    def _now(self, of: Class) -> int:
        return self.exponents.get(of, self.solver.settled.get(of, 0))

    def _set(self, of: Class, e: int) -> None:
        limits = self.solver.limits(of)
        if self.solver.muls[of] >= _NEVER or not limits.low <= e <= limits.high:
            raise _StuckError
        self.exponents[of] = e
        for at in self.solver.rows_of[of]:
            if at not in self._queued:
                self._queued.add(at)
                heapq.heappush(self._heap, (self.solver.rows[at].position, at))

    def _left(self, row: Row) -> int:
        return sum(coefficient * self._now(of) for of, coefficient in row.of.items())

    def _settle(self, row: Row) -> None:
        own = next((of for of in row.of if of in self.solver.own), None)
        if own is not None:
            self._adjust(row, own, lose_low_end=False)
        if left := self._left(row):
            self._change(row, left, own)
        if own is not None and self._left(row):
            self._adjust(row, own, lose_low_end=True)
        if self._left(row):
            raise _StuckError

    def _adjust(self, row: Row, own: Class, *, lose_low_end: bool) -> None:
        """Let a stored value that is in this row alone take what its limits allow."""
        left, limits = self._left(row), self.solver.limits(own)
        if left % row.of[own]:
            return
        e = self._now(own) - left // row.of[own]
        self.exponents[own] = max(limits.low, min(e, limits.high if lose_low_end else limits.soft))

    def _change(self, row: Row, left: int, own: Class | None) -> None:
        """Change the other classes of a row that are still open; nothing where only Muls would do beside a
        stored value.
        """
        solver = self.solver
        options: list[tuple[int, bool, int, Class, int]] = []
        for order, (of, coefficient) in enumerate(row.of.items()):
            if of is own or of in self.exponents or of in solver.settled or left % coefficient:
                continue
            e, limits = -left // coefficient, solver.limits(of)
            if limits.low <= e <= limits.high and solver.muls[of] < _NEVER:
                options.append((solver.cost[of], solver.first[of] < row.position, order, of, e))
        options.sort(key=lambda option: option[:3])
        if not options or (own is not None and options[0][0]):
            return
        cost, is_read, _, of, e = options[0]
        if (
            is_read
            and own is None
            and len(options) > 1
            and options[1][:2] == (cost, True)
            and options[1][4] == e
        ):
            other = options[1][3]
            self._set(other, e // 2)
            e -= e // 2
        self._set(of, e)
