"""Nodes between DequantizeLinear and QuantizeLinear, which runtimes make integer kernels of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"


@dataclass(frozen=True, slots=True)
class Regions:
    """The nodes whose first operand is dequantised, and those whose result is quantised.

    Stored weights alone do not make a region.
    """

    reads: frozenset[ir.Node]
    gives: frozenset[ir.Node]


def find(nodes: Iterable[ir.Node]) -> Regions:
    """Return the quantised regions among nodes."""
    borders = [node for node in nodes if node.op_type in (DEQUANTIZE, QUANTIZE)]
    dequantised = [
        node.outputs[0]
        for node in borders
        if node.op_type == DEQUANTIZE and stored_as(node.inputs[0]) is None
    ]
    quantised = [node.inputs[0] for node in borders if node.op_type == QUANTIZE]
    producers = [value.producer() for value in quantised if value is not None]
    return Regions(
        frozenset(node for value in dequantised for node, port in value.uses() if port == 0),
        frozenset(node for node in producers if node is not None),
    )
