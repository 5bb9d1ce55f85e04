"""What an analysis found out about a unit: why it must stay float32."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

MOVERS = frozenset(
    "Compress Concat ConcatFromSequence DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "Identity If Loop Max Min Pad ReduceMax ReduceMin Reshape ReverseSequence Scan ScatterElements "
    "ScatterND SequenceAt SequenceConstruct SequenceInsert Slice SpaceToDepth Split Squeeze Tile TopK "
    "Transpose Trilu Unsqueeze Where".split()
)
"""Operators whose outputs hold values of their inputs and no others; a scatter may also add: see acts_as."""


def effective_op(node: ir.Node) -> str:
    """The operator whose arithmetic a node does: a scatter that adds is an Add, any other node itself."""
    reduction = node.attributes.get("reduction") if node.op_type in _SCATTERS else None
    if reduction is None:
        return node.op_type
    said = "add" if reduction.is_ref() else reduction.as_string()  # what the caller of a function says
    return _REDUCTIONS.get(said, node.op_type)


_SCATTERS = frozenset(("ScatterElements", "ScatterND"))
_REDUCTIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


BY_RANGE = "range"
BY_OBSERVATION = "observation"
SOURCES = (BY_RANGE, BY_OBSERVATION)
"""Where a finding comes from: what stands in the model, or a run of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a unit must stay float32, in words that finish the sentence "stays float32: ...".

    `always` holds when a runtime would refuse the result or crash on it: then force-all yields too.
    `source` is who says so.
    """

    reason: str
    always: bool = False
    source: str = BY_RANGE
