"""Nodes that runtimes fail on in half, refuse, fuse by their types, or remove before kernel selection.

    DequantizeLinear -> Conv -> QuantizeLinear        is one integer kernel only with float32 in between
    CumSum                                            has no half kernel in onnxruntime's CUDA provider

A result has to load, and to run where the original does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns, traversal
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.patterns import DEQUANTIZE, QUANTIZE, effective_op
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.catalogue import JOINS, REARRANGES, SELECTS, having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.policy.targets import Target
from amp_rewrite.preparing import transposed_operands


def faults(graph: UnitGraph) -> Mapping[int, Evidence]:
    """Return the units that must stay float32 so that no known runtime fails on the result."""
    failures: dict[int, Evidence] = {}
    for operator, fault in _FAULTS.items():
        for unit in graph.units_of(operator):
            if text := fault(unit.node, graph.types):
                failures[unit.index] = Evidence(Authority.RUNTIME_BUG, Reason.FAULT, text=text)
    evidence = Evidence(Authority.RUNTIME_BUG, Reason.FAULT, text=_UNEQUAL_RANKS)
    return {**failures, **dict.fromkeys(graph.of_nodes(_unequal_ranks(graph)), evidence)}


_UNEQUAL_RANKS = (
    "onnxruntime fails on a Cast between a Transpose of the first axis and a MatMul of operands that are "
    "not known to have the same rank"
)
_MASKED_SCORES = "it outputs its masked scores, and fills them with the lowest number of the type"
_BATCH_OF_ONE = "onnxruntime runs it as a function, which fails in half for a batch of one"
_REDUCES = "it reduces into its data, for which onnxruntime's CPU provider has no half kernel"


def _unequal_ranks(graph: UnitGraph) -> frozenset[ir.Node]:
    """Return the products that onnxruntime fails on if a Cast stands between them and a Transpose, as their
    operands are not known to have the same rank; and all nodes between.
    """
    nodes = (node for group in graph.nodes.values() for node in group)
    transposed = transposed_operands.find_transposed(nodes)
    failing = [product for product in transposed_operands.find_products(transposed) if not product.is_fused]
    operands = [product.operand for product in failing]
    paths = traversal.reach(operands, transposed_operands.sources, transposed.__contains__)
    return frozenset((*traversal.producers(paths), *(product.node for product in failing)))


def _attention(node: ir.Node, types: Types) -> str | None:
    """Return the reason for a fourth output that may be the scores after masking: -3.4e38 in float32 would be
    -65504 in half.
    """
    outputs = node.outputs
    has_scores = len(outputs) > 3 and bool(outputs[3].uses() or outputs[3].is_graph_output())
    masked = _says(node, "qk_matmul_output_mode") not in _UNMASKED and _fills(node, types)
    return _MASKED_SCORES if has_scores and masked else None


_UNMASKED = (0, 3)
"""Modes of that output without masking: the raw product and the softmax. Others vary by opset."""


def _fills(node: ir.Node, types: Types) -> bool:
    """Return whether an Attention masks scores itself: by causality, a boolean mask, or padding."""
    mask, *more = *node.inputs[3:], None
    hides = mask is not None and types[mask].dtype == ir.DataType.BOOL
    return hides or _says(node, "is_causal") != 0 or any(value is not None for value in more[2:])


def _says(node: ir.Node, name: str) -> int:
    """Return an integer attribute with the default 0; -1 for a reference to a function's attribute."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return 0
    return -1 if attribute.is_ref() else attribute.as_int()


def _affine_grid(node: ir.Node, _: Types) -> str | None:
    """Return the reason for a single grid in the plane: theta of [1, 2, 3] fails (onnxruntime 1.31.1)."""
    theta = node.inputs[0]
    shape = None if theta is None else theta.shape
    if shape is None or len(shape) != _MATRICES:
        return _BATCH_OF_ONE
    images, rows = shape[0], shape[1]
    several = isinstance(images, int) and images > 1
    return None if several or rows == _ROWS_IN_SPACE else _BATCH_OF_ONE


_MATRICES, _ROWS_IN_SPACE = 3, 3
"""Rank of theta, and rows of a matrix that places points in space; in the plane it has two."""


def _scatter(node: ir.Node, _: Types) -> str | None:
    return None if effective_op(node) == node.op_type else _REDUCES


_NO_CPU_KERNEL = "onnxruntime's CPU provider has no half kernel for it, and no input of it to cast"
_FAULTS: Mapping[str, Callable[[ir.Node, Types], str | None]] = {
    "AffineGrid": _affine_grid,
    "Attention": _attention,
    "EyeLike": lambda *_: "onnxruntime has no half kernel for it at all",
    "MeanVarianceNormalization": lambda *_: (
        "onnxruntime runs it as a function with float32 constants, and refuses half"
    ),
    "MelWeightMatrix": lambda *_: (
        "onnxruntime's CPU provider inserts a Cast that clashes with its attribute output_datatype"
    ),
    "RandomNormal": lambda *_: _NO_CPU_KERNEL,
    "RandomUniform": lambda *_: _NO_CPU_KERNEL,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}
"""Rules for failures in half, by operator: the reason to stay float32, or None."""


def refused(graph: UnitGraph, target: Target, half: Half) -> Mapping[int, Evidence]:
    """Return the units that the target has a half kernel for, and refuses for an attribute or an input."""
    refusals: dict[int, Evidence] = {}
    for operator, names in target.refusals.items():
        for unit in graph.units_of(operator):
            name = next(names(unit.node), None)
            if name is not None:
                authority = Authority.RUNTIME_BUG if target.is_strict else Authority.TARGET
                text = f" for its {name}{'' if target.is_strict else ', and runs it on the CPU'}"
                refusals[unit.index] = Evidence(
                    authority, Reason.NO_KERNEL, target.name, half=half.name, text=text
                )
    return refusals


def overlong(graph: UnitGraph, target: Target) -> Mapping[int, Evidence]:
    """Return the units with a spatial axis that is open, or too long for the target's half kernel."""
    wrong: dict[int, Evidence] = {}
    for operator, most in target.longest_axes.items():
        text = f"{target.name} computes it wrongly in half beyond {most:,} positions of an axis"
        for unit in graph.units_of(operator):
            if not all(size <= most for size in _upsampled(unit.node, graph)):
                wrong[unit.index] = Evidence(Authority.RUNTIME_BUG, Reason.FAULT, text=text)
    return wrong


def _upsampled(node: ir.Node, graph: UnitGraph) -> Iterator[float]:
    """Yield the spatial sizes of the output of a ConvTranspose, infinite where one is open."""
    before, after = ([*(graph.shape(value) or ())][_SPATIAL:] for value in (node.inputs[0], node.outputs[0]))
    strides = schema.integers(node, "strides") or [1] * len(before)
    for size, stride, made in itertools.zip_longest(before, strides, after):
        if isinstance(made, int):
            yield made
        else:
            yield size * stride if isinstance(size, int) and stride else math.inf
    if not before:
        yield math.inf


_SPATIAL = 2
"""The first spatial axis."""


def widened_sequences(graph: UnitGraph, halves: Sequence[bool], target: Target) -> Mapping[int, int]:
    """Return the half units that must not be, each with its cause: those that make the sequences of recurrent
    nodes in float32, movements of data included.

    TensorRT's compiler moves a Cast to float32 into the loop over the sequence, and fails there (RTX 1.7.1:
    "Mismatched number of elements in reshape op").
    """
    if not target.is_strict:
        return {}

    def behind(unit: int) -> Iterator[int]:
        node = graph.units[unit].node
        reads = node.inputs[:1] if node.op_type in _LAYERS else node.inputs
        if node.op_type in _LAYERS or node.op_type in _SUNK:
            yield from (each for each in graph.predecessors[unit] if set(graph.units[each].defs) & {*reads})

    roots = [unit for name in _LAYERS for unit in graph.by_operator.get(name, ()) if not halves[unit]]
    return reach(roots, behind, halves.__getitem__)


_LAYERS = having(Trait.RECURRENT)
_SUNK = REARRANGES | SELECTS | JOINS


def needs_no_kernel(node: ir.Node) -> bool:
    """Return whether a node is a Dropout at inference with an unused mask, which onnxruntime removes.

    Of version 22, which JAX's exporter leaves behind, CUDA has no kernel (onnxruntime's `EliminateDropout`).
    """
    if node.op_type != "Dropout" or node.domain:
        return False
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    mode_constant = stored_as(mode)
    trains = mode is not None and (
        mode_constant is None or mode.is_graph_input() or mode_constant.numpy().any()
    )
    return not trains and all(not mask.uses() and not mask.is_graph_output() for mask in node.outputs[1:])


_REGION = Evidence(Authority.QUANTISED, Reason.QUANTISED_REGION)
_ENCLOSED = Evidence(Authority.RUNTIME_BUG, Reason.QUANTISED_REGION)


def quantised(graph: UnitGraph, options: Options, float32: Container[int]) -> Mapping[int, Evidence]:
    """Return the units of quantised regions that must stay float32, with the DequantizeLinear and
    QuantizeLinear around them.

    A runtime fuses DequantizeLinear, Conv and QuantizeLinear into one integer kernel: a Cast between them
    would prevent that. So a region may be half only with all its scales: for a target that fuses half scales,
    where opset, lists and level allow them and none is among the units that stay `float32`. A region enclosed
    by both cannot even be forced, nor can they: onnxruntime 1.31.1 fuses it in half too, and then refuses its
    own integer kernel for half scales.
    """
    borders = {unit for name in (DEQUANTIZE, QUANTIZE) for unit in graph.by_operator.get(name, ())}
    if not borders:
        return {}
    regions = patterns.find_regions(node for nodes in graph.nodes.values() for node in nodes)
    reads, gives = (set(graph.of_nodes(nodes)) for nodes in (regions.reads, regions.gives))

    def around(unit: int) -> Iterator[int]:
        """Yield the borders of a unit in a region, and the units of regions at a border."""
        before, after = graph.predecessors[unit], graph.successors[unit]
        if unit in borders:
            yield from (each for each in (*before, *after) if each in reads or each in gives)
        else:
            yield from (each for each in before if graph.units[each].node.op_type == DEQUANTIZE)
            yield from (each for each in after if graph.units[each].node.op_type == QUANTIZE)

    target, lists = options.target, options.operator_lists()
    kinds = (
        (Kind.ALLOW,) if options.level is Level.TENSOR_CORES_ONLY else (Kind.ALLOW, Kind.INFER, Kind.CLEAR)
    )

    def is_float32(index: int) -> bool:
        unit = graph.units[index]
        entry = lists.find(unit.node.domain, unit.node.op_type)
        is_listed = entry is not None and entry.kind in kinds
        has_half = options.half.tensor in unit.allowed and unit.runs
        return not (target.fuses_half_scales and is_listed and has_half) or index in float32

    roots = [unit for unit in sorted(reads | gives) if any(map(is_float32, around(unit)))]
    regions_of_float32 = dict.fromkeys(reach(roots, around), _REGION)
    if target.is_onnxruntime:
        regions_of_float32.update(dict.fromkeys(_enclosed(graph, reads, gives), _ENCLOSED))
    return regions_of_float32


def _enclosed(graph: UnitGraph, reads: Collection[int], gives: Collection[int]) -> Iterator[int]:
    """Yield the units between the two, alone or with an activation after them, and the two around them."""
    behind = {reader for unit in reads for reader in graph.successors[unit]}
    for last in sorted(unit for unit in gives if unit in reads or unit in behind):
        first = [unit for unit in graph.predecessors[last] if unit in reads]
        for inner in (last, *first):
            around = (*graph.predecessors[inner], *graph.successors[inner])
            yield inner
            yield from (unit for unit in around if graph.units[unit].node.op_type in (DEQUANTIZE, QUANTIZE))
