"""What the parts of a model cost on a device: its roofline, with a launch for each kernel.

A kernel takes the longer of the time for its bytes and the time for its FLOPs (S. Williams, A. Waterman,
D. Patterson: Roofline, CACM 2009), and a launch. Times are whole femtoseconds, so that sums do not depend on
their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis import varying
from amp_rewrite.analysis.units import Unit, UnitGraph, Use, value_of
from amp_rewrite.costs import fusions
from amp_rewrite.costs.fusions import Fusion
from amp_rewrite.flops import flop_formulas
from amp_rewrite.flops.node_inference import Shape
from amp_rewrite.model import constants
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.policy.devices import Device
from amp_rewrite.policy.open_sizes import DEFAULT

# What each node moves and computes: bytes, FLOPs and launches, as far as they depend on its precision.

# How many elements every value has, from the shapes that stand in the model: nothing is inferred here.

UNKNOWN = 1 << 20
"""The elements of a value of unknown shape that no known one leads to: a batch of images, or of tokens."""

_MOST = 1 << 50
"""No value counts more: shapes of hostile models may say anything."""


class Sizes:
    """The sizes of a model's values; an open dimension of an input counts as it was given, else as DEFAULT.

    A value without a shape, or with a dimension that no input has, counts as the largest value that its node
    reads: what such a dimension comes to follows from others.
    """

    def __init__(self, graph: UnitGraph) -> None:
        self._known = graph.shape
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._elements: dict[ir.Value, int] = {}
        inputs = (value for inner in graph.nodes for value in inner.inputs)
        self._open = {str(dim) for value in inputs for dim in graph.shape(value) or ()}
        for held in graph.nodes.values():
            for node in held:
                if any(self._is_vague(value) for value in node.outputs):
                    self._guess(node)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The shape of a value; None where its rank is unknown."""
        if value is None:
            return None
        if value not in self._shapes:
            self._shapes[value] = _sized(self._known(value), value)
        return self._shapes[value]

    def elements(self, value: ir.Value) -> int:
        """How many elements a value has."""
        found = self._elements.get(value)
        if found is None:
            shape = self.shape(value)
            found = UNKNOWN if shape is None else min(math.prod(shape), _MOST)
            self._elements[value] = found
        return found

    def largest(self, values: Iterable[ir.Value]) -> int:
        """The elements of the largest of these; 1 where there is none."""
        return max(map(self.elements, values), default=1)

    def _is_vague(self, value: ir.Value) -> bool:
        shape = self._known(value)
        if shape is None:
            return self.shape(value) is None
        return not shape.is_static() and any(
            not isinstance(dim, int) and str(dim) not in self._open for dim in shape
        )

    def _guess(self, node: ir.Node) -> None:
        read = [self.elements(value) for value in node.inputs if value is not None]
        for value in node.outputs:
            if self._is_vague(value):
                self._elements[value] = max(read, default=UNKNOWN)


def _sized(shape: ir.Shape | None, value: ir.Value) -> Shape | None:
    if shape is not None:
        return tuple([dim if type(dim) is int and dim >= 0 else DEFAULT for dim in shape])
    stored = constants.stored_as(value)
    return None if stored is None else tuple(stored.shape.numpy())


LOOPED = 16
"""How often a body of a Loop or a Scan runs: few models say it."""

CONTRACTED = 1024
"""The length of the inner product of a product of unknown shape: the width of a common network."""


class Kernel(NamedTuple):
    """One run of a node, times `runs`.

    `units` are those of the node, by position. Each of them moves `moved` elements that vary, and `stored`
    ones of weights, of which every element takes two or four bytes; `fixed` are the bytes of all others.
    `product` are the FLOPs of a product of matrices. It runs in the precision of the unit at position `data`,
    which reads the first input, and in half where there is none, as that input is half already. `width` is
    the length of its inner products, 0 where it is not known.
    """

    units: tuple[int, ...]
    moved: tuple[int, ...]
    stored: tuple[int, ...]
    fixed: int
    product: int
    data: int | None
    width: int
    runs: int


def of_graph(
    graph: UnitGraph,
    sizes: Sizes,
    vary: set[ir.Value | None],
    inside: set[ir.Value],
    absorbed: frozenset[int],
    runs: Mapping[ir.Graph, int],
    half: ir.DataType,
) -> Iterator[Kernel]:
    """The kernels of a model, in the order of `graph.nodes`; linear in nodes and ports.

    Values `inside` a fusion are not moved, and units that an idiom has `absorbed` launch none. `runs` says
    how often each graph runs. Nodes that move no data, or are computed once for all runs, have no kernel, nor
    have Casts between float32 and half: whether they run depends on the colours beside them (borders).
    """
    held: dict[ir.Node, list[Unit]] = {}
    for unit in graph.units:
        held.setdefault(unit.node, []).append(unit)
    measure = _Measure(graph, sizes, vary, inside, frozenset((ir.DataType.FLOAT, half)))
    for inner, nodes in graph.nodes.items():
        for node in nodes:
            units = held.get(node, ())
            within = any(unit.index in absorbed for unit in units) if absorbed else False
            if not within and not measure.is_free(node):
                yield measure.kernel(node, units, runs[inner])


def body_runs(nodes: GraphNodes) -> dict[ir.Graph, int]:
    """How often each graph runs."""
    runs = dict.fromkeys(nodes, 1)
    for inner, held in nodes.items() if len(nodes) > 1 else ():  # outer graphs come first
        for node in held:
            times = LOOPED if node.op_type in _LOOPS and not node.domain else 1
            for body in control_flow.bodies(node) if control_flow.may_have_bodies(node) else ():
                runs[body] = min(runs[inner] * times, _MOST_RUNS)
    return runs


_LOOPS = frozenset(("Loop", "Scan", "SequenceMap"))
_MOST_RUNS = LOOPED**4


class _Measure:
    def __init__(
        self,
        graph: UnitGraph,
        sizes: Sizes,
        vary: set[ir.Value | None],
        inside: set[ir.Value],
        pair: frozenset[ir.DataType],
    ) -> None:
        self._types, self._sizes, self._vary, self._inside = graph.types, sizes, vary, inside
        self._pair = pair

    def is_free(self, node: ir.Node) -> bool:
        """Whether a node moves no data, or is computed once for all runs."""
        operator, domain = node.op_type, node.domain
        if operator in FREE and not domain:
            return True
        if self._vary.isdisjoint(node.outputs):
            return True
        has_bodies = control_flow.may_have_bodies(node) and bool(control_flow.bodies(node))
        return has_bodies or (operator == "Cast" and not domain and self._is_cast(node))

    def kernel(self, node: ir.Node, units: Sequence[Unit], runs: int) -> Kernel:
        """What a node costs."""
        operator = node.op_type
        made = self._sizes.largest(node.outputs)
        most = made if operator in _READS_WHAT_IT_MAKES else _ALL
        sums = [self._elements(unit, most) for unit in units]
        product, width = self._product(node, made) if operator in PRODUCTS else (0, 0)
        return Kernel(
            tuple([unit.index for unit in units]),
            tuple([moved for moved, _ in sums]),
            tuple([stored for _, stored in sums]),
            self._fixed(node, most),
            product,
            _data(node, units) if product else None,
            width,
            runs,
        )

    def _is_cast(self, node: ir.Node) -> bool:
        """Whether a node is a Cast between float32 and half."""
        kinds = (self._types.get(value) for value in (*node.inputs, *node.outputs) if value is not None)
        return self._pair == frozenset(kind.dtype for kind in kinds if kind is not None)

    def _elements(self, unit: Unit, most: int) -> tuple[int, int]:
        """The elements that vary, and those that do not, which the ports of a unit move."""
        moved = stored = 0
        elements, vary, inside = self._sizes.elements, self._vary, self._inside
        for use in unit.uses:
            value = value_of(use)
            if value is None or value in inside:
                continue
            if value in vary:
                moved += min(elements(value), most)
            else:
                stored += min(elements(value), most)
        return moved + sum([elements(value) for value in unit.defs if value not in inside]), stored

    def _fixed(self, node: ir.Node, most: int) -> int:
        """The bytes of what is not float32, such as indices, masks and what is half already."""
        total = 0.0
        types = self._types
        for value in (*node.inputs, *node.outputs):
            kind = types.get(value) if value is not None else None
            if value is None or kind is None or kind is _FLOAT32 or kind.dtype == ir.DataType.FLOAT:
                continue
            width = 1.0 if kind.dtype in _NO_WIDTH else kind.dtype.itemsize
            total += width * min(self._sizes.elements(value), most)
        return int(total)

    def _product(self, node: ir.Node, made: int) -> tuple[int, int]:
        """The FLOPs of a product and the length of its inner products, 0 where shapes are unknown."""
        if not made or any(value is not None and self._sizes.shape(value) is None for value in node.inputs):
            return 2 * CONTRACTED * made, 0
        found = flop_formulas.of_node(node, self._sizes.shape, floats=True)
        return (2 * CONTRACTED * made, 0) if found is None else (found, max(found // (2 * made), 1))


def _data(node: ir.Node, units: Sequence[Unit]) -> int | None:
    """The position of the unit that reads the first input of a node; None where it is not float32."""
    first = Use(node, 0)
    return next((at for at, unit in enumerate(units) if first in unit.uses), None)


FREE = frozenset(
    """Constant Identity Dropout Reshape Flatten Squeeze Unsqueeze Shape Size Optional OptionalGetElement
    OptionalHasElement SequenceConstruct SequenceAt SequenceInsert SequenceErase SequenceEmpty
    SequenceLength""".split()
)
"""Operators that onnxruntime runs without a copy, or on the host."""

PRODUCTS = frozenset(
    """MatMul Gemm Conv ConvTranspose DeformConv Einsum LSTM GRU RNN Attention FusedMatMul FusedGemm FusedConv
    GemmFastGelu TransposeMatMul MultiHeadAttention GroupQueryAttention DecoderMaskedMultiHeadAttention
    MatMulNBits MatMulBnb4 ConvTransposeWithDynamicPads NhwcConv NhwcFusedConv""".split()
)
"""Operators whose FLOPs count: those of all others take less time than their bytes."""

_READS_WHAT_IT_MAKES = frozenset(
    "Gather GatherElements GatherND Slice Split EmbedLayerNormalization Compress".split()
)
"""Operators that read no more of their data than they make."""

_ALL = 1 << 62
_FLOAT32 = element_types.tensor(ir.DataType.FLOAT)
_NO_WIDTH = frozenset((ir.DataType.UNDEFINED, ir.DataType.STRING))


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
    which units a kernel absorbs with the Casts beside them (fusions). `large` is the scale at which the
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
    idioms, runs = fusions.find_idioms(graph), body_runs(graph.nodes)
    found = tuple(of_graph(graph, sizes, vary, inside, idioms.absorbed, runs, half.dtype))
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
    width = max((kernel.width for kernel in found), default=0) or CONTRACTED
    return Scale(max(1.0, LARGE / max(most, 1)), max(1.0, CONTRACTED / width))
