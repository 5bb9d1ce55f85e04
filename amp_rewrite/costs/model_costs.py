"""What the parts of a model cost on a device: its roofline, with a launch for each kernel.

A kernel takes the longer of the time for its bytes and the time for its FLOPs (S. Williams, A. Waterman,
D. Patterson: Roofline, CACM 2009), and a launch. Times are whole femtoseconds, so that sums do not depend on
their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis import varying
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import fused_idioms, fusions, kernels
from amp_rewrite.costs.fusions import Fusion
from amp_rewrite.costs.kernels import Kernel
from amp_rewrite.costs.sizes import Sizes
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.devices import Device

FEMTO = 1e15
"""Femtoseconds in a second."""

FULL, HALF = 4, 2
"""Bytes of an element."""

LARGE = 1 << 25
"""The elements of the largest value of a network in use: the first convolution of ResNet-50 makes as many for
a batch of 42 images.
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much larger than its shapes a model counts: values by `batch`, inner products by `width`."""

    batch: float = 1.0
    width: float = 1.0


AS_GIVEN = Scale()


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """The kernels of a model on a device, for one half type.

    `vary` are the values that are computed in every run, `runs` says how often each graph runs, and `inside`
    which units a kernel absorbs with the Casts beside them (fused_idioms). `large` is the scale at which the
    model counts as large: the small sizes of a demonstration do not decide.
    """

    device: Device
    half: Half
    kernels: tuple[Kernel, ...]
    sizes: Sizes
    vary: set[ir.Value | None]
    fusions: tuple[Fusion, ...]
    runs: dict[ir.Graph, int]
    entries: dict[ir.Value, ir.Graph]
    inside: frozenset[int]
    large: Scale

    def at(self, larger: float) -> ModelCosts:
        """The same, where `large` is so many times larger."""
        scale = Scale(self.large.batch * larger, self.large.width * larger)
        return replace(self, large=scale)

    def time(self, kernel: Kernel, halves: Sequence[bool], scale: Scale) -> int:
        """The time of a kernel, with these of its units in half."""
        moved = float(kernel.fixed) * scale.batch
        for is_half, varies, stored in zip(halves, kernel.moved, kernel.stored, strict=True):
            moved += (HALF if is_half else FULL) * (varies * scale.batch + stored)
        seconds = moved / self.device.bandwidth
        if kernel.product:
            rate = self._half_rate if kernel.data is None or halves[kernel.data] else self.device.float32
            work = kernel.product * scale.batch * (scale.width if kernel.width else 1.0)
            seconds = max(seconds, work / rate)
        return kernel.runs * self._launched(seconds)

    @property
    def _half_rate(self) -> float:
        return self.device.rate(self.half.name)

    def gain(self, kernel: Kernel, at: int, scale: Scale) -> int:
        """What a kernel saves with this one of its units in half; less than 0 where half is slower."""
        none = (False,) * len(kernel.units)
        alone = (True,) if len(none) == 1 else tuple([unit == at for unit in range(len(none))])
        return self.time(kernel, none, scale) - self.time(kernel, alone, scale)

    def cast(self, value: ir.Value, scale: Scale) -> int:
        """The time of a Cast of a value between float32 and half; 0 if it is computed once for all runs."""
        if value not in self.vary:
            return 0
        moved = (FULL + HALF) * self.sizes.elements(value) * scale.batch
        return self._runs(value) * self._launched(moved / self.device.bandwidth)

    def broken(self, fusion: Fusion, scale: Scale) -> int:
        """What a border within a fusion costs beside its Cast and a launch: the value is written and read."""
        moved = (FULL + HALF) * self.sizes.elements(fusion.value) * scale.batch
        return self._runs(fusion.value) * int(moved / self.device.bandwidth * FEMTO)

    def launch(self, fusion: Fusion) -> int:
        """What a fusion saves in one colour: the launch of its second kernel."""
        return self._runs(fusion.value) * int(self.device.launch * FEMTO)

    def _launched(self, seconds: float) -> int:
        return int((self.device.launch + seconds) * FEMTO)

    def _runs(self, value: ir.Value) -> int:
        if len(self.runs) == 1:
            return 1
        producer = value.producer()
        inner = producer.graph if producer is not None else self.entries.get(value)
        return self.runs.get(inner, 1) if isinstance(inner, ir.Graph) else 1


def measure(graph: UnitGraph, device: Device, half: Half) -> ModelCosts:
    """The costs of a model that is not edited yet; linear in its nodes and ports."""
    sizes = Sizes(graph)
    vary = varying.find(graph.nodes)
    joined = tuple(fusions.find(graph, vary))
    inside = {fusion.value for fusion in joined}
    idioms, runs = fused_idioms.find(graph), kernels.body_runs(graph.nodes)
    found = tuple(kernels.of_graph(graph, sizes, vary, inside, idioms.absorbed, runs, half.dtype))
    return ModelCosts(
        device,
        half,
        found,
        sizes,
        vary,
        joined,
        runs,
        {value: inner for inner in graph.nodes for value in inner.inputs},
        idioms.inside,
        _large(graph, found, sizes, vary),
    )


def _large(graph: UnitGraph, found: Iterable[Kernel], sizes: Sizes, vary: set[ir.Value | None]) -> Scale:
    made = (value for nodes in graph.nodes.values() for node in nodes for value in node.outputs)
    most = sizes.largest([value for value in made if value in vary])
    width = max((kernel.width for kernel in found), default=0) or kernels.CONTRACTED
    return Scale(max(1.0, LARGE / max(most, 1)), max(1.0, kernels.CONTRACTED / width))
