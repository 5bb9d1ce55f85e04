"""The units that the target's runtime has a half kernel for, and refuses all the same."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.targets import Target


def check(graph: UnitGraph, target: Target) -> Mapping[int, Evidence]:
    """What stays float32 because the target refuses the node for an attribute or an input of it."""
    found: dict[int, Evidence] = {}
    for operator, refused in target.refusals.items():
        for unit in graph.by_operator.get(operator, ()):
            node = graph.units[unit].node
            name = next(refused(node), None) if node.domain == "" else None
            if name is not None:
                found[unit] = Evidence(
                    Authority.TARGET, Reason.REFUSED_ATTRIBUTE, subject=target.name, text=name
                )
    return found
