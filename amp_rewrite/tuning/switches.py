"""Switches in a float32 model: an additional Boolean vector input selects, for some values, whether consumers
read them exact or rounded. Bodies read the vector from the outer scope.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.process import executors
from amp_rewrite.rewriting.instrument import Instrument, Switches, instrument
from amp_rewrite.running import comparison, emulation, metrics, sequences, sessions
from amp_rewrite.running.emulation import KEEP_ROUNDED, SwitchedModel
from amp_rewrite.running.metrics import Moments, Spread
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

# Rounding places of a plan, and the sites of a search.
#
# A place is an edge from producer to consumer that rounds the value, as one of the two is half. Nodes that
# only move values, or are monotonic on them, do not round, so a site is a value with another producer,
# with all places behind it up to the next such values: their contribution to the error is one number.


class Place(NamedTuple):
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

    places: tuple[Place, ...]
    sites: tuple[Site, ...]

    def rounded(self, painting: Painting) -> list[int]:
        """Return the indices of the places that a painting rounds."""
        return [at for at, place in enumerate(self.places) if any(map(painting.is_half, place.units))]


def find(graph: UnitGraph, painting: Painting) -> Rounding:
    """Return the places and sites of a painting, in node order; sequences and optionals have none."""
    finder = _Finder(graph, painting)
    return Rounding(tuple(finder.places), tuple(finder.sites()))


class _Finder:
    def __init__(self, graph: UnitGraph, painting: Painting) -> None:
        self._graph, self._painting = graph, painting
        self._carriers = [_carries(graph, unit) for unit in range(len(graph.units))]
        values = (v for v in dict.fromkeys((*graph.uses, *graph.producer)) if _is_tensor(graph, v))
        self._values = tuple(values)
        self.places = [place for value in self._values for place in self._places(value)]

    def _places(self, value: ir.Value) -> Iterator[Place]:
        """Yield the places of a value, which its producer, unless a carrier, or a consumer may round."""
        producer = self._origin(value)
        readers: dict[tuple[int, ...], dict[int | None, None]] = {}
        for reader in (None, *(unit for unit, _ in self._graph.uses.get(value, ()))):
            units = (unit for unit in (producer, reader) if unit is not None)
            halves = tuple(dict.fromkeys(filter(self._painting.is_half, units)))
            readers.setdefault(halves, {})[reader] = None
        yield from (Place(value, units, tuple(consumers)) for units, consumers in readers.items() if units)

    def _origin(self, value: ir.Value) -> int | None:
        producer = self._graph.producer.get(value)
        return None if producer is None or self._carriers[producer] else producer

    def sites(self) -> Iterator[Site]:
        """Yield the sites; a place behind several values belongs to the first of them."""
        by_value: dict[ir.Value, list[int]] = {}
        for at, place in enumerate(self.places):
            by_value.setdefault(place.value, []).append(at)
        origins = (value for value in self._values if not self._is_carried(value))
        touching = sorted(((value, self._touching(value)) for value in origins), key=_first_unit)
        for value, units in touching:
            behind = (v for unit in units if self._carriers[unit] for v in self._graph.units[unit].defs)
            places = [at for each in (value, *behind) for at in by_value.pop(each, ())]
            if places:
                yield Site(value, units, tuple(places))

    def _is_carried(self, value: ir.Value) -> bool:
        producer = self._graph.producer.get(value)
        return producer is not None and self._carriers[producer]

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


def _first_unit(entry: tuple[ir.Value, tuple[int, ...]]) -> int:
    return min(entry[1])


def _is_tensor(graph: UnitGraph, value: ir.Value) -> bool:
    return isinstance(graph.types.get(value), ir.TensorType)


def _carries(graph: UnitGraph, unit: int) -> bool:
    """Return whether the outputs of a unit are rounded if its inputs are."""
    node, has_inputs = graph.units[unit].node, bool(graph.units[unit].uses)
    moves = control_flow.may_have_bodies(node) or (effective_op(node) in KEEP_ROUNDED and not node.domain)
    return has_inputs and moves


# A float32 model with a switch for every place: one session emulates any choice of half units.
#
# While a switch is on, the readers of its place read the value rounded to half, as in the emulation
# (running.emulation).


def switched(analysis: Analysis, places: Sequence[Place]) -> SwitchedModel:
    """Edit the model of an analysis in place: add a switch for each of its places, in order."""
    analysis.state.is_edited = True
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


# Runs of a model with switches: the output error for any set of rounded sites.


class Target:
    """The float32 outputs for some samples, and the bound on the error relative to them.

    The error of a float output is that of a verdict: the RMS of the difference over the spread in all samples
    (metrics.spread), at least metrics.SMALLEST; of others, it is the share of different values. Each
    array of a sequence or map counts as an output. The last samples, `apart`, have a spread each.
    """

    def __init__(self, references: Sequence[Mapping[str, Any]], bound: float, apart: int = 0) -> None:
        self._wanted, self._bound = [_arrays(outputs) for outputs in references], bound
        together = len(references) - apart
        common = _spreads(step for steps in self._wanted[:together] for step in steps)
        self._spreads = [common] * together + [_spreads(steps) for steps in self._wanted[together:]]

    def squared(self, sample: int, outputs: Mapping[str, Any]) -> float:
        """Return the squared error of the worst output of a sample, over the square of the bound."""
        errors = [
            self._error(self._spreads[sample].get(name), value, result[name])
            for reference, result in zip(self._wanted[sample], _arrays(outputs), strict=True)
            for name, value in reference.items()
            if name in result
        ]
        return (max(errors, default=0.0) / self._bound) ** 2

    def _error(self, spread: Spread | None, reference: NDArray[Any], result: NDArray[Any]) -> float:
        if reference.shape != result.shape:
            return math.inf
        if spread is None:
            return float(np.mean(reference != result)) if reference.size else 0.0
        finite = np.isfinite(reference)
        if not np.isfinite(result[finite]).all():
            return math.inf
        return spread.error(metrics.differences(reference, result, (spread.axis,)), metrics.SMALLEST)[0]


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
    """A cache of measured errors by rounded sites; `runs` counts the measurements, on all samples each.

    `measure` returns the squared error of each sample with these sites rounded, over the square of the
    target.
    """

    def __init__(self, measure: Callable[[tuple[int, ...]], Iterable[float]]) -> None:
        self._measure = measure
        self.runs = 0
        self._known: dict[tuple[int, ...], float] = {}

    def squared(self, sites: Iterable[int]) -> float:
        """Return the squared error of the worst sample with these sites on, over the square of the target."""
        key = tuple(sorted(sites))
        if key not in self._known:
            self.runs += 1
            self._known[key] = max(self._measure(key), default=0.0)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Measuring:
    """The inputs of measurements: the name and number of switches, the samples, the target, and libraries of
    custom operators.
    """

    switches: str
    count: int
    samples: Sequence[Feeds]
    target: Target
    libraries: Libraries

    def squared(self, session: Any, at: int, sites: Sequence[int]) -> float:
        """Return the squared error of a sample."""
        switches = np.zeros(self.count, bool)
        switches[list(sites)] = True
        sample = sequences.changed(self.samples[at], lambda step: {**step, self.switches: switches})
        outputs = sessions.run_session(session, sample)
        return self.target.squared(at, outputs)


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
        references = [
            sessions.run_session(baseline.session, sample, where=f"samples[{at}]")
            for at, sample in enumerate(samples)
        ]
    measuring = _Measuring(
        model.switches, len(model.values), samples, Target(references, bound, apart), libraries
    )
    with emulation.runnable(model.loaded) as runnable:
        if executor is None:
            yield SwitchedSession(_here(sessions.open_session(runnable, Device.CPU, libraries), measuring))
        else:
            with _shared(runnable, measuring) as folder:
                yield SwitchedSession(_by_workers(executor, folder, len(samples)))


def _here(session: Any, measuring: _Measuring) -> Callable[[tuple[int, ...]], Iterable[float]]:
    return lambda sites: (measuring.squared(session, at, sites) for at in range(len(measuring.samples)))


def _by_workers(
    executor: Executor, folder: Path, samples: int
) -> Callable[[tuple[int, ...]], Iterable[float]]:
    return lambda sites: executors.results(
        executor, _measured, ((folder, at, sites) for at in range(samples))
    )


@contextlib.contextmanager
def _shared(model: Runnable, measuring: _Measuring) -> Generator[Path]:
    """Yield a folder with the model and inputs for the workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, folder / _MODEL)
            model = folder / _MODEL
        (folder / _REST).write_bytes(pickle.dumps((Path(model).absolute(), measuring)))
        yield folder


_MODEL, _REST = "model.onnx", "measuring.pickle"


def _measured(folder: Path, at: int, sites: Sequence[int]) -> float:
    """Return, in a worker, the squared error of a sample."""
    session, measuring = _loaded(folder)
    return measuring.squared(session, at, sites)


@functools.lru_cache(maxsize=1)
def _loaded(folder: Path) -> tuple[Any, _Measuring]:
    model, measuring = pickle.loads((folder / _REST).read_bytes())
    return sessions.open_session(model, Device.CPU, measuring.libraries), measuring
