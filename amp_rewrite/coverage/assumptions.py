"""What the numbers of a coverage rest on, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.colouring.patterns import pinned_as
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.flops.flop_count import Work
from amp_rewrite.onnx_types import schema

NAMED = 5
"""So many nodes or dimensions are named in one line; the others are only counted."""


def assumptions(work: Work) -> Iterator[str]:
    """A line for each kind of thing that had to be assumed."""
    if work.shapes.assumed:
        yield f"open dimensions count as 1 ({some(work.shapes.assumed)}); --dim NAME=SIZE gives them a size"
    if work.unknown_trips:
        yield (
            f"{plural(len(work.unknown_trips), 'node')} with a body that runs as often as the data says "
            f"count as running it once ({_named(work.unknown_trips)})"
        )
    if work.either:
        yield (
            f"of the branches of {plural(len(work.either), 'If')} with a condition that the data decides, "
            f"the dearer counts ({_named(work.either)})"
        )
    unknown = [node for node, flops in work.flops.items() if flops is None]
    if unknown:
        yield (
            f"the FLOPs of {plural(len(unknown), 'node')} are not known and count nowhere: "
            f"a shape is missing, or a formula ({_named(unknown)})"
        )


def _named(nodes: Sequence[ir.Node]) -> str:
    return some([f"{schema.written(node.domain, node.op_type)} '{pinned_as(node)}'" for node in nodes])


def some(words: Sequence[str]) -> str:
    """The first few words, and how many there are beyond."""
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
