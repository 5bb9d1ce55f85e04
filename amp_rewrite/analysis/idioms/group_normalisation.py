"""GroupNormalization as exporters write it: groups as the channels of an InstanceNormalization.

    y = Reshape(InstanceNormalization(Reshape(x)))        each group of channels one channel
    z = y * weight + bias

Its kernel computes mean and variance in float32 whatever its type: all of these have one colour.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.analysis.idioms import normalisation, patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.entries import Operator

GROUPS: Operator = ("", "GroupNormalization")


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The written-out GroupNormalizations of a model."""
    for unit in graph.by_operator.get("InstanceNormalization", ()):
        idiom = _of(graph.units[unit].node)
        if idiom is not None:
            yield idiom


def _of(norm: ir.Node) -> Idiom | None:
    grouped = norm.inputs[0] if norm.inputs and not norm.domain else None
    before = grouped.producer() if grouped is not None else None
    after = patterns.only_reader(norm.outputs[0])
    if grouped is None or before is None or after is None or patterns.only_reader(grouped) is not norm:
        return None
    data = before.inputs[0] if before.inputs else None
    if data is None or not all(patterns.is_default(node, "Reshape") for node in (before, after)):
        return None
    weights = normalisation.weights(after.outputs[0])
    return Idiom(GROUPS, data, outer=(before, norm, after, *weights))
