"""Facts about ONNX's operators that no schema states, each once: which inputs an operator moves, scales or
averages, which numbers its outputs come close to, and which digits of its inputs it needs.

All are facts about the default domain; the source is the description of the operator, unless one is named.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite.model.constants import numbers, stored_as
from amp_rewrite.onnx_facts.operators import REARRANGES

SELECTS = frozenset(
    "Compress Gather GatherElements GatherND Pad ReverseSequence SequenceAt Slice Split Trilu".split()
)
"""Operators whose outputs hold some elements of the first input, and zeros."""
EXTREMES = frozenset("ReduceMax ReduceMin TopK".split())
"""Operators that select elements of the first input by their size."""
BOUNDS = frozenset("Clip Max Min".split())
"""Operators that select the larger or the smaller of elements of their inputs."""
JOINS: Mapping[str, tuple[int, ...] | None] = {
    "Concat": None,
    "ConcatFromSequence": None,
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "SequenceConstruct": None,
    "SequenceInsert": (0, 1),
    "Where": (1, 2),
}
"""Operators whose output holds elements of several inputs, and these inputs, None for all of them; scatters
may also add (`effective_op`)."""
CONTROL_FLOW = frozenset("If Loop Scan".split())
MOVERS = (REARRANGES - {"Cast"}) | SELECTS | EXTREMES | {"Max", "Min"} | JOINS.keys() | CONTROL_FLOW
"""Operators whose outputs hold values of their inputs and no others, in their type."""

ARITHMETIC = frozenset(
    "Abs Add Ceil Clip Div Floor Max Min Mod Mul Neg Pow Range Round Sign Sqrt Sub Sum".split()
)
PRODUCTS = frozenset(
    "Attention Conv ConvTranspose DeformConv Einsum FusedConv FusedGemm FusedMatMul GRU Gemm LSTM MatMul "
    "MatMulNBits MultiHeadAttention RNN".split()
)
AVERAGES = frozenset("AveragePool GlobalAveragePool ReduceMean ReduceSum".split())
"""Operators that add up elements of the first input with one weight for all."""

LIMITS: Mapping[str, frozenset[float]] = {
    **dict.fromkeys(("Cos", "Erf", "Sin", "Tanh"), frozenset((-1.0, 0.0, 1.0))),
    **dict.fromkeys(("Exp", "HardSigmoid", "Sigmoid", "Softmax"), frozenset((0.0, 1.0))),
}
"""Numbers that outputs come arbitrarily close to without being them; an exponential where it is at most 1."""
DIVISORS: Mapping[str, int] = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators whose result depends on the relative size of an input however small it is, and that input; of a
Pow, where the exponent is negative or no integer."""
INVERSES = frozenset("Acos Acosh Asin Atanh".split())
"""Operators whose slope is infinite where the input is 1."""


def rearranges(node: ir.Node) -> bool:
    """Whether the first output of a node holds all elements of its first input, as of a whole Slice."""
    if node.domain:
        return False
    if node.op_type != "Slice" or not 3 <= len(node.inputs) <= 4:
        return node.op_type in REARRANGES
    starts, ends = (stored_as(value) for value in node.inputs[1:3])
    if starts is None or ends is None:
        return False
    return not numbers(starts).any() and bool((numbers(ends) >= _LAST).all())


_LAST = 2**31 - 1
"""The least end of a Slice that is the end of the axis whatever its size."""


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
