"""Operators that compute each element from those at its place."""

from amp_rewrite.operators import scaling
from amp_rewrite.operators.record import ALL, FIRST, MICROSOFT, Move, Role, Trait, family, merge
from amp_rewrite.operators.scaling import OUT, positive

_PAIR, _UNARY = Trait.ELEMENTWISE, Trait.ELEMENTWISE | Trait.LIKE_FIRST
_NUMBER, _NUMBERS = _UNARY | Trait.ARITHMETIC, _PAIR | Trait.ARITHMETIC
_COMMUTES = _NUMBERS | Trait.COMMUTES
_TESTS = _PAIR | Trait.COMPARES
_PASSES, _FREE = positive(scaling.same(0, OUT)), positive(scaling.free(0))
_PRODUCT, _QUOTIENT = scaling.linear({OUT: 1, 0: -1, 1: -1}), scaling.linear({OUT: 1, 0: -1, 1: 1})
_ROOT, _INVERSE = positive(scaling.linear({OUT: 2, 0: -1})), scaling.linear({OUT: 1, 0: 1})
_NORMALIZED = positive(scaling.unless("training_mode", scaling.batch_norm))
_TOGETHER, _SCORES = positive(scaling.inputs_together), {0: Role.SCORES}
_SIGNED, _SHARE = frozenset((-1.0, 0.0, 1.0)), frozenset((0.0, 1.0))

OPERATORS = merge(
    family("Acos Asin Atanh", traits=_UNARY, roles={0: Role.SHARE}),
    family("Acosh", traits=_UNARY, roles={0: Role.ABOVE_ONE}),
    family("Asinh Atan Celu Cosh Elu Gelu HardSwish Mish Selu", traits=_UNARY),
    family("Shrink Sinh Softplus Swish Tan ThresholdedRelu", traits=_UNARY),
    family("Cos Erf Sin Softsign", traits=_UNARY, limits=_SIGNED),
    family("Tanh", traits=_UNARY, limits=_SIGNED, activation=()),
    family("Exp", traits=_UNARY, limits=_SHARE, roles=_SCORES),  # of a written-out softmax: a mask becomes 0
    family("HardSigmoid", traits=_UNARY, limits=_SHARE, activation=("alpha", "beta")),
    family("Sigmoid", traits=_UNARY, limits=_SHARE, activation=()),
    family("Abs", traits=_NUMBER | Trait.EXACT | Trait.KEEPS_ZERO, scales=_PASSES),
    family("LeakyRelu", traits=_UNARY, scales=_PASSES, activation=("alpha",)),
    family("PRelu", traits=_UNARY, scales=_PASSES),
    family("Relu", traits=_UNARY | Trait.EXACT, scales=_PASSES, activation=()),
    family("Neg", traits=_NUMBER | Trait.EXACT | Trait.KEEPS_ZERO, scales=scaling.same(0, OUT), masks=FIRST),
    family("Ceil Floor Round", traits=_NUMBER),
    family("Sign", traits=_NUMBER | Trait.EXACT, scales=_FREE),
    family("Sqrt", traits=_NUMBER | Trait.KEEPS_ZERO, roles={0: Role.RADICAND}, scales=_ROOT),
    family("Log", traits=_UNARY, roles={0: Role.LOGARITHM}),
    family("Reciprocal", traits=_UNARY, roles={0: Role.DIVISOR}, scales=_INVERSE),
    family("IsInf IsNaN", traits=_TESTS | Trait.LIKE_FIRST, scales=_FREE, flops=0),
    family("Not", traits=_UNARY | Trait.LOGICAL),
    family("BitwiseNot", traits=_UNARY),
    family("Add Sum", traits=_COMMUTES | Trait.ADDS, scales=scaling.together, masks=ALL),
    family("Sub", traits=_NUMBERS | Trait.ADDS, scales=scaling.together, masks=ALL),
    family("Mean", traits=_PAIR, scales=scaling.together),
    family(
        "Max Min",
        move=Move.BOUNDS,
        carries=ALL,
        masks=ALL,
        traits=_COMMUTES | Trait.TURNS,
        scales=positive(scaling.together),
    ),
    family(
        "Clip",
        move=Move.BOUNDS,
        carries=FIRST,
        traits=_NUMBER,
        scales=positive(scaling.clip),
        activation=("min", "max"),
    ),
    family("Mul", traits=_COMMUTES | Trait.SCALES | Trait.KEEPS_ZERO, scales=_PRODUCT),
    family("Div", traits=_NUMBERS | Trait.SCALES, roles={1: Role.DIVISOR}, scales=_QUOTIENT),
    family("Pow", traits=_NUMBERS, roles={0: Role.BASE}, scales=positive(scaling.power)),
    family("Mod", traits=_NUMBERS, roles={1: Role.DIVISOR}),
    family("Equal", traits=_TESTS, scales=_TOGETHER),
    family("Greater GreaterOrEqual Less LessOrEqual", traits=_TESTS | Trait.ORDERS, scales=_TOGETHER),
    family("And Or Xor", traits=_PAIR | Trait.LOGICAL),
    family("BitShift BitwiseAnd BitwiseOr BitwiseXor", traits=_PAIR),
    family(
        "BatchNormalization", traits=_UNARY, bias=2, roles={4: Role.RADICAND}, scales=_NORMALIZED, flops=2
    ),
    family("BiasGelu FastGelu QuickGelu", MICROSOFT, traits=_UNARY, fuses="Gelu"),
    family("BiasSplitGelu", MICROSOFT, fuses="Gelu"),
    family("Gelu BiasAdd ScaledSiLU Affine", MICROSOFT, traits=_UNARY),
    family("ImageScaler", roles={0: Role.IMAGE}),  # of opset 1
    family("ImageScaler", MICROSOFT, traits=_UNARY, roles={0: Role.IMAGE}),
    family("ParametricSoftplus ScaledTanh", MICROSOFT, traits=_UNARY),
    family("BiasDropout BitmaskBiasDropout BitmaskDropout", MICROSOFT, traits=Trait.LIKE_FIRST),
)
