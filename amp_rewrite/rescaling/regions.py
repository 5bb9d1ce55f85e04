"""Regions: the exponents that follow from what must be stored smaller or larger, row by row in node order.

A row that does not hold is settled by one variable: a stored value that nothing else reads, within its
limits; else the one that costs the fewest Muls, rather what the node produces than what it reads. Where two
factors would serve alike, as in a product of queries and keys, each takes half. A region in which a row
cannot be settled is given up, and its values stay float32. Every change enters a heap of the rows of one
class, so that the work is linear in the rows but for the heap.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.observed import HEADROOM
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.rescaling.system import FREE, Limits, Row, System, Variable, limits_of_epsilon

HEADROOMS = (64.0, 32.0, 16.0, 8.0)
"""The factors between what was observed and half's range, the best first: other inputs may be larger."""

ATTEMPTS = 8
"""The exponents that are tried for a class: a square root needs an even one."""

TRIALS, LARGEST = 8, 20_000
"""The trials of regions, each a decision or a comparison; and the units of a model up to which times decide
on single regions.
"""

_LOW_END = 4
"""The binades below 1 to which the largest element of a value may sink before its small ones lose digits."""
_RAISED = 2.0**-10
"""The largest element of a value that is too small is stored at least a headroom above this."""
_NEVER = 1 << 20
"""The Muls for a stored value that stays as it is."""

Exponents = Mapping[Variable, int]
"""The exponents that are not 0, by variable."""
Causes = tuple[str, ...]
"""The names of the values that caused a region."""
Magnitudes = Mapping[ir.Value, float]
"""The largest observed magnitudes of values."""


def binades(most: float, headroom: float = HEADROOM) -> int:
    """Return the least exponent by which a magnitude fits into half with this headroom."""
    return math.ceil(math.log2(most * headroom / FLOAT16.largest))


def solve(system: System, demanded: Magnitudes, halves: Magnitudes) -> Iterator[Exponents]:
    """Yield regions: exponents by which the `demanded` values, too large or too small for half, fit into it,
    as far as there are any, and those in `halves` still do.
    """
    solver = _Solver(system, demanded, halves)
    for of in sorted(solver.demanded, key=lambda of: -solver.demanded[of]):
        if of not in solver.solution:
            solver.settle(of)
    yield from solver.regions()


def select(regions: Sequence[Causes], accepts: Callable[[Sequence[Causes]], bool]) -> Sequence[Causes]:
    """Return the regions that are accepted together, tried by halves; all of them were not accepted.

    At most TRIALS are made: what is left then is not taken.
    """
    selected: list[Causes] = []
    pending = deque(_halves(regions))
    for _ in range(TRIALS):
        if not pending:
            break
        group = pending.popleft()
        if accepts([*selected, *group]):
            selected.extend(group)
        else:
            pending.extendleft(reversed(_halves(group)))
    return selected


def causes_outside(selected: Collection[Causes], regions: Iterable[Causes]) -> tuple[str, ...]:
    """Return the names of the values that caused the regions which are not selected."""
    return tuple(name for region in regions if region not in selected for name in region)


def _halves(regions: Sequence[Causes]) -> Sequence[Sequence[Causes]]:
    middle = len(regions) // 2
    return (regions[:middle], regions[middle:]) if middle else ()


class _StuckError(Exception):
    """A row cannot be settled."""


class _Solver:
    """The state of the growth of regions: the `solution` has exponents by class, and `demanded` the largest
    magnitudes that do not fit.
    """

    def __init__(self, system: System, demanded: Magnitudes, halves: Magnitudes) -> None:
        self.solution: dict[Variable, int] = {}
        self.system = system
        self.demanded, _ = self._extremes(demanded)
        fitting = {value: most for value, most in halves.items() if binades(most) <= 0}
        self._largest, _ = self._extremes(fitting)
        _, self._smallest = self._extremes({**fitting, **demanded})
        self.rows_of: dict[Variable, list[int]] = defaultdict(list)
        for at, row in enumerate(system.rows):
            for of in row.of:
                self.rows_of[of].append(at)
        self._members: dict[Variable, list[Variable]] = defaultdict(list)
        for variable in system.variables:
            self._members[system.of(variable)].append(variable)
        self._limits: dict[Variable, Limits] = {}
        self._norms: dict[Variable, Limits] = {}
        for node, data in system.norms:
            of = system.of(data)
            self._norms[of] = self._norms.get(of, FREE).join(limits_of_epsilon(node))
        positions = system.positions
        self.first = {
            of: max((positions.get(each, -1) for each in variables if isinstance(each, ir.Value)), default=-1)
            for of, variables in self._members.items()
        }
        self.muls = Counter(
            system.of(value) for value in {*system.reads, *system.produced} & {*system.variables}
        )
        self.muls.update(dict.fromkeys(map(system.of, system.fixed), _NEVER))
        self.own = {of for of in self._members if self._is_own_factor(of)}
        self.cost = self._cost_backwards()

    def _extremes(self, magnitudes: Magnitudes) -> tuple[dict[Variable, float], dict[Variable, float]]:
        """Return the largest and the smallest of the magnitudes of each class."""
        most, least, system = dict[Variable, float](), dict[Variable, float](), self.system
        for variable in system.variables:
            size = magnitudes.get(system.value(variable))
            if size is not None:
                of = system.of(variable)
                most[of], least[of] = max(most.get(of, size), size), min(least.get(of, size), size)
        return most, least

    def _is_own_factor(self, of: Variable) -> bool:
        """Return whether a class has stored values alone, or what these make, and one row; and no demand."""
        if len(self.rows_of.get(of, ())) != 1 or self.muls[of] or of in self.demanded:
            return False
        constants, varying = self.system.constants, self.system.varying
        values = map(self.system.value, self._members[of])
        return all(value in constants or (value.producer() and value not in varying) for value in values)

    def _cost_backwards(self) -> Counter[Variable]:
        """Return the Muls that a change of a class takes towards the inputs: none where a stored value before
        it makes up for the change.
        """
        cost = Counter(self.muls)
        for row in sorted(self.system.rows, key=lambda row: row.position):
            if self.own.isdisjoint(row.of):
                outputs = [of for of in row.of if self.first[of] == row.position]
                inputs = [cost[of] for of in row.of if self.first[of] != row.position]
                cost.update({of: min(inputs) for of in outputs if inputs})
        return cost

    def limits(self, of: Variable) -> Limits:
        """Return the limits of a class: of its norms and its stored values, and not to overflow half."""
        if of not in self._limits:
            low = binades(self._largest[of]) if of in self._largest else -99
            joint = self._norms.get(of, FREE).join(FREE._replace(low=low))
            for variable in self._members[of]:
                joint = joint.join(self.system.limits(variable))
            self._limits[of] = joint
        return self._limits[of]

    def settle(self, start: Variable) -> None:
        """Settle the region of a demand, with the most headroom that costs no low end; or give it up."""
        regions = list[tuple[int, dict[Variable, int]]]()
        for headroom in HEADROOMS:
            region = self._attempt(start, headroom)
            if region is not None:
                regions.append((sum(self._loses_low_end(of, e) for of, e in region.items()), region))
                if not regions[-1][0]:
                    break
        if regions:
            self.solution.update(min(regions, key=lambda each: each[0])[1])

    def _loses_low_end(self, of: Variable, e: int) -> bool:
        smallest = math.frexp(self._smallest[of])[1] - 1 if of in self._smallest else 99
        return e > 0 and e > min(self.limits(of).soft, max(0, smallest + _LOW_END))

    def regions(self) -> Iterator[Exponents]:
        """Yield the exponents of the variables in each region, classes that have rows in common; all in the
        order of the model.
        """
        changed = {of for of, e in self.solution.items() if e}
        region_of: dict[Variable, dict[Variable, int]] = {}
        for variable in self.system.variables:
            start = self.system.of(variable)
            if start in changed and start not in region_of:
                region, connected = dict[Variable, int](), [start]
                for of in connected:
                    if of not in region_of:
                        region_of[of] = region
                        rows = (self.system.rows[at] for at in self.rows_of[of])
                        connected += [other for row in rows for other in row.of if other in changed]
            if start in region_of:
                region_of[start][variable] = self.solution[start]
        yield from {id(region): region for region in region_of.values()}.values()

    def need(self, of: Variable, headroom: float) -> int:
        """Return the exponent that brings a class into half's range with this headroom, nearest to 0."""
        most = self.demanded[of]
        return (
            binades(most, headroom)
            if binades(most) > 0
            else math.floor(math.log2(most / (_RAISED * headroom)))
        )

    def _attempt(self, start: Variable, headroom: float) -> dict[Variable, int] | None:
        """Return the exponents of a region that meet all demands in it; None where there are none."""
        e = self.need(start, headroom)
        sign = 1 if e > 0 else -1
        for _ in range(ATTEMPTS):
            missing = 1
            try:
                region = _Region(self, start, e).exponents
            except _StuckError:
                region = {}
            else:
                needs = {of: self.need(of, headroom) for of in region if of in self.demanded}
                if any(need * region[of] < 0 for of, need in needs.items()):
                    return None  # what is too small would be smaller
                missing = max((need - region[of]) * sign for of, need in needs.items() if need * sign > 0)
            if missing <= 0:
                return region
            e += missing * sign
        return None


class _Region:
    """The classes that change with one, `start`, at exponent `e`: raises _StuckError where there are none."""

    def __init__(self, solver: _Solver, start: Variable, e: int) -> None:
        self._solver = solver
        self.exponents: dict[Variable, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._set(start, e)
        while self._heap:
            _, at = heapq.heappop(self._heap)
            self._queued.discard(at)
            self._settle(solver.system.rows[at])

    def _now(self, of: Variable) -> int:
        return self.exponents.get(of, self._solver.solution.get(of, 0))

    def _may_be(self, of: Variable, e: int) -> bool:
        limits = self._solver.limits(of)
        return limits.low <= e <= limits.high and self._solver.muls[of] < _NEVER

    def _set(self, of: Variable, e: int) -> None:
        if not self._may_be(of, e):
            raise _StuckError
        self.exponents[of] = e
        for at in self._solver.rows_of[of]:
            if at not in self._queued:
                self._queued.add(at)
                heapq.heappush(self._heap, (self._solver.system.rows[at].position, at))

    def _sum(self, row: Row) -> int:
        return sum(coefficient * self._now(of) for of, coefficient in row.of.items())

    def _settle(self, row: Row) -> None:
        own = next((of for of in row.of if of in self._solver.own), None)
        if own is not None:
            self._adjust(row, own, self._solver.limits(own).soft)
        if rest := self._sum(row):
            self._change(row, rest, own)
        if own is not None:
            self._adjust(row, own, self._solver.limits(own).high)  # its low end is given up
        if self._sum(row):
            raise _StuckError

    def _adjust(self, row: Row, own: Variable, most: int) -> None:
        """Let a stored value that is in this row alone take what its limits allow."""
        change, rest = divmod(self._sum(row), row.of[own])
        if change and not rest:
            self.exponents[own] = max(self._solver.limits(own).low, min(self._now(own) - change, most))

    def _change(self, row: Row, rest: int, own: Variable | None) -> None:
        """Change the cheapest open class of a row, or two alike; none where only Muls would do beside a
        stored value.
        """
        solver = self._solver
        options = [
            ((solver.cost[of], solver.first[of] < row.position), -rest // coefficient, of)
            for of, coefficient in row.of.items()
            if of is not own and of not in self.exponents and of not in solver.solution
            if rest % coefficient == 0 and self._may_be(of, -rest // coefficient)
        ]
        options.sort(key=lambda option: option[0])
        if not options or (own is not None and options[0][0][0]):
            return
        (price, e, of), *others = options
        if own is None and price[1] and others and others[0][:2] == (price, e):
            self._set(others[0][2], e // 2)
            e -= e // 2
        self._set(of, e)
