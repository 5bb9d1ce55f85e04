"""Operators that move, select and join elements, and those that hold values."""

from typing import Any

from onnx import TensorProto

from amp_rewrite.operators import scaling
from amp_rewrite.operators.record import (
    ALL,
    FIRST,
    MICROSOFT,
    Family,
    Holds,
    Move,
    Ports,
    Role,
    Trait,
    Typed,
    family,
    merge,
)
from amp_rewrite.operators.scaling import OUT

_FROM_FIRST, _TEST = scaling.same(0, OUT), scaling.positive(scaling.free(0))
_LIKE, _RANKED, _FREE, _CONVERTS = Trait.LIKE_FIRST, Trait.RANKED, Trait.FREE, Trait.CONVERTS
_CASTS, _TURNS = Trait.CONVERTS | Trait.CASTS, Trait.TURNS
_INDEX, _AXES = {1: Role.INDEX}, {1: Role.AXES}
_TO, _AS_FIRST = Typed("to", "T2", None), Typed("dtype", "T2", like=0)


def _moving(move: Move, names: str, traits: Trait, masks: Ports = FIRST, **columns: Any) -> Family:
    """Return operators with elements of their first input alone."""
    rest: dict[str, Any] = {"flops": 0, "scales": _FROM_FIRST} | columns
    return family(names, move=move, carries=FIRST, traits=traits, masks=masks, **rest)


def _joining(names: str, ports: Ports, traits: Trait = Trait.NONE, **columns: Any) -> Family:
    """Return operators with elements of several inputs."""
    rest: dict[str, Any] = {"flops": 0} | columns
    return family(names, move=Move.JOINS, carries=ports, traits=traits, **rest)


def _rearranging(names: str, traits: Trait, **columns: Any) -> Family:
    return _moving(Move.REARRANGES, names, traits, **columns)


def _selecting(names: str, traits: Trait = Trait.NONE, **columns: Any) -> Family:
    return _moving(Move.SELECTS, names, traits, **columns)


OPERATORS = merge(
    _rearranging("Flatten", _FREE),
    _rearranging("Reshape", _FREE | _TURNS, roles={1: Role.SHAPE}),
    _rearranging("Squeeze Unsqueeze", _FREE | _TURNS, roles=_AXES),
    _rearranging("Identity", _LIKE | _FREE | _TURNS),
    _rearranging("DepthToSpace SpaceToDepth", _RANKED),
    _rearranging("Transpose", _RANKED | _TURNS),
    _rearranging("Tile", _RANKED | _TURNS | Trait.REPEATS),
    _rearranging("Expand", _TURNS | Trait.REPEATS),
    _rearranging("Dropout", _LIKE | _FREE | _TURNS | Trait.DRAWS, masks=(), roles={1: Role.SHARE}),
    _rearranging("Cast", _LIKE | _CASTS | _TURNS, masks=(), scales=scaling.cast, typed=_TO),
    _selecting("Gather GatherElements GatherND", roles=_INDEX),
    _selecting("Compress", Trait.COUNTS, roles={1: Role.MASK}),
    _selecting("ReverseSequence", _LIKE, roles={1: Role.LENGTH}),
    _selecting("Trilu", _LIKE),
    _selecting("Slice", _RANKED | _TURNS, roles={1: Role.ORIGIN, 2: Role.END, 3: Role.AXES}),
    _selecting("Split", _RANKED | _TURNS, scales=scaling.split),
    _selecting("Pad", _RANKED | _TURNS, masks=(0, 2), scales=scaling.pad, roles={1: Role.ORIGIN}),
    _selecting("SequenceAt", _FREE, masks=(), scales=scaling.pinned, holds=Holds.ELEMENT),
    _joining("Concat", ALL, _RANKED | _TURNS, masks=ALL, scales=scaling.together),
    _joining("Where", (1, 2), Trait.ELEMENTWISE, masks=(1, 2), scales=scaling.same(1, 2, OUT), flops=1),
    _joining("ScatterElements ScatterND", (0, 2), _LIKE, masks=(0, 2), scales=scaling.scatter, roles=_INDEX),
    _joining("ConcatFromSequence", ALL, holds=Holds.ELEMENT),
    _joining("SequenceConstruct", ALL, _FREE, holds=Holds.SEQUENCE),
    _joining("SequenceInsert", (0, 1), _FREE, holds=Holds.SAME),
    family("If Scan", move=Move.CONTROLS, carries=ALL, flops=0),
    family("Loop", move=Move.CONTROLS, carries=ALL, roles={0: Role.COUNT}, flops=0),
    # what moves nothing that is followed
    family("CastLike", scales=scaling.cast_like, traits=_LIKE | _CASTS, flops=0),
    family("BitCast", traits=_LIKE | Trait.CONVERTS, typed=Typed("to", "T2", None, settable=False), flops=0),
    family("Scatter", scales=scaling.scatter, traits=_LIKE, flops=0),
    family("SequenceEmpty", traits=_FREE, holds=Holds.EMPTY, typed=Typed("dtype", "S"), flops=0),
    family("SequenceErase", traits=_FREE, holds=Holds.SAME, flops=0),
    family("SplitToSequence", holds=Holds.SEQUENCE, flops=0),
    family("Optional", traits=_FREE, holds=Holds.OPTIONAL, flops=0),
    family("OptionalGetElement", traits=_FREE, holds=Holds.CONTENT, flops=0),
    family("OptionalHasElement SequenceLength", traits=_FREE, flops=0),
    family("SequenceMap CenterCropPad Crop DynamicSlice TensorScatter", flops=0),
    family("Unique", traits=Trait.COUNTS, flops=0),
    family("MaxUnpool", scales=_FROM_FIRST, traits=_RANKED, flops=0),
    family("NonZero", traits=Trait.COUNTS, scales=_TEST, roles={0: Role.MASK}, flops=0),
    family("Shape Size", scales=scaling.free(0), traits=Trait.MEASURES | _FREE | _CONVERTS, flops=0),
    family("Constant", traits=_FREE | _CONVERTS | Trait.EXACT, flops=0),
    family("ConstantOfShape", traits=Trait.EXACT, typed=Typed("value", "T2"), flops=0),
    family("EyeLike", typed=_AS_FIRST, flops=0),
    family("MemcpyFromHost MemcpyToHost OneHot", flops=0),
    family("Range", traits=Trait.ARITHMETIC, flops=0),
    family("RandomNormal RandomUniform", traits=Trait.DRAWS, typed=Typed("dtype", "T")),
    family(
        "Bernoulli RandomNormalLike RandomUniformLike", traits=Trait.DRAWS, typed=Typed("dtype", "T2", like=0)
    ),
    family("Multinomial", traits=Trait.DRAWS, typed=Typed("dtype", "T2", int(TensorProto.INT32))),
    family("MelWeightMatrix", typed=Typed("output_datatype", "T3")),
    family("BlackmanWindow HammingWindow HannWindow", typed=Typed("output_datatype", "T2")),
    family("BifurcationDetector ExpandDims GatherND Pad", MICROSOFT, flops=0),
    family("GatherBlockQuantized", MICROSOFT, roles=_INDEX, flops=0),
    family("QLinearConcat Range RemovePadding RestorePadding UnfoldTensor Unique", MICROSOFT, flops=0),
    family("Trilu", MICROSOFT, traits=_LIKE, flops=0),
)
