"""What changed between versions of ONNX's operators that a comparison of their schemas does not tell.

Two tables: what a newer schema added or took away that changes nothing for a node without it, and what means
something else though the schemas look alike. Sources are ONNX's Changelog.md and Operators.md ("changelog",
by the newer version) and the adapters of its version converter (onnx/version_converter/adapters).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import onnx_ir as ir

RankOf = Callable[[ir.Value], "int | None"]
"""The rank of a value; None where it is unknown."""

NEUTRAL: Mapping[str, frozenset[str]] = {
    # absent means one index, the first, as before: changelog ArgMax-12
    "ArgMax": frozenset(["select_last_index"]),
    "ArgMin": frozenset(["select_last_index"]),
    # no window of its own, no mask of what is not padding: changelog Attention-24, -25
    "Attention": frozenset(["nonpad_kv_seqlen", "left_window_size", "right_window_size"]),
    # absent means floor and no dilation, as before: changelog AveragePool-10, -19
    "AveragePool": frozenset(["ceil_mode", "dilations"]),
    # 1 was the default and is what is left: changelog BatchNormalization-9; 0 means inference:
    # batch_normalization_13_14.h
    "BatchNormalization": frozenset(["spatial", "training_mode"]),
    # casts to float8 and float8e8m0, which older versions do not have: changelog Cast-19, -24
    "Cast": frozenset(["saturate", "round_mode"]),
    "CastLike": frozenset(["saturate", "round_mode"]),
    # other ways to give a value: changelog Constant-11, -12
    "Constant": frozenset(
        "sparse_value value_float value_floats value_int value_ints value_string value_strings".split()
    ),
    # DCR was the only order: changelog DepthToSpace-11
    "DepthToSpace": frozenset(["mode"]),
    # at inference nothing is dropped, whatever the ratio: dropout_11_12.h
    "Dropout": frozenset(["ratio", "training_mode", "seed"]),
    # 0 is the layout that was the only one: changelog LSTM-14
    "GRU": frozenset(["layout"]),
    "LSTM": frozenset(["layout"]),
    "RNN": frozenset(["layout"]),
    "GatherND": frozenset(["batch_dims"]),  # 0 means none, as before: changelog GatherND-12
    "MaxPool": frozenset(["ceil_mode", "dilations", "storage_order"]),  # changelog MaxPool-8, -10
    "LpPool": frozenset(["ceil_mode", "dilations"]),  # changelog LpPool-18
    "Pad": frozenset(["axes"]),  # absent means all axes, as before: changelog Pad-18
    # absent means all axes, as before: axes_attribute_to_input.h
    "ReduceL1": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceL2": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceLogSum": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceLogSumExp": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceMax": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceMean": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceMin": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceProd": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceSum": frozenset(["axes", "noop_with_empty_axes"]),
    "ReduceSumSquare": frozenset(["axes", "noop_with_empty_axes"]),
    # only the default is another, which CHANGES looks at: softmax_12_13.h
    "Hardmax": frozenset(["axis"]),
    "LogSoftmax": frozenset(["axis"]),
    "Softmax": frozenset(["axis"]),
    "Reshape": frozenset(["allowzero"]),  # 0 copies the dimension, as before: changelog Reshape-14
    # plain interpolation of all axes: changelog Resize-18
    "Resize": frozenset(["antialias", "axes", "keep_aspect_ratio_policy"]),
    "ScatterElements": frozenset(["reduction"]),  # none, as before: changelog ScatterElements-16
    "ScatterND": frozenset(["reduction"]),
    "Shape": frozenset(["start", "end"]),  # the whole shape, as before: changelog Shape-15
    "Split": frozenset(["num_outputs"]),  # where the parts are given as an input: split_17_18.h
    "Squeeze": frozenset(["axes"]),  # absent means all of size 1, as before: axes_attribute_to_input.h
    # the k largest, in order, as before: topk_9_10.h, changelog TopK-11
    "TopK": frozenset(["largest", "sorted"]),
}
"""Attributes and optional inputs that may come, go, or have another default: a node without them means the
same.
"""


class Change(NamedTuple):
    """A change of meaning: the version that brought it, and which nodes it leaves as they were."""

    since: int
    spares: Callable[[ir.Node, RankOf], bool]


def _never(_: ir.Node, __: RankOf) -> bool:
    return False


def _normalises_last_axis(node: ir.Node, rank_of: RankOf) -> bool:
    """Before 13 all axes from `axis` on were one; the default was 1 (softmax_12_13.h)."""
    stated = node.attributes.get("axis")
    if stated is not None and (stated.is_ref() or stated.type != ir.AttributeType.INT):
        return False
    axis = 1 if stated is None else stated.as_int()
    value = node.inputs[0] if node.inputs else None
    rank = rank_of(value) if value is not None else None
    return (axis == -1 and stated is not None) or (rank is not None and axis == rank - 1)


def _is(name: str, *values: object) -> Callable[[ir.Node, RankOf], bool]:
    """Whether a node says nothing of an attribute, or one of these."""

    def holds(node: ir.Node, _: RankOf) -> bool:
        attribute = node.attributes.get(name)
        return attribute is None or (not attribute.is_ref() and attribute.value in values)

    return holds


def _has_parts(node: ir.Node, _: RankOf) -> bool:
    """Since 18 a Split without its second input needs `num_outputs` (split_17_18.h)."""
    return len(node.inputs) > 1 and node.inputs[1] is not None


def _is_inference(node: ir.Node, _: RankOf) -> bool:
    """Before 14, a BatchNormalization with more than one output trained (batch_normalization_13_14.h)."""
    return not any(value.name for value in node.outputs[1:])


_NO_CEILING = _is("ceil_mode", 0)
_EXPLICIT_PADS = _is("auto_pad", "NOTSET", "VALID")

CHANGES: Mapping[str, tuple[Change, ...]] = {
    # which windows count where the size is rounded up: changelog AveragePool-11, -19, -22, MaxPool-12, -22
    "AveragePool": (Change(11, _NO_CEILING), Change(19, _NO_CEILING), Change(22, _NO_CEILING)),
    "BatchNormalization": (Change(14, _is_inference),),
    "MaxPool": (Change(12, _NO_CEILING), Change(22, _NO_CEILING)),
    # on which side an odd number of padding goes was written the wrong way round: changelog ConvTranspose-11
    "ConvTranspose": (Change(11, _EXPLICIT_PADS),),
    "DequantizeLinear": (Change(19, _never), Change(21, _never), Change(23, _never)),  # q_dq_21_20.h
    "QuantizeLinear": (Change(19, _never), Change(21, _never), Change(23, _never)),
    "GridSample": (Change(20, _never),),  # modes have other names: gridsample_19_20.h
    "GroupNormalization": (Change(21, _never),),  # a scale a channel: group_normalization_20_21.h
    "Hardmax": (Change(13, _normalises_last_axis),),
    "LogSoftmax": (Change(13, _normalises_last_axis),),
    "Softmax": (Change(13, _normalises_last_axis),),
    "Mod": (Change(28, _never),),  # the sign of zero: changelog Mod-28
    "OneHot": (Change(11, _never),),  # negative indices count from the end: changelog OneHot-11
    # a mode was taken away: changelog Resize-13
    "Resize": (
        Change(
            13,
            _is(
                "coordinate_transformation_mode",
                *(
                    "half_pixel",
                    "pytorch_half_pixel",
                    "align_corners",
                    "asymmetric",
                    "tf_crop_and_resize",
                ),
            ),
        ),
    ),
    "RoiAlign": (Change(16, _never),),  # the default is another: changelog RoiAlign-16
    "Scatter": (Change(11, _never),),  # scatter_10_11.h
    "Split": (Change(18, _has_parts),),
    "Upsample": (Change(10, _never),),  # upsample_9_10.h
}
"""By operator, what means something else from a version on."""
