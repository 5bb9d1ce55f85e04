"""Norms. Their FLOPs: mean, difference, square, mean, product, scale, shift; fewer without mean or shift."""

from typing import Any

from amp_rewrite.operators import flops, scaling
from amp_rewrite.operators.record import MICROSOFT, Along, Family, Norm, Role, Trait, Typed, family, merge

_LIKE = Trait.LIKE_FIRST
_STASH = Typed("stash_type", "U", settable=False)
_FLOPS: dict[str, Any] = {"flops": 7}


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
    return family(names, domain, norm=norm, scales=scales, traits=_LIKE, **_FLOPS | columns)


OPERATORS = merge(
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
    family("LpNormalization", traits=_LIKE, scales=scaling.positive(scaling.free(0)), flops=3),
    family("LRN", traits=_LIKE, flops=flops.local_norm),
)
