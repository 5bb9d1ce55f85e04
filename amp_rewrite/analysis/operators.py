"""What operators do to values: which move them, and which one does the arithmetic of a node."""

from __future__ import annotations

import onnx_ir as ir

MOVERS = frozenset(
    "Compress Concat ConcatFromSequence DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "Identity If Loop Max Min Pad ReduceMax ReduceMin Reshape ReverseSequence Scan ScatterElements "
    "ScatterND SequenceAt SequenceConstruct SequenceInsert Slice SpaceToDepth Split Squeeze Tile TopK "
    "Transpose Trilu Unsqueeze Where".split()
)
"""Operators whose outputs hold values of their inputs and no others; scatters may also add (effective_op)."""

ARITHMETIC = frozenset(
    "Abs Add Ceil Clip Div Floor Max Min Mod Mul Neg Pow Range Round Sign Sqrt Sub Sum".split()
)
PRODUCTS = frozenset(
    "Attention Conv ConvTranspose DeformConv Einsum FusedConv FusedGemm FusedMatMul GRU Gemm LSTM MatMul "
    "MatMulNBits MultiHeadAttention RNN".split()
)


def effective_op(node: ir.Node) -> str:
    """The operator whose arithmetic a node does: a scatter that adds is an Add, any other node itself."""
    reduction = node.attributes.get("reduction") if node.op_type in _SCATTERS else None
    if reduction is None:
        return node.op_type
    declared = (
        "add" if reduction.is_ref() else reduction.as_string()
    )  # a reference: a function's caller declares it
    return _REDUCTIONS.get(declared, node.op_type)


_SCATTERS = frozenset(("ScatterElements", "ScatterND"))
_REDUCTIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
