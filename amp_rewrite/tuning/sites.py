"""Where a plan rounds: a site for each value that half units make, or read from elsewhere.

What only moves values, or is monotonic on them, rounds nothing of its own, so the value that it carries is
rounded where any unit behind it is half.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.operators import effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.running.emulation import KEEP_ROUNDED


class Site(NamedTuple):
    """A value, and the units of which any in half has it rounded: its producer, and those that read it."""

    value: ir.Value
    units: tuple[int, ...]


def find(graph: UnitGraph, painting: Painting) -> tuple[Site, ...]:
    """The sites of a painting, in the order of the nodes. Sequences and optionals have none."""
    carriers = [_carries(graph, unit) for unit in range(len(graph.units))]
    found = (Site(value, tuple(_touching(graph, value, carriers))) for value in _origins(graph, carriers))
    rounded = (site for site in found if any(map(painting.is_half, site.units)))
    return tuple(sorted(rounded, key=lambda site: min(site.units)))


def _origins(graph: UnitGraph, carriers: list[bool]) -> Iterator[ir.Value]:
    """The values that no carrier makes."""
    for value in dict.fromkeys((*graph.uses, *graph.producer)):
        kind, producer = graph.types.get(value), graph.producer.get(value)
        if isinstance(kind, ir.TensorType) and (producer is None or not carriers[producer]):
            yield value


def _touching(graph: UnitGraph, value: ir.Value, carriers: list[bool]) -> Iterable[int]:
    """The producer of a value, and all that reads it or what carriers make of it."""
    readers = dict.fromkeys(unit for unit, _ in graph.uses.get(value, ()))
    behind = reach(
        [unit for unit in readers if carriers[unit]],
        lambda unit: graph.successors[unit] if carriers[unit] else (),
        lambda unit: graph.units[unit].dense,
    )
    producer = graph.producer.get(value)
    return dict.fromkeys((*([] if producer is None else [producer]), *readers, *behind))


def _carries(graph: UnitGraph, unit: int) -> bool:
    """Whether what a unit makes is rounded as what it reads is."""
    node, has_inputs = graph.units[unit].node, bool(graph.units[unit].uses)
    moves = control_flow.may_have_bodies(node) or (effective_op(node) in KEEP_ROUNDED and not node.domain)
    return has_inputs and moves
