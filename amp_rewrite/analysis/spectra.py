"""Logarithms of spectra of inputs: log-mel features, decibels, and whatever else begins with a waveform.

    Log(Clip(MatMul(re * re + im * im, mel), 1e-10))       re and im by a Conv, an STFT or a product

A quiet sound is 1e-9 there, which half flushes to zero, and 16-bit audio makes 1e12, which overflows. Half
rounds the waveform itself at a thousandth of what is loud, and a logarithm shows what is below.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.from_inputs import FromInputs
from amp_rewrite.analysis.operators import ARITHMETIC, MOVERS, PRODUCTS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_TRANSFORMS = PRODUCTS | {"DFT", "STFT"}
_SQUARES = frozenset(("ReduceL2", "ReduceSumSquare"))
_SUMS = frozenset(("AveragePool", "ReduceMean", "ReduceSum"))
_CARRY = (MOVERS - {"If", "Loop", "Scan"}) | ARITHMETIC | _TRANSFORMS | _SQUARES | _SUMS | {"Cast"}
_BOUND = ("Add", "Clip", "Max")
_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FLOOR = 2.0**-10
"""What is added to a power, or bounds it from below, and hides all that half rounds."""
_DEPTH = 6
"""The most nodes in front of a logarithm that add to a power, bound or move it."""


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that make the logarithm of a power of inputs, from the inputs up to the logarithm."""
    logs = [unit for unit in graph.by_operator.get("Log", ()) if _shows_faint(graph.units[unit].node)]
    if not logs:
        return {}
    carried = FromInputs(graph, stored, lambda unit: effective_op(graph.units[unit].node) in _CARRY).units
    found: dict[int, None] = {}
    for log in logs:
        way = reach([log], graph.predecessors.__getitem__, carried.__contains__)
        if _is_spectrum(graph, log, way) and carried.keys() >= set(graph.predecessors[log]):
            found |= dict.fromkeys((log, *way))
    return dict.fromkeys(found, Evidence(Authority.RANGE, Reason.SPECTRUM))


def _is_spectrum(graph: UnitGraph, log: int, way: Mapping[int, int]) -> bool:
    """Whether something on the way is transformed, and something squared."""
    nodes = [graph.units[unit].node for unit in way]
    is_transformed = any(node.op_type in _TRANSFORMS for node in nodes)
    return is_transformed and any(_squares(node) for node in nodes) and log not in graph.spelled


def _squares(node: ir.Node) -> bool:
    return node.op_type in _SQUARES or patterns.square_of(node) is not None


def _shows_faint(log: ir.Node) -> bool:
    """Whether nothing that hides faint numbers is added in front of a logarithm, or bounds them there."""
    value = log.inputs[0]
    for _ in range(_DEPTH):
        node = value.producer() if value is not None else None
        if node is None or not patterns.is_default(node, "Min", *_BOUND, *_MOVES):
            break
        first = node.inputs[:2]  # the third of a Clip bounds from above
        if patterns.is_default(node, *_BOUND) and any((patterns.scalar(v) or 0) >= _FLOOR for v in first):
            return False
        value = next((v for v in first if patterns.scalar(v) is None), None)
    return True
