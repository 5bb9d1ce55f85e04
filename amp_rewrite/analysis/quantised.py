"""Quantised regions, which stay float32: runtimes recognise them by their types."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_REGION = Evidence(Authority.QUANTISED, Reason.QUANTISED_REGION)
_ENCLOSED = Evidence(Authority.RUNTIME_BUG, Reason.QUANTISED_REGION)
_BORDERS = ("DequantizeLinear", "QuantizeLinear")


def check(graph: UnitGraph, *, fused: bool = False) -> Mapping[int, Evidence]:
    """The units whose first operand comes from a DequantizeLinear, or whose result goes to a QuantizeLinear.

    A runtime fuses DequantizeLinear, Conv and QuantizeLinear into one integer kernel: a Cast between
    them would cost that. Dequantised weights alone do not make a region. With `fused`, a region that both
    enclose cannot even be forced, nor can they: onnxruntime 1.31.1 fuses it in half too, and then refuses its
    own integer kernel for half scales.
    """
    reads: set[int] = set()
    gives: set[int] = set()
    for unit in graph.by_operator.get("DequantizeLinear", ()):
        for value in graph.units[unit].defs:
            reads.update(reader for reader, use in graph.uses.get(value, ()) if use.port == 0)
    for unit in graph.by_operator.get("QuantizeLinear", ()):
        gives.update(graph.predecessors[unit])
    found = dict.fromkeys(sorted(reads | gives), _REGION)
    if fused:
        found.update(dict.fromkeys(_enclosed(graph, reads, gives), _ENCLOSED))
    return found


def _enclosed(graph: UnitGraph, reads: Collection[int], gives: Collection[int]) -> Iterator[int]:
    """Units between the two, alone or with an activation behind, and the two around them."""
    behind = {reader for unit in reads for reader in graph.successors[unit]}
    for last in sorted(unit for unit in gives if unit in reads or unit in behind):
        first = [unit for unit in graph.predecessors[last] if unit in reads]
        for inner in (last, *first):
            around = (*graph.predecessors[inner], *graph.successors[inner])
            yield inner
            yield from (unit for unit in around if graph.units[unit].node.op_type in _BORDERS)
