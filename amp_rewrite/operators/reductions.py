"""Reductions, running sums, pools and interpolations."""

from amp_rewrite.operators import flops, scaling
from amp_rewrite.operators.flops import INTERPOLATED
from amp_rewrite.operators.record import FIRST, MICROSOFT, Move, Role, Trait, family, merge
from amp_rewrite.operators.scaling import OUT

_LINEAR = scaling.same(0, OUT)
_PASSES = scaling.positive(_LINEAR)
_FREE = scaling.positive(scaling.free(0))
_SUM = Trait.REDUCES | Trait.SUMS
_COORDINATES = {1: Role.COORDINATES}
_POOL = Trait.POOLS | Trait.RANKED

OPERATORS = merge(
    family("ReduceMean ReduceSum", traits=_SUM | Trait.AVERAGES, scales=_LINEAR),
    family("GlobalAveragePool", traits=_SUM | Trait.AVERAGES | Trait.RANKED, scales=_LINEAR),
    family(
        "ReduceMax ReduceMin",
        move=Move.EXTREMES,
        carries=FIRST,
        masks=FIRST,
        traits=Trait.REDUCES | Trait.TURNS,
        roles={1: Role.AXES},
        scales=_PASSES,
    ),
    family(
        "TopK",
        move=Move.EXTREMES,
        carries=FIRST,
        chooses=1,
        traits=Trait.REDUCES | Trait.RANKED,
        scales=_PASSES,
    ),
    family("ReduceL1", traits=_SUM, scales=_PASSES),
    family("ReduceL2", traits=_SUM | Trait.SQUARES, scales=_PASSES),
    family("ReduceSumSquare", traits=_SUM | Trait.SQUARES, scales=scaling.linear({OUT: 1, 0: -2})),
    family("ReduceLogSum ReduceLogSumExp", traits=_SUM),
    family("ReduceProd", traits=Trait.REDUCES | Trait.ARITHMETIC),
    family("ArgMax ArgMin", traits=Trait.REDUCES, chooses=0, scales=_FREE),
    family(
        "CumSum",
        traits=Trait.REDUCES | Trait.SUMS | Trait.LIKE_FIRST,
        scales=_LINEAR,
        roles={1: Role.ORIGIN},
    ),
    family("CumProd", traits=Trait.REDUCES | Trait.LIKE_FIRST, roles={1: Role.ORIGIN}),
    family("GlobalMaxPool", traits=Trait.REDUCES | Trait.RANKED, scales=_PASSES),
    family("GlobalLpPool", traits=_SUM | Trait.RANKED, scales=scaling.rounded(_PASSES)),
    family("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", traits=Trait.REDUCES),
    family("AveragePool", traits=_POOL | Trait.SUMS | Trait.AVERAGES, scales=_LINEAR, flops=flops.pooled),
    family("MaxPool", traits=_POOL | Trait.EXACT, scales=_PASSES, flops=flops.pooled),
    family("LpPool", traits=_POOL | Trait.SUMS, scales=scaling.rounded(_PASSES), flops=flops.pooled),
    family("QLinearAveragePool NhwcMaxPool", MICROSOFT, flops=flops.pooled),
    family("QLinearGlobalAveragePool QLinearReduceMean", MICROSOFT, traits=Trait.REDUCES),
    family(
        "Resize",
        traits=_POOL | Trait.INTERPOLATES,
        roles={
            0: Role.IMAGE,
            1: Role.COORDINATES,
            2: Role.COORDINATES | Role.SCALE,
            3: Role.SIZES,
        },
        scales=scaling.unless("extrapolation_value", _LINEAR),
        flops=flops.resize,
    ),
    family(
        "Upsample",
        traits=_POOL | Trait.INTERPOLATES,
        roles={0: Role.IMAGE, 1: Role.SCALE},
        scales=_LINEAR,
        flops=flops.resize,
    ),
    family(
        "GridSample",
        traits=Trait.RANKED | Trait.INTERPOLATES,
        roles=_COORDINATES,
        scales=_LINEAR,
        flops=INTERPOLATED,
    ),
    family(
        "GridSample",
        MICROSOFT,
        traits=Trait.INTERPOLATES,
        like="GridSample",
        roles=_COORDINATES,
        flops=INTERPOLATED,
    ),
    family("RoiAlign", roles=_COORDINATES, scales=_PASSES, flops=INTERPOLATED),
    family("MaxRoiPool", roles=_COORDINATES, scales=_PASSES),
    family(
        "NonMaxSuppression",
        traits=Trait.COUNTS,
        roles={0: Role.COORDINATES, 3: Role.SHARE, 4: Role.SHARE},
        chooses=0,
        flops=None,
    ),
    family("CropAndResize", MICROSOFT, roles=_COORDINATES),
    family("Col2Im", scales=_LINEAR),
    family("Hardmax", traits=Trait.LIKE_FIRST, scales=_FREE),
    family(
        "Softmax",
        traits=Trait.SOFTMAX | Trait.LIKE_FIRST,
        limits=frozenset((0.0, 1.0)),
        roles={0: Role.SCORES},
        flops=5,
    ),  # maximum, difference, exp, sum, quotient
    family("LogSoftmax", traits=Trait.SOFTMAX | Trait.LIKE_FIRST, flops=5),
    family("BiasSoftmax", MICROSOFT, traits=Trait.LIKE_FIRST, fuses="Softmax", flops=6),
    family("QLinearSoftmax", MICROSOFT, traits=Trait.LIKE_FIRST, flops=5),
)
