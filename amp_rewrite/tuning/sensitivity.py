"""Sensitivity: how far the outputs move when a part of the model is rounded, measured by switches.

A switch is an element of an additional Boolean vector input: it selects, for some values, whether consumers
read them exact or rounded. A repair, a search, and the order of nodes after a comparison read what they
measure.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.operators.catalogue import EXACT
from amp_rewrite.policy import node_patterns
from amp_rewrite.process import executors
from amp_rewrite.rewriting.instrument import Instrument, Switches, instrument
from amp_rewrite.running import comparison, emulation, metrics, sequences, sessions
from amp_rewrite.running.emulation import SwitchedModel
from amp_rewrite.running.instrumented_model import as_file
from amp_rewrite.running.metrics import Moments, Spread
from amp_rewrite.running.sessions import LARGE, Device, Feeds, Libraries, Runnable

# Rounding places of a plan, and the sites of a search.
#
# A place is an edge from producer to consumer that rounds the value, as one of the two is half. Nodes that
# only move values, or are monotonic on them, do not round, so a site is a value with another producer,
# with all places behind it up to the next such values: their contribution to the error is one number.


class RoundingPlace(NamedTuple):
    """Consumers of a value that read it rounded if any of `units` is half: units, or None for uses outside
    units, such as the outputs of the model.
    """

    value: ir.Value
    units: tuple[int, ...]
    readers: tuple[int | None, ...]


class Site(NamedTuple):
    """A value, the units any of which in half rounds it for a consumer, and the indices of its places."""

    value: ir.Value
    units: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rounding:
    """All places and sites of a painting, also for paintings with fewer half units."""

    places: tuple[RoundingPlace, ...]
    sites: tuple[Site, ...]

    def rounded(self, painting: Painting) -> list[int]:
        """Return the indices of the places that a painting rounds."""
        return [at for at, place in enumerate(self.places) if any(map(painting.is_half, place.units))]


def find_sites(graph: UnitGraph, painting: Painting) -> Rounding:
    """Return the places and sites of a painting, in node order; sequences and optionals have none."""
    finder = _SiteFinder(graph, painting)
    return Rounding(tuple(finder.places), tuple(finder.sites()))


class _SiteFinder:
    def __init__(self, graph: UnitGraph, painting: Painting) -> None:
        self._graph, self._painting = graph, painting
        self._carriers = [_carries(graph, unit) for unit in range(len(graph.units))]
        values = dict.fromkeys((*graph.uses, *graph.producer))
        self._values = [value for value in values if isinstance(graph.types.get(value), ir.TensorType)]
        self.places = [place for value in self._values for place in self._places(value)]

    def _places(self, value: ir.Value) -> Iterator[RoundingPlace]:
        """Yield the places of a value, which its producer, unless a carrier, or a consumer may round."""
        origin = None if self._is_carried(value) else self._graph.producer.get(value)
        readers: dict[tuple[int, ...], dict[int | None, None]] = {}
        for reader in (None, *(unit for unit, _ in self._graph.uses.get(value, ()))):
            units = (unit for unit in (origin, reader) if unit is not None)
            halves = tuple(dict.fromkeys(filter(self._painting.is_half, units)))
            readers.setdefault(halves, {})[reader] = None
        yield from (
            RoundingPlace(value, units, tuple(consumers)) for units, consumers in readers.items() if units
        )

    def _is_carried(self, value: ir.Value) -> bool:
        producer = self._graph.producer.get(value)
        return producer is not None and self._carriers[producer]

    def sites(self) -> Iterator[Site]:
        """Yield the sites; a place behind several values belongs to the first of them."""
        by_value: defaultdict[ir.Value, list[int]] = defaultdict(list)
        for at, place in enumerate(self.places):
            by_value[place.value].append(at)
        origins = ((value, self._touching(value)) for value in self._values if not self._is_carried(value))
        for value, units in sorted(origins, key=lambda origin: min(origin[1])):
            behind = (v for unit in units if self._carriers[unit] for v in self._graph.units[unit].defs)
            places = [at for each in (value, *behind) for at in by_value.pop(each, ())]
            if places:
                yield Site(value, units, tuple(places))

    def _touching(self, value: ir.Value) -> tuple[int, ...]:
        """Return the producer of a value, and its consumers, directly or behind carriers."""
        graph, carriers = self._graph, self._carriers
        readers = dict.fromkeys(unit for unit, _ in graph.uses.get(value, ()))
        behind = reach(
            [unit for unit in readers if carriers[unit]],
            lambda unit: graph.successors[unit] if carriers[unit] else (),
            lambda unit: graph.units[unit].dense,
        )
        producer = graph.producer.get(value)
        return tuple(dict.fromkeys((*([] if producer is None else [producer]), *readers, *behind)))


def _carries(graph: UnitGraph, unit: int) -> bool:
    """Return whether the outputs of a unit are rounded if its inputs are."""
    node, has_inputs = graph.units[unit].node, bool(graph.units[unit].uses)
    moves = control_flow.may_have_bodies(node) or (effective_op(node) in EXACT and not node.domain)
    return has_inputs and moves


# A float32 model with a switch for every place: one session emulates any choice of half units.
#
# While a switch is on, the readers of its place read the value rounded to half, as in the emulation
# (running.emulation).


def switched(analysis: Analysis, places: Sequence[RoundingPlace]) -> SwitchedModel:
    """Edit the model of an analysis in place: add a switch for each of its places, in order."""
    half = analysis.options.half
    limits = (("Max", -half.largest), ("Min", half.largest)), (("Max", half.smallest),)
    clamped = {
        change.stored.value: limits[change.lifts]
        for change in analysis.plan.tensors
        if change.saturates or change.lifts
    }
    with instrument(analysis.loaded.model, analysis.graph.types) as points:
        switches = Switches(points, analysis.graph.root)
        for value, group in itertools.groupby(places, lambda place: place.value):
            uses = _by_reader(analysis, points, value)
            rounded = points.behind(value, _rounding(points, value, half.dtype, clamped.get(value, ())))
            for place in group:
                readers = [use for reader in place.readers for use in uses[reader]]
                points.read(readers, value, switches.choose(rounded, value))
    return SwitchedModel(analysis.loaded, switches.name, tuple(place.value for place in places))


def _by_reader(analysis: Analysis, points: Instrument, value: ir.Value) -> dict[int | None, list[Use]]:
    """Group the uses of a value by unit, with None for uses outside units."""
    units = {use: unit for unit, use in analysis.graph.uses.get(value, ())}
    uses: defaultdict[int | None, list[Use]] = defaultdict(list)
    for use in points.uses(value):
        uses[units.get(use)].append(use)
    return uses


Limits = Sequence[tuple[str, float]]
"""Operators that bound a value, each with its bound."""


def _rounding(points: Instrument, value: ir.Value, half: ir.DataType, limits: Limits) -> list[ir.Node]:
    """Return nodes that cast a value to half and back; what the plan saturates or lifts is clamped before."""
    nodes: list[ir.Node] = []
    read = value
    for operator, bound in limits:
        nodes.append(points.node(operator, (read, points.stored(np.array(bound, np.float32))), value))
        read = nodes[-1].outputs[0]
    for dtype in (half, ir.DataType.FLOAT):
        nodes.append(points.node("Cast", (read,), value, to=int(dtype)))
        read = nodes[-1].outputs[0]
    return nodes


# What rounding a part adds to the error.

SquaredError = Callable[[Sequence[int]], float]
"""A function from rounded parts to the squared error of the outputs, which may be infinite."""


class Sensitivities:
    """The squared errors that rounding each of `count` parts adds, by splitting groups of parts.

    Squared errors add up: that of a group is the sum over its halves, so that one run measures both. `errors`
    are those of the parts, of which the parts of a group have the same.
    """

    def __init__(self, measure: SquaredError, count: int) -> None:
        self._measure, self.errors = measure, [0.0] * count
        self._groups: list[tuple[float, tuple[int, ...]]] = []
        if count:
            self._add(tuple(range(count)), measure(range(count)))

    def refine(self, fits: float, may_go_on: Callable[[], bool]) -> None:
        """Split the largest group until all but single parts have a total of at most `fits`, or the runs are
        used up. One that overflows has an infinite error, and is split to the end.
        """
        while self._groups and may_go_on() and -sum(error for error, _ in self._groups) > fits:
            error, group = heapq.heappop(self._groups)
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            if first:
                left = self._measure(first)
                right = -error - left
                is_told = math.isfinite(error) and right > _TOLD * -error
                self._add(first, left)
                self._add(second, right if is_told else self._measure(second))

    def _add(self, group: tuple[int, ...], error: float) -> None:
        for part in group:
            self.errors[part] = error / len(group)
        heapq.heappush(self._groups, (-error, group))


_TOLD = 0.1
"""The share of a group's error above which the difference is accurate: sums hold within a tenth."""


# The error that rounding at each node of a half model adds.

MOST_RUNS = 64
"""The most runs; afterwards values that are not measured separately share the error of their group."""

_FITS = 0.01
"""The share of the squared error that may belong to values not measured separately."""


def by_node(
    original: Runnable, rewritten: Runnable, feeds: Feeds, libraries: Libraries = ()
) -> Mapping[str, float] | None:
    """Return the output error (Metrics.error) that rounding at each node of the rewritten model adds, by
    name; rounding in bodies counts for their node. Infinite if an output becomes non-finite. Rounding of
    initializers is not included. Runs on the CPU with emulated half; None for a model that is too large or
    does not run that way.
    """
    model = emulation.switched_emulation(rewritten)
    if model.loaded.size > LARGE:
        return None
    try:
        with opened(original, model, (feeds,), 1.0, libraries=libraries) as session:
            found = Sensitivities(session.above_noise, len(model.values))
            whole = sum(found.errors)
            fits = whole * _FITS if math.isfinite(whole) else 0.0
            found.refine(fits, lambda: session.runs < MOST_RUNS)
    except (ModelError, FeedError):
        return None
    squared: defaultdict[str, float] = defaultdict(float)
    owners = _owners(model.loaded.model.graph)
    for value, error in zip(model.values, found.errors, strict=True):
        if node := owners.get(graph_of(value), value.producer()):
            squared[node_patterns.pinned_as(node)] += error
    return {name: math.sqrt(error) for name, error in squared.items()}


def _owners(root: ir.Graph) -> dict[ir.Graph, ir.Node]:
    """Map all nested graphs to the node of the main graph that has them."""
    return {inner: node for node in root for body in control_flow.bodies(node) for inner in graphs(body)}


# Runs of a model with switches: the output error for any set of rounded places.


@dataclass(frozen=True, slots=True)
class Expected:
    """A sample, the float32 outputs of its steps, and the spreads of the float ones; each array of a sequence
    or map counts as an output.
    """

    feeds: Feeds
    outputs: Sequence[Mapping[str, NDArray[Any]]]
    spreads: Mapping[str, Spread]

    def error(self, session: Any, switches: Mapping[str, NDArray[np.bool_]]) -> float:
        """Run a session with these switches, and return the error of the worst output.

        That of a float output is the error of a verdict: the RMS of the difference over the spread, at least
        metrics.SMALLEST; of others, it is the share of different values.
        """
        sample = sequences.changed(self.feeds, lambda step: {**step, **switches})
        pairs = zip(self.outputs, _arrays(sessions.run_session(session, sample)), strict=True)
        errors = (
            _error(self.spreads.get(name), value, actual[name])
            for expected, actual in pairs
            for name, value in expected.items()
            if name in actual
        )
        return max(errors, default=0.0)


def _error(spread: Spread | None, reference: NDArray[Any], result: NDArray[Any]) -> float:
    if reference.shape != result.shape:
        return math.inf
    if spread is None:
        return float(np.mean(reference != result)) if reference.size else 0.0
    finite = np.isfinite(reference)
    if not np.isfinite(result[finite]).all():
        return math.inf
    return spread.error(metrics.differences(reference, result, (spread.axis,)), metrics.SMALLEST)[0]


def _expect(samples: Sequence[Feeds], outputs: Iterable[Mapping[str, Any]], apart: int) -> list[Expected]:
    """Return the samples with their outputs; the last ones, `apart`, have a spread each."""
    steps = [_arrays(each) for each in outputs]
    together = len(samples) - apart
    common = _spreads(step for each in steps[:together] for step in each)
    spreads = [common] * together + [_spreads(each) for each in steps[together:]]
    return [Expected(*each) for each in zip(samples, steps, spreads, strict=True)]


def _spreads(steps: Iterable[Mapping[str, NDArray[Any]]]) -> dict[str, Spread]:
    """Return the spread of each float output over these steps."""
    moments: defaultdict[str, list[Moments]] = defaultdict(list)
    for step in steps:
        for name, value in step.items():
            if metrics.is_float(value):
                moments[name].append(metrics.moments(value))
    return {name: metrics.spread(samples) for name, samples in moments.items()}


def _arrays(outputs: Mapping[str, Any]) -> list[dict[str, NDArray[Any]]]:
    """Return the outputs of each step by name."""
    return [dict(comparison.arrays(step)) for step in sequences.by_step(outputs)]


class SwitchedSession:
    """A cache of measured errors by what is rounded; `runs` counts the measurements, on all samples each.

    `errors` returns the error of each sample for a vector of `count` switches; `bound` is that of the target.
    """

    def __init__(
        self, errors: Callable[[NDArray[np.bool_]], Iterable[float]], count: int, bound: float
    ) -> None:
        self._errors, self._count, self._bound = errors, count, bound
        self.runs = 0
        self._known: dict[tuple[int, ...], float] = {}

    def squared(self, switches: Iterable[int]) -> float:
        """Return the squared error of the worst sample with these on, over the square of the target."""
        key = tuple(sorted(switches))
        if key not in self._known:
            self.runs += 1
            vector = np.zeros(self._count, bool)
            vector[list(key)] = True
            self._known[key] = (max(self._errors(vector), default=0.0) / self._bound) ** 2
        return self._known[key]

    def above_noise(self, switches: Iterable[int]) -> float:
        """Return the squared error above that of float32."""
        return max(self.squared(switches) - self.squared(()), 0.0)


@contextlib.contextmanager
def opened(
    original: Runnable,
    model: SwitchedModel,
    samples: Sequence[Feeds],
    bound: float,
    executor: Executor | None = None,
    libraries: Libraries = (),
    apart: int = 0,
) -> Generator[SwitchedSession]:
    """Yield a CPU session, or one for each worker of an executor with a sample per task, for use within the
    context. Computes the outputs of the original first. The last samples, `apart`, are judged each by itself.

    Raises ModelError and RunError if the original does not run.
    """
    with emulation.reference(original, Device.CPU, libraries) as baseline:
        outputs = [
            sessions.run_session(baseline.session, sample, where=f"samples[{at}]")
            for at, sample in enumerate(samples)
        ]
    expected = _expect(samples, outputs, apart)
    with emulation.runnable(model.loaded) as runnable:
        if executor is None:
            session = sessions.open_session(runnable, Device.CPU, libraries)
            yield SwitchedSession(
                lambda vector: (each.error(session, {model.switches: vector}) for each in expected),
                len(model.values),
                bound,
            )
            return
        with as_file(runnable) as file:

            def measure(vector: NDArray[np.bool_]) -> Iterable[float]:
                tasks = ((file, libraries, each, {model.switches: vector}) for each in expected)
                return executors.results(executor, _measure_in_worker, tasks)

            yield SwitchedSession(measure, len(model.values), bound)


def _measure_in_worker(
    model: Path, libraries: Libraries, expected: Expected, switches: Mapping[str, NDArray[np.bool_]]
) -> float:
    return expected.error(_session(model, libraries), switches)


@functools.lru_cache(maxsize=1)
def _session(model: Path, libraries: Libraries) -> Any:
    return sessions.open_session(model, Device.CPU, libraries)
