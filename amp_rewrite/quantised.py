"""Quantised regions stay as they are: a runtime recognises them by their float32 types."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite.findings import Finding
from amp_rewrite.units import UnitGraph

_REGION = "works on quantised data, between DequantizeLinear and QuantizeLinear"


def check(graph: UnitGraph) -> Mapping[int, Finding]:
    """The units whose first operand is dequantised, or whose result is quantised again.

    A runtime fuses DequantizeLinear, Conv and QuantizeLinear into one integer kernel: a Cast between
    them would cost that. Dequantised weights alone do not make a region.
    """
    found: dict[int, Finding] = {}
    for unit in graph.units:
        if unit.node.op_type == "DequantizeLinear":
            for value in unit.makes:
                readers = graph.readers.get(value, ())
                found.update((reader, Finding(_REGION)) for reader, site in readers if site.port == 0)
        elif unit.node.op_type == "QuantizeLinear":
            found.update((maker, Finding(_REGION)) for maker in graph.producers[unit.index])
    return found
