"""What an analysis found out about a unit: why it must stay float32."""

from __future__ import annotations

from dataclasses import dataclass

MOVERS = frozenset(
    "Compress Concat ConcatFromSequence DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "Identity If Loop Max Min Pad ReduceMax ReduceMin Reshape ReverseSequence Scan ScatterElements "
    "ScatterND SequenceAt SequenceConstruct SequenceInsert Slice SpaceToDepth Split Squeeze Tile TopK "
    "Transpose Trilu Unsqueeze Where".split()
)
"""Operators whose outputs hold values of their inputs and no others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a unit must stay float32, in words that finish the sentence "stays float32: ...".

    `always` holds when a runtime would refuse the result or crash on it: then force-all yields too.
    """

    reason: str
    always: bool = False
