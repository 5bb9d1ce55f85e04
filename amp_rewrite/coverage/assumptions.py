"""The assumptions behind FLOP counts, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.flops.flop_count import FlopCount
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.open_sizes import DEFAULT

NAMED = 5
"""How many nodes or dimensions are named in one line; the others are only counted."""


def assumptions(counted: FlopCount) -> Iterator[str]:
    """One line for each kind of assumption that was necessary."""
    if counted.shapes.assumed:
        names = some(counted.shapes.assumed)
        yield f"open dimensions count as {DEFAULT} ({names}); --dim NAME=SIZE sets them"
    if nodes := counted.unknown_trip_counts:
        yield (
            f"the bodies of {plural(len(nodes), 'node')} with a data-dependent trip count count as one run "
            f"({_named(nodes)})"
        )
    if nodes := counted.undecided_branches:
        yield (
            f"for {plural(len(nodes), 'If')} with a data-dependent condition, the costlier branch counts "
            f"({_named(nodes)})"
        )
    if nodes := [node for node, flops in counted.flops.items() if flops is None]:
        yield (
            f"{plural(len(nodes), 'node')} with unknown FLOPs (no shape or no formula) count nowhere "
            f"({_named(nodes)})"
        )


def _named(nodes: Sequence[ir.Node]) -> str:
    return some([f"{schema.written(node.domain, node.op_type)} '{pinned_as(node)}'" for node in nodes])


def some(words: Sequence[str], shown: int = NAMED) -> str:
    """The first words, and the number of the others."""
    more = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {more:,} more" if more > 0 else "")
