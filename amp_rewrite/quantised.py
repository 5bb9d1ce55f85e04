"""Quantised regions stay as they are: a runtime recognises them by their float32 types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amp_rewrite.findings import Finding
from amp_rewrite.units import UnitGraph

_REGION = "works on quantised data, between DequantizeLinear and QuantizeLinear"


def check(graph: UnitGraph) -> Mapping[int, Finding]:
    """The units whose first operand is dequantised, or whose result is quantised again.

    A runtime fuses DequantizeLinear, Conv and QuantizeLinear into one integer kernel: a Cast between
    them would cost that. Dequantised weights alone do not make a region.
    """
    found: dict[int, Finding] = {}
    for value, maker in graph.maker.items():
        readers = graph.readers.get(value, ())
        if graph.units[maker].node.op_type == "DequantizeLinear":
            found.update((unit, Finding(_REGION)) for unit, site in readers if site.port == 0)
        if _is_quantised(graph, (unit for unit, _ in readers)):
            found[maker] = Finding(_REGION)
    return found


def _is_quantised(graph: UnitGraph, readers: Iterable[int]) -> bool:
    return any(graph.units[unit].node.op_type == "QuantizeLinear" for unit in readers)
