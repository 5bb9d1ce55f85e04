"""Costs of the parts of a model on a device: its roofline, with a launch for each kernel.

A kernel takes the longer of the time for its bytes and the time for its FLOPs (S. Williams, A. Waterman,
D. Patterson: Roofline, CACM 2009), and a launch. Times are whole femtoseconds, so that sums do not depend on
their order.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import fusions, kernels
from amp_rewrite.costs.fusions import Fusion
from amp_rewrite.costs.kernels import Kernel, KernelSizes
from amp_rewrite.model.dataflow import varying_values
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.devices import Device
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.policy.options import Options

FEMTO = 1e15
"""Femtoseconds in a second."""

FULL, HALF = 4, 2
"""Bytes of an element."""

HOST = 25e9
"""Bytes per second between the device and the CPU: four fifths of what 16 lanes of PCIe 4.0 have."""

LARGE = 1 << 25
"""Elements of the largest value of a network in use: the first convolution of ResNet-50 outputs as many for a
batch of 42 images.
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors by which a model counts as larger than it is: values by `batch`, inner products by `width`."""

    batch: float = 1.0
    width: float = 1.0


AS_GIVEN = Scale()


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """The kernels of a model on a device, for one half type.

    `vary` are the values that are computed in every run, `runs` is the number of runs of each graph, and
    `inside` are the units that a kernel absorbs with the Casts beside them (fused_idioms). `large` is the
    scale at which the model counts as large: the small sizes of a demonstration do not decide.
    """

    device: Device
    half: Half
    kernels: tuple[Kernel, ...]
    sizes: KernelSizes
    vary: set[ir.Value | None]
    fusions: tuple[Fusion, ...]
    runs: dict[ir.Graph, int]
    entries: dict[ir.Value, ir.Graph]
    inside: frozenset[int]
    large: Scale

    def at(self, larger: float) -> ModelCosts:
        """Return the same costs with `large` scaled by this factor."""
        scale = Scale(self.large.batch * larger, self.large.width * larger)
        return replace(self, large=scale)

    def time(self, kernel: Kernel, halves: Sequence[bool], scale: Scale) -> int:
        """Return the time of a kernel, with these of its units in half."""
        traffic = float(kernel.fixed) * scale.batch
        for is_half, varies, weights in zip(halves, kernel.moved, kernel.stored, strict=True):
            traffic += (HALF if is_half else FULL) * (varies * scale.batch + weights)
        seconds = traffic / self.device.bandwidth
        if kernel.product:
            rate = self._half_rate if kernel.data is None or halves[kernel.data] else self.device.float32
            work = kernel.product * scale.batch * (scale.width if kernel.width else 1.0)
            seconds = max(seconds, work / rate)
        return kernel.runs * self._launched(seconds)

    @property
    def _half_rate(self) -> float:
        return self.device.rate(self.half.name)

    def gain(self, kernel: Kernel, at: int, scale: Scale) -> int:
        """Return the time that a kernel saves with one of its units in half; negative if half is slower."""
        none = (False,) * len(kernel.units)
        alone = (True,) if len(none) == 1 else tuple([unit == at for unit in range(len(none))])
        return self.time(kernel, none, scale) - self.time(kernel, alone, scale)

    def cast(self, value: ir.Value, scale: Scale) -> int:
        """Return the time of a Cast between float32 and half; 0 for a value computed once for all runs."""
        if value not in self.vary:
            return 0
        traffic = (FULL + HALF) * self.sizes.elements(value) * scale.batch
        return self.runs_of(value) * self._launched(traffic / self.device.bandwidth)

    def copy(self, value: ir.Value, scale: Scale) -> int:
        """Return the time of a copy of a value between the device and the CPU."""
        return self.runs_of(value) * self._launched(FULL * self.sizes.elements(value) * scale.batch / HOST)

    def broken(self, fusion: Fusion, scale: Scale) -> int:
        """Return the cost of a border in a fusion besides Cast and launch: the value is written and read."""
        traffic = (FULL + HALF) * self.sizes.elements(fusion.value) * scale.batch
        return self.runs_of(fusion.value) * int(traffic / self.device.bandwidth * FEMTO)

    def launch(self, fusion: Fusion) -> int:
        """Return the time that a fusion saves in one colour: the launch of its second kernel."""
        return self.runs_of(fusion.value) * int(self.device.launch * FEMTO)

    def _launched(self, seconds: float) -> int:
        return int((self.device.launch + seconds) * FEMTO)

    def runs_of(self, value: ir.Value) -> int:
        """Return the number of runs of the graph that a value is in."""
        if len(self.runs) == 1:
            return 1
        producer = value.producer()
        inner = producer.graph if producer is not None else self.entries.get(value)
        return self.runs.get(inner, 1) if isinstance(inner, ir.Graph) else 1


def measure_costs(graph: UnitGraph, device: Device, half: Half) -> ModelCosts:
    """Return the costs of a model before any edit; linear in its nodes and ports."""
    sizes = KernelSizes(graph)
    vary = varying_values(graph.nodes)
    pairs = tuple(fusions.find_fusions(graph, vary))
    inside = {fusion.value for fusion in pairs}
    idioms, runs = fusions.find_fused_idioms(graph), kernels.body_runs(graph.nodes)
    node_kernels = tuple(kernels.of_graph(graph, sizes, vary, inside, idioms.absorbed, runs, half.dtype))
    return ModelCosts(
        device,
        half,
        node_kernels,
        sizes,
        vary,
        pairs,
        runs,
        {value: inner for inner in graph.nodes for value in inner.inputs},
        idioms.inside,
        _large(graph, node_kernels, sizes, vary),
    )


def _large(
    graph: UnitGraph, node_kernels: Iterable[Kernel], sizes: KernelSizes, vary: set[ir.Value | None]
) -> Scale:
    outputs = (value for nodes in graph.nodes.values() for node in nodes for value in node.outputs)
    most = sizes.largest([value for value in outputs if value in vary])
    width = max((kernel.width for kernel in node_kernels), default=0) or kernels.CONTRACTED
    return Scale(max(1.0, LARGE / max(most, 1)), max(1.0, kernels.CONTRACTED / width))


# Borders: the values at which Casts run, and the costs of these, for any colours of the units.


@dataclass(frozen=True, slots=True)
class Border:
    """A value that may be cast: the units that make and read it, each once.

    `full` and `half` hold where it is made or read in that type whatever the colours: an input or an output
    of the model, a Cast.
    """

    value: ir.Value
    units: tuple[int, ...]
    full: bool
    half: bool

    def is_cast(self, halves: Sequence[bool]) -> bool:
        """Return whether a Cast of the value runs where the units have these colours."""
        colours = [halves[unit] for unit in self.units]
        return (self.full or not all(colours)) and (self.half or any(colours))


def find_borders(graph: UnitGraph, costs: ModelCosts, halved: Container[str | None]) -> Iterator[Border]:
    """Yield all values with possible Casts between them and their readers, in the order of the model.

    `halved` names the inputs and outputs that become half. Casts of the model are no readers and no
    producers: the value of one from half is HALF, and one to half reads it in half.
    """
    finder = _Finder(graph, costs, halved)
    leaving = [value for value in graph.root.outputs if value in graph.producer]
    for value in dict.fromkeys((*graph.uses, *leaving)):
        if value in costs.vary and graph.producer.get(value) not in costs.inside:
            yield finder.border(value)


class _Finder:
    def __init__(self, graph: UnitGraph, costs: ModelCosts, halved: Container[str | None]) -> None:
        self._graph, self._half = graph, costs.half.dtype
        self._halved, self._inside = halved, costs.inside
        self._entering = frozenset(graph.root.inputs)
        self._leaving = frozenset(graph.root.outputs)
        self._casts = frozenset(
            unit
            for unit in graph.by_operator.get("Cast", ())
            if not graph.units[unit].node.domain and graph.units[unit].node.inputs
        )

    def border(self, value: ir.Value) -> Border:
        producer, is_halved = self._graph.producer.get(value), value.name in self._halved
        is_from_half = producer in self._casts and self._reads_half(producer)
        enters_half = producer is None and is_halved and value in self._entering
        leaves = value in self._leaving
        readers = [unit for unit, _ in self._graph.uses.get(value, ()) if unit not in self._inside]
        casts = self._casts.intersection(readers)
        made = () if producer is None or is_from_half else (producer,)
        return Border(
            value,
            tuple(dict.fromkeys([*made, *(unit for unit in readers if unit not in casts)])),
            full=(producer is None and not enters_half) or (leaves and not is_halved),
            half=is_from_half or enters_half or (leaves and is_halved) or any(map(self._makes_half, casts)),
        )

    def _reads_half(self, unit: int | None) -> bool:
        return unit is not None and self._is_half(self._graph.units[unit].node.inputs[0])

    def _makes_half(self, unit: int) -> bool:
        return self._is_half(self._graph.units[unit].node.outputs[0])

    def _is_half(self, value: ir.Value | None) -> bool:
        kind = self._graph.types.get(value) if value is not None else None
        return kind is not None and kind.dtype == self._half


# The predicted time of a model for any colours of its units.


@dataclass(frozen=True, slots=True)
class RunTime:
    """The predicted time of one run in seconds, its launches, and the Casts and the copies between device and
    CPU among these.
    """

    seconds: float
    launches: int
    casts: int
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times of a run on a device, predicted and not measured: in float32, as decided, and all in half.

    `sizes` are the effective ones of the first input, and `open_size` the effective size of its open
    dimensions; None where none is open. `sizes_from` is the origin of sizes set for open dimensions, empty
    where none was set. `everything` is all that the types alone would allow, with kernels that may not exist.
    `fast_half` holds if the device is faster in half than in float32.
    """

    device: str
    half: str
    sizes: str
    open_size: int | None
    sizes_from: str
    fast_half: bool
    float32: RunTime
    result: RunTime
    everything: RunTime

    @property
    def speedup(self) -> float:
        """Ratio of the time in float32 to that of the result; 1 where nothing is executed."""
        return _times(self.float32, self.result)

    @property
    def of_everything(self) -> float:
        """Ratio of the time of everything in half to that of the result."""
        return _times(self.everything, self.result)

    @property
    def is_slower(self) -> bool:
        """Return whether half gains nothing: no time is saved, or the device has no fast half."""
        return self.speedup <= 1.0 or not self.fast_half

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {
            "predicted": "not measured",
            **asdict(self),
            "speedup": self.speedup,
            "of_everything": self.of_everything,
        }


def _times(slow: RunTime, fast: RunTime) -> float:
    return slow.seconds / fast.seconds if fast.seconds else 1.0


def run_time(costs: ModelCosts, borders: Iterable[Border], halves: Sequence[bool], scale: Scale) -> RunTime:
    """Return the time of a run with these units in half; linear in the kernels of the model."""
    time = launches = casts = 0
    for kernel in costs.kernels:
        time += costs.time(kernel, [halves[unit] for unit in kernel.units], scale)
        launches += kernel.runs
    for border in borders:
        if costs.runs_of(border.value) and border.is_cast(halves):
            time += costs.cast(border.value, scale)
            casts += 1
    for fusion in costs.fusions:
        if not costs.runs_of(fusion.value):
            continue
        if halves[fusion.producer] is halves[fusion.consumer]:
            time -= costs.launch(fusion)
            launches -= 1
        else:
            time += costs.broken(fusion, scale)
    return RunTime(time / FEMTO, launches + casts, casts)


def all_in_half(graph: UnitGraph, half: Half) -> list[bool]:
    """Return the colours with all units in half that may be: as their schemas allow, whatever the numbers."""
    has_half: dict[frozenset[str], bool] = {}
    for unit in graph.units:
        if unit.allowed not in has_half:
            has_half[unit.allowed] = any(half.tensor in kind for kind in unit.allowed)
    return [has_half[unit.allowed] for unit in graph.units]


# Costs of a model on a device, gathered once for all candidate colours.


@dataclass(frozen=True, slots=True)
class Prices:
    """The costs of a model's kernels and borders; `origin` is the source of the sizes of open dimensions."""

    graph: UnitGraph
    costs: ModelCosts
    borders: tuple[Border, ...]
    origin: str = ""

    def predict(self, halves: Sequence[bool], scale: Scale = AS_GIVEN) -> Prediction:
        """Return the predicted times with these units in half, at the model's own sizes or another scale."""
        costs, half, (sizes, open_size, origin) = self.costs, self.costs.half, self._sizes()
        return Prediction(
            costs.device.name,
            half.name,
            sizes,
            open_size,
            origin,
            costs.device.is_fast(half.name),
            run_time(costs, self.borders, [False] * len(halves), scale),  # at the opset it had
            self.time(halves, scale),
            self.time(all_in_half(self.graph, half), scale),
        )

    def time(self, halves: Sequence[bool], scale: Scale = AS_GIVEN) -> RunTime:
        """Return the predicted time of a run with these units in half."""
        return self._with_copies(run_time(self.costs, self.borders, halves, scale), scale)

    def _with_copies(self, run: RunTime, scale: Scale) -> RunTime:
        """Return the time with the copies around nodes that lost their kernels, without that of the CPU."""
        values = [value for node in self.graph.on_cpu for value in (*node.inputs, *node.outputs)]
        copied = [value for value in values if value is not None and value in self.costs.vary]
        seconds = sum(self.costs.copy(value, scale) for value in copied) / FEMTO
        return RunTime(run.seconds + seconds, run.launches + len(copied), run.casts, len(copied))

    def is_run(self, unit: int) -> bool:
        """Return whether a unit runs at all: it may be in a branch that is never taken."""
        graph = self.graph.units[unit].node.graph
        return not isinstance(graph, ir.Graph) or self.costs.runs.get(graph, 1) > 0

    def _sizes(self) -> tuple[str, int | None, str]:
        """Return the shape of the first input, empty where there is none; the size of its open dimensions,
        and the origin of the sizes of open dimensions.
        """
        first = next((value for value in self.graph.root.inputs if value.const_value is None), None)
        shape = self.graph.shape(first)
        is_open = shape is not None and not shape.is_static()
        text = "x".join(map(str, self.costs.sizes.shape(first) or ()))
        return text, DEFAULT if is_open else None, self.origin if self.graph.sized else ""


def measure_prices(graph: UnitGraph, options: Options) -> Prices:
    """Return the prices of a model before any edit; linear in its nodes, ports and edges."""
    costs = measure_costs(graph, options.device, options.half)
    halved = states.half_names(states.borders(graph.root, graph.types), options)
    return Prices(graph, costs, tuple(find_borders(graph, costs, halved)), options.dims.origin)
