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
    """Why a unit must stay float32, in words that finish the sentence "stays float32: ..."."""

    reason: str
