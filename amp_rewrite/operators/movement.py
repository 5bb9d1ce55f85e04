"""Operators that move, select and join elements, and those that hold values."""

from typing import Any

from amp_rewrite.operators import scaling
from amp_rewrite.operators.record import ALL, FIRST, MICROSOFT, Family, Move, Ports, Trait, family
from amp_rewrite.operators.scaling import OUT

_FROM_FIRST = scaling.same(0, OUT)
_LIKE, _RANKED, _FREE, _CONVERTS = Trait.LIKE_FIRST, Trait.RANKED, Trait.FREE, Trait.CONVERTS


def _moving(
    move: Move, names: str, traits: Trait = Trait.NONE, masks: Ports = FIRST, **columns: Any
) -> Family:
    """Return operators with elements of their first input alone."""
    defaults: dict[str, Any] = {"flops": 0, "scales": _FROM_FIRST}
    return family(
        names,
        move=move,
        carries=FIRST,
        traits=traits,
        masks=masks,
        **defaults | columns,
    )


def _joining(names: str, ports: Ports, traits: Trait = Trait.NONE, **columns: Any) -> Family:
    """Return operators with elements of several inputs."""
    defaults: dict[str, Any] = {"flops": 0}
    return family(names, move=Move.JOINS, carries=ports, traits=traits, **defaults | columns)


OPERATORS: Family = {
    **_moving(Move.REARRANGES, "Flatten Reshape Squeeze Unsqueeze", _FREE),
    **_moving(Move.REARRANGES, "Identity", _LIKE | _FREE),
    **_moving(Move.REARRANGES, "DepthToSpace SpaceToDepth Transpose", _RANKED),
    **_moving(Move.REARRANGES, "Tile", _RANKED | Trait.REPEATS),
    **_moving(Move.REARRANGES, "Expand", Trait.REPEATS),
    **_moving(Move.REARRANGES, "Dropout", _LIKE | _FREE | Trait.DRAWS, masks=()),
    **_moving(Move.REARRANGES, "Cast", _LIKE | _CONVERTS, masks=(), scales=scaling.cast),
    **_moving(Move.SELECTS, "Compress Gather GatherElements GatherND"),
    **_moving(Move.SELECTS, "ReverseSequence Trilu", _LIKE),
    **_moving(Move.SELECTS, "Slice", _RANKED),
    **_moving(Move.SELECTS, "Split", _RANKED, scales=scaling.split),
    **_moving(Move.SELECTS, "Pad", _RANKED, masks=(0, 2), scales=scaling.pad),
    **_moving(Move.SELECTS, "SequenceAt", _FREE, masks=(), scales=scaling.pinned),
    **_joining("Concat", ALL, _RANKED, masks=ALL, scales=scaling.together),
    **_joining("Where", (1, 2), Trait.ELEMENTWISE, masks=(1, 2), scales=scaling.same(1, 2, OUT), flops=1),
    **_joining("ScatterElements ScatterND", (0, 2), _LIKE, masks=(0, 2), scales=scaling.scatter),
    **_joining("ConcatFromSequence", ALL),
    **_joining("SequenceConstruct", ALL, _FREE),
    **_joining("SequenceInsert", (0, 1), _FREE),
    **family("If Loop Scan", move=Move.CONTROLS, carries=ALL, flops=0),
    # what moves nothing that is followed
    **family("CastLike", scales=scaling.cast_like, traits=_LIKE | _CONVERTS, flops=0),
    **family("BitCast", traits=_LIKE | _CONVERTS, flops=0),
    **family("Scatter", scales=scaling.scatter, traits=_LIKE, flops=0),
    **family("SequenceEmpty SequenceErase SequenceLength", traits=_FREE, flops=0),
    **family("Optional OptionalGetElement OptionalHasElement", traits=_FREE, flops=0),
    **family("SequenceMap SplitToSequence CenterCropPad Crop DynamicSlice TensorScatter Unique", flops=0),
    **family("MaxUnpool", scales=_FROM_FIRST, traits=_RANKED, flops=0),
    **family("NonZero", scales=scaling.positive(scaling.free(0)), flops=0),
    **family("Shape Size", scales=scaling.free(0), traits=Trait.MEASURES | _FREE | _CONVERTS, flops=0),
    **family("Constant", traits=_FREE | _CONVERTS, flops=0),
    **family("ConstantOfShape EyeLike MemcpyFromHost MemcpyToHost OneHot", flops=0),
    **family("Range", traits=Trait.ARITHMETIC, flops=0),
    **family("Bernoulli Multinomial RandomNormal RandomNormalLike", traits=Trait.DRAWS),
    **family("RandomUniform RandomUniformLike", traits=Trait.DRAWS),
    **family("BifurcationDetector ExpandDims GatherBlockQuantized GatherND Pad", MICROSOFT, flops=0),
    **family("QLinearConcat Range RemovePadding RestorePadding UnfoldTensor Unique", MICROSOFT, flops=0),
    **family("Trilu", MICROSOFT, traits=_LIKE, flops=0),
}
