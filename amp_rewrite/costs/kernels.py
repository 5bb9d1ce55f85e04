"""What each node moves and computes: bytes, FLOPs and launches, as far as they depend on its precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.units import Unit, UnitGraph, value_of
from amp_rewrite.costs import fused_idioms
from amp_rewrite.costs.sizes import Sizes
from amp_rewrite.flops import flop_formulas
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow

LOOPED = 16
"""How often a body of a Loop or a Scan runs: few models say it."""

CONTRACTED = 1024
"""The length of the inner product of a product of unknown shape: the width of a common network."""


class Kernel(NamedTuple):
    """One run of a node, times `runs`; none at all where `runs` is 0.

    `units` are those of the node, by position. Each of them moves `moved` elements that vary, and `stored`
    ones of weights, of which every element takes two or four bytes; `fixed` are the bytes of all others.
    `product` are the FLOPs of a product of matrices, and `width` is the length of its inner products, 0 where
    it is not known.
    """

    node: ir.Node
    units: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()
    fixed: int = 0
    product: int = 0
    width: int = 0
    runs: int = 0


def of_graph(
    graph: UnitGraph, sizes: Sizes, vary: set[ir.Value | None], inside: set[ir.Value], half: ir.DataType
) -> Iterator[Kernel]:
    """A kernel for every node of a model, in the order of `graph.nodes`; linear in nodes and ports.

    Values `inside` a fusion are not moved, and Casts between float32 and half are no kernels: whether
    they run depends on the colours beside them (borders).
    """
    held: dict[ir.Node, list[Unit]] = {}
    for unit in graph.units:
        held.setdefault(unit.node, []).append(unit)
    absorbed = fused_idioms.find(graph).absorbed
    measure = _Measure(graph, sizes, vary, inside, frozenset((ir.DataType.FLOAT, half)))
    runs = body_runs(graph.nodes)
    for inner, nodes in graph.nodes.items():
        for node in nodes:
            units = held.get(node, ())
            within = any(unit.index in absorbed for unit in units) if absorbed else False
            yield measure.kernel(node, units, 0 if within else runs[inner])


def body_runs(nodes: GraphNodes) -> dict[ir.Graph, int]:
    """How often each graph runs."""
    runs = dict.fromkeys(nodes, 1)
    for inner, held in nodes.items():  # outer graphs come first
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

    def kernel(self, node: ir.Node, units: Sequence[Unit], runs: int) -> Kernel:
        """What a node costs; nothing if it moves no data, or is computed once for all runs."""
        if not runs or self._is_free(node):
            return Kernel(node, tuple([unit.index for unit in units]))
        made = self._sizes.largest(node.outputs)
        most = made if node.op_type in _READS_WHAT_IT_MAKES else None
        sums = [self._elements(unit, most) for unit in units]
        product, width = self._product(node, made) if node.op_type in PRODUCTS else (0, 0)
        return Kernel(
            node,
            tuple([unit.index for unit in units]),
            tuple([moved for moved, _ in sums]),
            tuple([stored for _, stored in sums]),
            self._fixed(node, most),
            product,
            width,
            runs,
        )

    def _is_free(self, node: ir.Node) -> bool:
        free = node.op_type in FREE and not node.domain
        has_bodies = control_flow.may_have_bodies(node) and bool(control_flow.bodies(node))
        return free or has_bodies or self._is_cast(node) or self._vary.isdisjoint(node.outputs)

    def _is_cast(self, node: ir.Node) -> bool:
        """Whether a node is a Cast between float32 and half."""
        if node.op_type != "Cast" or node.domain:
            return False
        kinds = (self._types.get(value) for value in (*node.inputs, *node.outputs) if value is not None)
        return self._pair == frozenset(kind.dtype for kind in kinds if kind is not None)

    def _elements(self, unit: Unit, most: int | None) -> tuple[int, int]:
        """The elements that vary, and those that do not, which the ports of a unit move."""
        moved = stored = 0
        for use in unit.uses:
            value = value_of(use)
            if value is None or value in self._inside:
                continue
            count = self._sizes.elements(value)
            if most is not None:
                count = min(count, most)
            if value in self._vary:
                moved += count
            else:
                stored += count
        made = [self._sizes.elements(value) for value in unit.defs if value not in self._inside]
        return moved + sum(made), stored

    def _fixed(self, node: ir.Node, most: int | None) -> int:
        """The bytes of what is not float32, such as indices, masks and what is half already."""
        total = 0.0
        for value in (*node.inputs, *node.outputs):
            kind = self._types.get(value) if value is not None else None
            if value is None or kind is None or kind.dtype == ir.DataType.FLOAT:
                continue
            count = self._sizes.elements(value)
            width = 1.0 if kind.dtype in _NO_WIDTH else kind.dtype.itemsize
            total += width * (count if most is None else min(count, most))
        return int(total)

    def _product(self, node: ir.Node, made: int) -> tuple[int, int]:
        """The FLOPs of a product and the length of its inner products, 0 where shapes are unknown."""
        found = flop_formulas.of_node(node, self._sizes.shape, floats=True)
        if found is None or not made:
            return 2 * CONTRACTED * made, 0
        return found, max(found // (2 * made), 1)


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

_NO_WIDTH = frozenset((ir.DataType.UNDEFINED, ir.DataType.STRING))
