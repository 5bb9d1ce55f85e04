"""Whether a node means the same at two versions of its operator, by their schemas and by what changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping

from onnx import AttributeProto, defs
from onnx.defs import OpSchema

from amp_rewrite.certificate import attributes, signatures
from amp_rewrite.certificate.numbered import MISSING, Node

RankOf = Callable[[int], "int | None"]


def same(node: Node, other: int, rank_of: RankOf) -> bool:
    """Whether a node means at version `other` of its domain what it means at its own."""
    if max(node.version, other) > _NEWEST.get(node.operator[0], sys.maxsize):
        return False
    before = signatures.schema(*node.operator, node.version)
    after = signatures.schema(*node.operator, other)
    if before is None or after is None:
        return before is after and not node.operator[0]  # one of onnxruntime's, which goes by its own schema
    if before.since_version == after.since_version:
        return True
    if after.since_version < before.since_version:
        before, after = after, before
    stated = {name: held.attribute for name, held in attributes.of(node).items()}
    return (
        not after.deprecated
        and _same_ports(before, after, node)
        and _same_attributes(before, after, stated)
        and _means_same(before, after, node, stated, rank_of)
    )


_NEWEST = {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}
"""The newest versions: of later ones nobody knows what operators will mean."""

_VARIADIC = OpSchema.FormalParameterOption.Variadic
_SINGLE = OpSchema.FormalParameterOption.Single


def _same_ports(before: OpSchema, after: OpSchema, node: Node) -> bool:
    """Whether the ports that a node uses are in both, and none that it needs is left out."""
    for formals, used in (
        (before.inputs, len(node.inputs)),
        (after.inputs, len(node.inputs)),
        (before.outputs, node.count),
        (after.outputs, node.count),
    ):
        if used > len(formals) and not (formals and formals[-1].option == _VARIADIC):
            return False
    needed = [i for x in (before, after) for i, formal in enumerate(x.inputs) if formal.option == _SINGLE]
    if any(i >= len(node.inputs) or node.inputs[i] == MISSING for i in needed):
        return False
    came = {formal.name for formal in after.inputs[len(before.inputs) :]}
    return came <= _INDIFFERENT.get(node.operator[1], frozenset())


def _same_attributes(before: OpSchema, after: OpSchema, stated: Collection[str]) -> bool:
    """Whether what is stated is in both, and what is not has one default, or none that matters."""
    old, new = before.attributes, after.attributes
    indifferent = _INDIFFERENT.get(before.name, frozenset())
    for name in {*old, *new}:
        both = name in old and name in new
        if name in stated:
            if not both or old[name].type != new[name].type:
                return False
        elif name not in indifferent and not (both and _default(old[name]) == _default(new[name])):
            return False
    return not any(attribute.required and name not in stated for name, attribute in new.items())


def _default(attribute: OpSchema.Attribute) -> bytes:
    return attribute.default_value.SerializeToString()


_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()

_INDIFFERENT: Mapping[str, frozenset[str]] = {
    **{f"Reduce{kind}": frozenset(("axes", "noop_with_empty_axes")) for kind in _REDUCTIONS},
    "ArgMax": frozenset(("select_last_index",)),
    "ArgMin": frozenset(("select_last_index",)),
    "AveragePool": frozenset(("ceil_mode", "dilations")),
    "BatchNormalization": frozenset(("spatial", "training_mode")),
    "Cast": frozenset(("saturate", "round_mode")),
    "CastLike": frozenset(("saturate", "round_mode")),
    "Dropout": frozenset(("ratio", "training_mode", "seed")),
    "DepthToSpace": frozenset(("mode",)),
    "GRU": frozenset(("layout",)),
    "GatherND": frozenset(("batch_dims",)),
    "Hardmax": frozenset(("axis",)),
    "LSTM": frozenset(("layout",)),
    "LogSoftmax": frozenset(("axis",)),
    "LpPool": frozenset(("ceil_mode", "dilations")),
    "MaxPool": frozenset(("ceil_mode", "dilations", "storage_order")),
    "Pad": frozenset(("axes",)),
    "RNN": frozenset(("layout",)),
    "Reshape": frozenset(("allowzero",)),
    "Resize": frozenset(("antialias", "axes", "keep_aspect_ratio_policy")),
    "ScatterElements": frozenset(("reduction",)),
    "ScatterND": frozenset(("reduction",)),
    "Shape": frozenset(("start", "end")),
    "Softmax": frozenset(("axis",)),
    "Split": frozenset(("num_outputs",)),
    "Squeeze": frozenset(("axes",)),
    "TopK": frozenset(("largest", "sorted")),
}
"""What newer versions brought, took away or gave another default, where a node without it means the same; by
ONNX's changelog. What is not here counts as a change of meaning."""

_ALWAYS: Mapping[str, tuple[int, ...]] = {
    "DequantizeLinear": (19, 21, 23),
    "GridSample": (20,),
    "GroupNormalization": (21,),
    "Mod": (28,),
    "OneHot": (11,),
    "PRelu": (7,),
    "QuantizeLinear": (19, 21, 23),
    "RoiAlign": (16,),
    "Scatter": (11,),
    "Upsample": (10,),
}
"""The versions that changed what an operator computes without telling in its schema; by ONNX's changelog."""


_Stated = Mapping[str, AttributeProto]


def _means_same(before: OpSchema, after: OpSchema, node: Node, stated: _Stated, rank_of: RankOf) -> bool:
    def crosses(versions: Collection[int]) -> bool:
        return any(before.since_version < version <= after.since_version for version in versions)

    name = node.operator[1]
    if crosses(_ALWAYS.get(name, ())):
        return False
    versions, spares = _SOMETIMES.get(name, ((), None))
    return spares is None or not crosses(versions) or spares(node, stated, rank_of)


def _has_no_ceiling(_: Node, stated: _Stated, __: RankOf) -> bool:
    return "ceil_mode" not in stated or not stated["ceil_mode"].i


def _pads_as_stated(_: Node, stated: _Stated, __: RankOf) -> bool:
    if "output_shape" in stated:
        return False  # what is left over was put at the other end
    return "auto_pad" not in stated or stated["auto_pad"].s in (b"NOTSET", b"VALID")


def _infers(node: Node, _: _Stated, __: RankOf) -> bool:
    return node.count == 1


def _has_parts(node: Node, _: _Stated, __: RankOf) -> bool:
    return len(node.inputs) > 1


def _has_a_mode_of_both(_: Node, stated: _Stated, __: RankOf) -> bool:
    mode = stated.get("coordinate_transformation_mode")
    return mode is None or mode.s != b"tf_half_pixel_for_nn"


def _takes_the_last_axis(node: Node, stated: _Stated, rank_of: RankOf) -> bool:
    """Before 13 all axes from `axis` on were one, and the default was 1; since then it is the last."""
    if "axis" in stated and stated["axis"].i == -1:
        return True
    axis, rank = stated["axis"].i if "axis" in stated else 1, rank_of(node.inputs[0])
    return rank is not None and axis == rank - 1


_SOMETIMES: Mapping[str, tuple[tuple[int, ...], Callable[[Node, _Stated, RankOf], bool]]] = {
    "AveragePool": ((11, 19, 22), _has_no_ceiling),
    "BatchNormalization": ((14,), _infers),
    "ConvTranspose": ((11,), _pads_as_stated),
    "Hardmax": ((13,), _takes_the_last_axis),
    "LogSoftmax": ((13,), _takes_the_last_axis),
    "MaxPool": ((12, 22), _has_no_ceiling),
    "Resize": ((13,), _has_a_mode_of_both),
    "Softmax": ((13,), _takes_the_last_axis),
    "Split": ((18,), _has_parts),
}
"""The versions that changed what some nodes of an operator compute, and which nodes they spare."""
