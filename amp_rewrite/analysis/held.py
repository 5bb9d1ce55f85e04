"""Units that a caller holds in float32, by the names of values that their nodes output, with evidence."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Evidence

Held = Mapping[str, Evidence]
"""The evidence for the nodes that output these values."""


def check(graph: UnitGraph, held: Held) -> Mapping[int, Evidence]:
    """The units of the nodes that output what is held; names that the model does not have count for nothing,
    as what is folded is gone.
    """
    if not held:
        return {}
    found = ((unit.index, value.name or "") for unit in graph.units for value in unit.node.outputs)
    return {index: held[name] for index, name in found if name in held}
