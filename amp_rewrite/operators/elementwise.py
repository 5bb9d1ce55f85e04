"""Operators that compute each element from those at its place."""

from amp_rewrite.operators import scaling
from amp_rewrite.operators.record import ALL, FIRST, MICROSOFT, Move, Trait, family, merge
from amp_rewrite.operators.scaling import OUT, positive

_PAIR, _UNARY = Trait.ELEMENTWISE, Trait.ELEMENTWISE | Trait.LIKE_FIRST
_NUMBER, _NUMBERS = _UNARY | Trait.ARITHMETIC, _PAIR | Trait.ARITHMETIC
_COMMUTES = _NUMBERS | Trait.COMMUTES
_TESTS = _PAIR | Trait.COMPARES
_PASSES, _FREE = positive(scaling.same(0, OUT)), positive(scaling.free(0))
_PRODUCT, _QUOTIENT = scaling.linear({OUT: 1, 0: -1, 1: -1}), scaling.linear({OUT: 1, 0: -1, 1: 1})
_ROOT, _INVERSE = positive(scaling.linear({OUT: 2, 0: -1})), scaling.linear({OUT: 1, 0: 1})
_NORMALIZED = positive(scaling.unless("training_mode", scaling.batch_norm))
_SIGNED, _SHARE = frozenset((-1.0, 0.0, 1.0)), frozenset((0.0, 1.0))

OPERATORS = merge(
    family("Acos Acosh Asin Asinh Atan Atanh Celu Cosh Elu Gelu HardSwish Mish Selu", traits=_UNARY),
    family("Shrink Sinh Softplus Swish Tan ThresholdedRelu", traits=_UNARY),
    family("Cos Erf Sin Softsign Tanh", traits=_UNARY, limits=_SIGNED),
    family("Exp", traits=_UNARY, limits=_SHARE, scores=0),  # of a written-out softmax: a mask becomes 0
    family("HardSigmoid Sigmoid", traits=_UNARY, limits=_SHARE),
    family("Abs", traits=_NUMBER | Trait.EXACT, scales=_PASSES),
    family("LeakyRelu PRelu", traits=_UNARY, scales=_PASSES),
    family("Relu", traits=_UNARY | Trait.EXACT, scales=_PASSES),
    family("Neg", traits=_NUMBER | Trait.EXACT, scales=scaling.same(0, OUT), masks=FIRST),
    family("Ceil Floor Round", traits=_NUMBER),
    family("Sign", traits=_NUMBER | Trait.EXACT, scales=_FREE),
    family("Sqrt", traits=_NUMBER, needs=0, scales=_ROOT),
    family("Log", traits=_UNARY, needs=0),
    family("Reciprocal", traits=_UNARY, needs=0, scales=_INVERSE),
    family("IsInf IsNaN", traits=_TESTS | Trait.LIKE_FIRST, scales=_FREE, flops=0),
    family("Not BitwiseNot", traits=_UNARY),
    family("Add Sum", traits=_COMMUTES | Trait.ADDS, scales=scaling.together, masks=ALL),
    family("Sub", traits=_NUMBERS | Trait.ADDS, scales=scaling.together, masks=ALL),
    family("Mean", traits=_PAIR, scales=scaling.together),
    family(
        "Max Min",
        move=Move.BOUNDS,
        carries=ALL,
        masks=ALL,
        traits=_COMMUTES,
        scales=positive(scaling.together),
    ),
    family("Clip", move=Move.BOUNDS, carries=FIRST, traits=_NUMBER, scales=positive(scaling.clip)),
    family("Mul", traits=_COMMUTES | Trait.SCALES, scales=_PRODUCT),
    family("Div", traits=_NUMBERS | Trait.SCALES, needs=1, scales=_QUOTIENT),
    # a negative exponent, or one that is no integer, needs the digits of its base
    family("Pow", traits=_NUMBERS, needs=0, scales=positive(scaling.power)),
    family("Mod", traits=_NUMBERS),
    family(
        "Equal Greater GreaterOrEqual Less LessOrEqual",
        traits=_TESTS,
        scales=positive(scaling.inputs_together),
    ),
    family("And Or Xor BitShift BitwiseAnd BitwiseOr BitwiseXor", traits=_PAIR),
    family("BatchNormalization", traits=_UNARY, bias=2, scales=_NORMALIZED, flops=2),
    family("BiasGelu FastGelu QuickGelu", MICROSOFT, traits=_UNARY, fuses="Gelu"),
    family("BiasSplitGelu", MICROSOFT, fuses="Gelu"),
    family("Gelu BiasAdd ScaledSiLU Affine ImageScaler", MICROSOFT, traits=_UNARY),
    family("ParametricSoftplus ScaledTanh", MICROSOFT, traits=_UNARY),
    family("BiasDropout BitmaskBiasDropout BitmaskDropout", MICROSOFT, traits=Trait.LIKE_FIRST),
)
