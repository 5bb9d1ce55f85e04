"""Choices by the largest or smallest of values (TopK, ArgMax, ArgMin) that turn out otherwise where some are
close.

A mixture of experts sends a token elsewhere then, and the outputs differ by much more than any value before
the choice: no node is to blame for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.running.intermediate_values import InstrumentedModel
from amp_rewrite.running.sessions import Feeds


@dataclass(frozen=True, slots=True)
class Choice:
    """A node that chooses otherwise in the rewritten model, in how many rows of how many.

    An unnamed node goes by the name of its first output.
    """

    node: str
    operator: str
    rows: int
    of: int


def first_changed(
    before: InstrumentedModel, after: InstrumentedModel, shared: Mapping[str, str], feeds: Feeds
) -> Choice | None:
    """The first node of the main graph that chooses otherwise; None where none does.

    `shared` maps the values of the original to those of the rewritten model. Raises what runs of these raise.
    """
    chosen = {name: node for name, node in _chosen(before.nodes) if name in shared}
    if not chosen:
        return None
    wanted = before.indices(chosen, feeds)
    got = after.indices([shared[name] for name in chosen], feeds)
    found = (
        _choice(node, wanted[name], got[shared[name]])
        for name, node in chosen.items()
        if name in wanted and shared[name] in got
    )
    return next((choice for choice in found if choice is not None and choice.rows), None)


def _chosen(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The indices that nodes choose, in the order of the graph."""
    for node in nodes:
        at = _INDICES.get(node.op_type) if not node.domain else None
        if at is not None and at < len(node.output) and node.output[at]:
            yield node.output[at], node


_INDICES = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}
"""The output that has the indices."""


def _choice(node: onnx.NodeProto, wanted: NDArray[Any], got: NDArray[Any]) -> Choice | None:
    if wanted.shape != got.shape or not wanted.size:
        return None
    differs = wanted != got
    if node.op_type == "TopK":
        axis = next((entry.i for entry in node.attribute if entry.name == "axis"), -1)
        differs = differs.any(axis=axis)
    name = node.name or node.output[0]
    return Choice(name, node.op_type, int(np.count_nonzero(differs)), differs.size)
