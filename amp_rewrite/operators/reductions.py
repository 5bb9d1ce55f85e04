"""Reductions, running sums, pools and interpolations."""

from amp_rewrite.operators import scaling
from amp_rewrite.operators.record import FIRST, MICROSOFT, Move, Trait, family, merge
from amp_rewrite.operators.scaling import OUT

_LINEAR = scaling.same(0, OUT)
_PASSES = scaling.positive(_LINEAR)
_FREE = scaling.positive(scaling.free(0))
_SUM = Trait.REDUCES | Trait.SUMS
_POOL = Trait.POOLS | Trait.RANKED
INTERPOLATED = 8
"""FLOPs of an interpolated element: four neighbours, a multiply-add each."""

OPERATORS = merge(
    family("ReduceMean ReduceSum", traits=_SUM | Trait.AVERAGES, scales=_LINEAR),
    family("GlobalAveragePool", traits=_SUM | Trait.AVERAGES | Trait.RANKED, scales=_LINEAR),
    family(
        "ReduceMax ReduceMin",
        move=Move.EXTREMES,
        carries=FIRST,
        masks=FIRST,
        traits=Trait.REDUCES,
        scales=_PASSES,
    ),
    family("TopK", move=Move.EXTREMES, carries=FIRST, traits=Trait.REDUCES | Trait.RANKED, scales=_PASSES),
    family("ReduceL1 ReduceL2", traits=_SUM, scales=_PASSES),
    family("ReduceSumSquare", traits=_SUM, scales=scaling.linear({OUT: 1, 0: -2})),
    family("ReduceLogSum ReduceLogSumExp", traits=_SUM),
    family("ReduceProd", traits=Trait.REDUCES),
    family("ArgMax ArgMin", traits=Trait.REDUCES, scales=_FREE),
    family("CumSum", traits=Trait.REDUCES | Trait.SUMS | Trait.LIKE_FIRST, scales=_LINEAR),
    family("CumProd", traits=Trait.REDUCES | Trait.LIKE_FIRST),
    family("GlobalMaxPool", traits=Trait.REDUCES | Trait.RANKED, scales=_PASSES),
    family("GlobalLpPool", traits=_SUM | Trait.RANKED, scales=scaling.rounded(_PASSES)),
    family("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", traits=Trait.REDUCES),
    family("AveragePool", traits=_POOL | Trait.SUMS | Trait.AVERAGES, scales=_LINEAR, flops=None),
    family("MaxPool", traits=_POOL | Trait.EXACT, scales=_PASSES, flops=None),
    family("LpPool", traits=_POOL | Trait.SUMS, scales=scaling.rounded(_PASSES), flops=None),
    family("QLinearAveragePool NhwcMaxPool", MICROSOFT, flops=None),
    family("QLinearGlobalAveragePool QLinearReduceMean", MICROSOFT, traits=Trait.REDUCES),
    family(
        "Resize",
        traits=_POOL,
        coordinates=(1, 2),
        scales=scaling.unless("extrapolation_value", _LINEAR),
        flops=None,
    ),
    family("Upsample", traits=_POOL, scales=_LINEAR, flops=None),
    family("GridSample", traits=Trait.RANKED, coordinates=(1,), scales=_LINEAR, flops=INTERPOLATED),
    family("GridSample", MICROSOFT, coordinates=(1,), flops=INTERPOLATED),
    family("RoiAlign", coordinates=(1,), scales=_PASSES, flops=INTERPOLATED),
    family("MaxRoiPool", coordinates=(1,), scales=_PASSES),
    family("NonMaxSuppression", traits=Trait.COUNTS, coordinates=(0,), flops=None),
    family("CropAndResize", MICROSOFT, coordinates=(1,)),
    family("Col2Im", scales=_LINEAR),
    family("Hardmax", traits=Trait.LIKE_FIRST, scales=_FREE),
    family(
        "Softmax", traits=Trait.SOFTMAX | Trait.LIKE_FIRST, limits=frozenset((0.0, 1.0)), scores=0, flops=5
    ),  # maximum, difference, exp, sum, quotient
    family("LogSoftmax", traits=Trait.SOFTMAX | Trait.LIKE_FIRST, flops=5),
    family("BiasSoftmax", MICROSOFT, traits=Trait.LIKE_FIRST, fuses="Softmax", flops=6),
    family("QLinearSoftmax", MICROSOFT, traits=Trait.LIKE_FIRST, flops=5),
)
