"""Changes between versions of ONNX's operators that a comparison of their schemas does not show.

Two tables: schema changes without effect on nodes that do not use them, and changes of semantics despite
similar schemas. Sources are ONNX's Changelog.md and Operators.md ("changelog",
by the newer version) and the adapters of its version converter (onnx/version_converter/adapters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait

_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()

NEUTRAL: Mapping[str, frozenset[str]] = {
    # absent means one index, the first, as before: changelog ArgMax-12
    "ArgMax": frozenset(["select_last_index"]),
    "ArgMin": frozenset(["select_last_index"]),
    # no window, no mask of padding: changelog Attention-24, -25
    "Attention": frozenset(["nonpad_kv_seqlen", "left_window_size", "right_window_size"]),
    # absent means floor and no dilation, as before: changelog AveragePool-10, -19
    "AveragePool": frozenset(["ceil_mode", "dilations"]),
    # 1 was the default and is the only semantics now: changelog BatchNormalization-9; 0 means inference:
    # batch_normalization_13_14.h
    "BatchNormalization": frozenset(["spatial", "training_mode"]),
    # casts to float8 and float8e8m0, which older versions do not have: changelog Cast-19, -24
    "Cast": frozenset(["saturate", "round_mode"]),
    "CastLike": frozenset(["saturate", "round_mode"]),
    # other attributes for a value: changelog Constant-11, -12
    "Constant": frozenset(
        "sparse_value value_float value_floats value_int value_ints value_string value_strings".split()
    ),
    # DCR was the only order: changelog DepthToSpace-11
    "DepthToSpace": frozenset(["mode"]),
    # inference ignores the ratio: dropout_11_12.h
    "Dropout": frozenset(["ratio", "training_mode", "seed"]),
    # 0 is the only earlier layout: changelog LSTM-14
    **dict.fromkeys(having(Trait.RECURRENT), frozenset(["layout"])),
    "GatherND": frozenset(["batch_dims"]),  # 0 means none, as before: changelog GatherND-12
    "MaxPool": frozenset(["ceil_mode", "dilations", "storage_order"]),  # changelog MaxPool-8, -10
    "LpPool": frozenset(["ceil_mode", "dilations"]),  # changelog LpPool-18
    "Pad": frozenset(["axes"]),  # absent means all axes, as before: changelog Pad-18
    # absent means all axes, as before: axes_attribute_to_input.h
    **{f"Reduce{kind}": frozenset(["axes", "noop_with_empty_axes"]) for kind in _REDUCTIONS},
    # only the default differs, which CHANGES handles: softmax_12_13.h
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), frozenset(["axis"])),
    # of float8 alone, without blocks, types from the scale and the zero point: changelog QuantizeLinear-19,
    # 21 and 23, convert.h
    "QuantizeLinear": frozenset(["saturate", "block_size", "output_dtype", "precision"]),
    "DequantizeLinear": frozenset(["block_size", "output_dtype"]),
    "Reshape": frozenset(["allowzero"]),  # 0 copies the dimension, as before: changelog Reshape-14
    # plain interpolation of all axes: changelog Resize-18
    "Resize": frozenset(["antialias", "axes", "keep_aspect_ratio_policy"]),
    "ScatterElements": frozenset(["reduction"]),  # none, as before: changelog ScatterElements-16
    "ScatterND": frozenset(["reduction"]),
    "Shape": frozenset(["start", "end"]),  # the whole shape, as before: changelog Shape-15
    "Split": frozenset(["num_outputs"]),  # with the sizes of the parts as an input: split_17_18.h
    "Squeeze": frozenset(["axes"]),  # absent means all of size 1, as before: axes_attribute_to_input.h
    # the k largest, in order, as before: topk_9_10.h, changelog TopK-11
    "TopK": frozenset(["largest", "sorted"]),
}
"""Attributes and optional inputs whose addition, removal or new default spares nodes without them."""


@dataclass(frozen=True, slots=True)
class Unless:
    """A change that spares nodes without an attribute, or with one of these values of it."""

    attribute: str
    values: tuple[object, ...] = ()


class Spared(Enum):
    """Other nodes that a change spares: none; those that normalise the last axis; a Split with the parts as
    an input; and a BatchNormalization with one output.
    """

    NONE = "none"
    OF_LAST_AXIS = "of the last axis"
    WITH_PARTS = "with parts"
    WITH_ONE_OUTPUT = "with one output"


class VersionChange(NamedTuple):
    """A change of semantics: the version that introduced it, and the nodes that it does not affect."""

    since: int
    spares: Unless | Spared = Spared.NONE


_NO_CEILING = Unless("ceil_mode", (0,))
_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")

CHANGES: Mapping[str, tuple[VersionChange, ...]] = {
    # the windows with a size rounded up: changelog AveragePool-11, -19, -22, MaxPool-12, -22
    "AveragePool": (
        VersionChange(11, _NO_CEILING),
        VersionChange(19, _NO_CEILING),
        VersionChange(22, _NO_CEILING),
    ),
    # before 14, several outputs meant training mode: batch_normalization_13_14.h
    "BatchNormalization": (VersionChange(14, Spared.WITH_ONE_OUTPUT),),
    "MaxPool": (VersionChange(12, _NO_CEILING), VersionChange(22, _NO_CEILING)),
    # the side of odd padding was documented the wrong way round: changelog ConvTranspose-11
    "ConvTranspose": (
        VersionChange(11, Unless("auto_pad", ("NOTSET", "VALID"))),
        VersionChange(11, Unless("output_shape")),
    ),
    "GridSample": (VersionChange(20),),  # modes have other names: gridsample_19_20.h
    "GroupNormalization": (VersionChange(21),),  # a scale for each channel: group_normalization_20_21.h
    # before 13 all axes from `axis` on were one; the default was 1: softmax_12_13.h
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), (VersionChange(13, Spared.OF_LAST_AXIS),)),
    "Mod": (VersionChange(28),),  # the sign of zero: changelog Mod-28
    "OneHot": (VersionChange(11),),  # negative indices count from the end: changelog OneHot-11
    "PRelu": (VersionChange(7),),  # a slope with other broadcasting: changelog PRelu-7
    # a mode was removed: changelog Resize-13
    "Resize": (VersionChange(13, Unless("coordinate_transformation_mode", _MODES)),),
    "RoiAlign": (VersionChange(16),),  # another default: changelog RoiAlign-16
    "Scatter": (VersionChange(11),),  # scatter_10_11.h
    # since 18 one without its second input needs `num_outputs`: split_17_18.h
    "Split": (VersionChange(18, Spared.WITH_PARTS),),
    "Upsample": (VersionChange(10),),  # upsample_9_10.h
}
"""The changes of semantics, by operator."""
