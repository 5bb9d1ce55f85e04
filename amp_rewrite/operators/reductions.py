"""Reductions, running sums, pools, interpolations and norms."""

from typing import Any

from amp_rewrite.operators import flops, scaling
from amp_rewrite.operators.flops import Formula
from amp_rewrite.operators.record import (
    FIRST,
    MICROSOFT,
    Along,
    Family,
    Move,
    Norm,
    Role,
    Trait,
    Typed,
    family,
    merge,
)
from amp_rewrite.operators.scaling import OUT

_LINEAR = scaling.same(0, OUT)
_PASSES, _FREE = scaling.positive(_LINEAR), scaling.positive(scaling.free(0))
_LIKE, _MEAN = Trait.LIKE_FIRST, Trait.SUMS | Trait.AVERAGES
_SHARE, _COORDINATES = frozenset((0.0, 1.0)), {1: Role.COORDINATES}
_STASH = Typed("stash_type", "U", settable=False)
_SAMPLED: dict[str, Any] = {"roles": _COORDINATES, "flops": flops.INTERPOLATED}


def _reducing(names: str, traits: Trait = Trait.NONE, domain: str = "", **columns: Any) -> Family:
    return family(names, domain, traits=Trait.REDUCES | traits, **columns)


def _pooling(names: str, count: Formula, traits: Trait = Trait.NONE, **columns: Any) -> Family:
    """Return operators that compute each element from those near its place."""
    return family(names, traits=Trait.POOLS | Trait.RANKED | traits, flops=count, **columns)


def _extreme(names: str, traits: Trait, **columns: Any) -> Family:
    """Return operators whose outputs are the largest or smallest elements."""
    return _reducing(names, traits, move=Move.EXTREMES, carries=FIRST, scales=_PASSES, **columns)


def _norm(
    names: str,
    domain: str = "",
    *,
    data: tuple[int, ...] = (0,),
    weights: tuple[int, ...] = (1, 2),
    along: Along = Along.LAST,
    epsilon: float = 1e-5,
    **columns: Any,
) -> Family:
    scales, norm = scaling.norm(data, weights), Norm(data, weights, along, epsilon)
    return family(names, domain, norm=norm, scales=scales, traits=_LIKE, **{"flops": 7} | columns)


OPERATORS = merge(
    _reducing("ReduceMean ReduceSum", _MEAN, scales=_LINEAR),
    _reducing("GlobalAveragePool", _MEAN | Trait.RANKED, scales=_LINEAR),
    _extreme("ReduceMax ReduceMin", Trait.TURNS, masks=FIRST, roles={1: Role.AXES}),
    _extreme("TopK", Trait.RANKED, chooses=1),
    _reducing("ReduceL1", Trait.SUMS, scales=_PASSES),
    _reducing("ReduceL2", Trait.SUMS | Trait.SQUARES, scales=_PASSES),
    _reducing("ReduceSumSquare", Trait.SUMS | Trait.SQUARES, scales=scaling.linear({OUT: 1, 0: -2})),
    _reducing("ReduceLogSum ReduceLogSumExp", Trait.SUMS),
    _reducing("ReduceProd"),
    _reducing("ArgMax ArgMin", chooses=0, scales=_FREE),
    _reducing("CumSum", Trait.SUMS | _LIKE, scales=_LINEAR, roles={1: Role.ORIGIN}),
    _reducing("CumProd", _LIKE, roles={1: Role.ORIGIN}),
    _reducing("GlobalMaxPool", Trait.RANKED, scales=_PASSES),
    _reducing("GlobalLpPool", Trait.SUMS | Trait.RANKED, scales=scaling.rounded(_PASSES)),
    _reducing("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    _reducing("QLinearGlobalAveragePool QLinearReduceMean", domain=MICROSOFT),
    _pooling("AveragePool", flops.pooled, _MEAN, scales=_LINEAR),
    _pooling("MaxPool", flops.pooled, Trait.EXACT, scales=_PASSES),
    _pooling("LpPool", flops.pooled, Trait.SUMS, scales=scaling.rounded(_PASSES)),
    _pooling(
        "Resize",
        flops.resize,
        Trait.INTERPOLATES,
        scales=scaling.unless("extrapolation_value", _LINEAR),
        roles={0: Role.IMAGE, 1: Role.COORDINATES, 2: Role.SCALE, 3: Role.SIZES},
    ),
    _pooling(
        "Upsample",
        flops.resize,
        Trait.INTERPOLATES,
        scales=_LINEAR,
        roles={0: Role.IMAGE, 1: Role.SCALE},
    ),
    family("QLinearAveragePool NhwcMaxPool", MICROSOFT, flops=flops.pooled),
    family("GridSample", traits=Trait.RANKED | Trait.INTERPOLATES, scales=_LINEAR, **_SAMPLED),
    family("GridSample", MICROSOFT, traits=Trait.INTERPOLATES, like="GridSample", **_SAMPLED),
    family("RoiAlign", scales=_PASSES, **_SAMPLED),
    family("MaxRoiPool", scales=_PASSES, roles=_COORDINATES),
    family("CropAndResize", MICROSOFT, roles=_COORDINATES),
    family(
        "NonMaxSuppression",
        traits=Trait.COUNTS,
        roles={0: Role.COORDINATES, 3: Role.SHARE, 4: Role.SHARE},
        chooses=0,
        flops=None,
    ),
    family("Col2Im", scales=_LINEAR),
    family("Hardmax", traits=_LIKE, scales=_FREE),
    # maximum, difference, exp, sum, quotient
    family("Softmax", traits=Trait.SOFTMAX | _LIKE, limits=_SHARE, roles={0: Role.SCORES}, flops=5),
    family("LogSoftmax", traits=Trait.SOFTMAX | _LIKE, flops=5),
    family("BiasSoftmax", MICROSOFT, traits=_LIKE, fuses="Softmax", flops=6),
    family("QLinearSoftmax", MICROSOFT, traits=_LIKE, flops=5),
    # norms: mean, difference, square, mean, product, scale, shift; fewer without mean or shift
    _norm("GroupNormalization", bias=2, along=Along.GROUP),
    _norm("InstanceNormalization", bias=2, along=Along.SPATIAL),
    _norm("LayerNormalization", bias=2, typed=_STASH),
    _norm("RMSNormalization", weights=(1,), flops=4),
    _norm("SimplifiedLayerNormalization", weights=(1,), typed=_STASH, flops=4),
    _norm("GroupNorm", MICROSOFT, along=Along.GROUP, fuses="GroupNormalization"),
    _norm(
        "SkipLayerNormalization",
        MICROSOFT,
        data=(0, 1, 4),
        weights=(2, 3),
        epsilon=1e-12,
        fuses="LayerNormalization",
        flops=8,
    ),
    _norm(
        "SkipSimplifiedLayerNormalization",
        MICROSOFT,
        data=(0, 1, 3),
        weights=(2,),
        epsilon=1e-12,
        fuses="RMSNormalization SimplifiedLayerNormalization",
        flops=5,
    ),
    family("SimplifiedLayerNormalization", MICROSOFT, traits=_LIKE, fuses="RMSNormalization", flops=4),
    family(
        "EmbedLayerNormalization",
        MICROSOFT,
        roles=dict.fromkeys((0, 1, 8), Role.INDEX),
        tables={0: 2, 1: 4, 8: 3},
        fuses="LayerNormalization",
        flops=9,
    ),
    family("SkipGroupNorm", MICROSOFT, fuses="GroupNormalization", flops=8),
    family("BranchwiseRMSNorm GatedRMSNorm", MICROSOFT, traits=_LIKE),
    family("MeanVarianceNormalization", traits=_LIKE, flops=5),
    family("LpNormalization", traits=_LIKE, scales=_FREE, flops=3),
    family("LRN", traits=_LIKE, flops=flops.local_norm),
)
