"""The softmax that makes an output, which stays float32 where a policy asks for it."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite.analysis.operators import MOVERS
from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_SOFTMAXES = frozenset(("Softmax", "LogSoftmax"))


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units of softmaxes whose results reach an output of the model, at most moved on the way."""
    found: dict[int, Evidence] = {}
    for output in graph.root.outputs:
        seen, todo = set[int](), [output]
        while todo:
            index = graph.producer.get(todo.pop())
            if index is None or index in seen:
                continue
            seen.add(index)
            unit = graph.units[index]
            if unit.node.op_type in _SOFTMAXES and not unit.node.domain:
                found[index] = Evidence(Authority.POLICY, Reason.FINAL_SOFTMAX, subject=output.name or "")
            elif unit.node.op_type in MOVERS and not unit.node.domain:
                todo += [value for value in map(value_of, unit.uses) if value is not None]
    return found
