"""The catalogue of operators: a record for each that is known here, and the cautious one for all others."""

from __future__ import annotations

import functools
from collections.abc import Callable

from amp_rewrite.operators import elementwise, movement, products, reductions
from amp_rewrite.operators.record import Move, Operator, Trait, marked, merge

CATALOGUE = marked(
    merge(
        elementwise.OPERATORS,
        movement.OPERATORS,
        reductions.OPERATORS,
        products.OPERATORS,
    ),
    """
    Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh CumSum DepthToSpace Div Einsum Elu Erf Exp EyeLike
    Floor Gelu Gemm HardSigmoid Hardmax LeakyRelu Log LogSoftmax MatMul Mean Mul Neg PRelu Pad Pow Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Relu Resize Selu Sigmoid Sin Sinh Softmax Softplus Softsign SpaceToDepth Sqrt
    Sub Sum Tan Tanh Tile Trilu Upsample Where
    """,
    Trait.FLOAT_ON_CPU,
)
UNKNOWN = Operator()


def find(domain: str, name: str) -> Operator:
    """Return the record of an operator, by its domain and name."""
    return CATALOGUE.get(("" if domain == "ai.onnx" else domain, name), UNKNOWN)


def names(test: Callable[[Operator], object], domain: str | None = "") -> frozenset[str]:
    """Return the operators of a domain, of all domains for None, whose record passes a test."""
    return frozenset(
        name for (home, name), each in CATALOGUE.items() if domain in (None, home) and test(each)
    )


@functools.cache
def having(traits: Trait) -> frozenset[str]:
    """Return the operators, of any domain, that have one of these traits."""
    return names(lambda each: each.traits & traits, None)


@functools.cache
def moving(*moves: Move) -> frozenset[str]:
    """Return ONNX's operators that move elements in one of these ways."""
    return names(lambda each: each.move in moves)


REARRANGES = moving(Move.REARRANGES)
SELECTS = moving(Move.SELECTS)
EXTREMES = moving(Move.EXTREMES)
JOINS = moving(Move.JOINS)
CONTROL_FLOW = moving(Move.CONTROLS)
MOVERS = moving(*Move) - {"Cast", "Clip"}
"""Operators whose outputs hold values of their inputs and no others, in their type."""
BOUNDED = names(lambda each: each.limits) - {"Exp"}
"""Operators with results in [-1, 1] for any operand."""
SAME_ELEMENTS = REARRANGES - having(Trait.REPEATS | Trait.CONVERTS | Trait.DRAWS)
"""Operators whose output has each element of the input once."""
EXACT = MOVERS | having(Trait.EXACT)
"""Operators whose outputs are numbers of a half type where their inputs are."""
KEEPING_ZERO = REARRANGES | {"Neg"}
"""Operators of ONNX whose output is zero if their first input is, at its exponent, whatever else is read."""
OF_SIZES = moving(*Move) - CONTROL_FLOW | having(Trait.ARITHMETIC) | {"Reciprocal", "ReduceProd"}
"""Operators by which a graph computes sizes and positions."""


LARGEST_MASK_SCALE = 64.0
"""The largest factor, and its reciprocal the least, by which a scaled mask stays a mask: half of float16's
range divided by it is far beyond what a softmax distinguishes from infinity.
"""

ATTENTION_RESULTS = 3
"""The number of outputs of an attention before its scores."""

LARGEST_EXPONENT = 40
"""The largest power of two, up or down, that a stored value may be of the value that it stands for: what the
original has from 2^-86 to 2^87 is then a normal number of float32.
"""

LARGEST_ZERO = 1 << 24
"""The largest number of elements of a constant that is read to see whether it is zero."""


def has_arithmetic(domain: str, name: str) -> bool:
    """Return whether an operator computes with floats: no conversion, quantised arithmetic, Constant, or
    shape query does.
    """
    return not find(domain, name).traits & Trait.CONVERTS and not name.startswith("QLinear")
