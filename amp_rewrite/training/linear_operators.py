"""Rules of linear operators: the outputs that scale with given inputs.

A rule gets a node, the positions of its scaled inputs (`scaled`), and a predicate for inputs that are
constant zero or absent. It returns the positions of the outputs that are scaled as well, or None where the
node is not linear in these inputs together. An operator without a rule is not linear. Sources: ONNX's
operator documentation; for the gradients of onnxruntime-training,
orttraining/orttraining/core/graph/training_op_defs.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.onnx_facts.operators import (
    KEEPING_ZERO,
    LARGEST_ZERO,
    LINEAR_GRADIENTS,
    LINEAR_IN_ALL,
    LINEAR_IN_THE_FIRST,
)
from amp_rewrite.onnx_types import schema


@dataclass(frozen=True, slots=True)
class Site:
    """A node, the positions of its scaled inputs, and a predicate for inputs that are zero or absent."""

    node: ir.Node
    scaled: frozenset[int]
    is_zero: Callable[[int], bool]


Rule = Callable[[Site], Collection[int] | None]

_FIRST = (0,)
_ONLY_FIRST = frozenset((0,))
_NOTHING: tuple[int, ...] = ()


def outputs(site: Site) -> Collection[int] | None:
    """Return the outputs of a node that scale with its inputs; None where it is not linear in these."""
    domain = "" if site.node.domain == "ai.onnx" else site.node.domain
    rule = _RULES.get((domain, site.node.op_type))
    return None if rule is None else rule(site)


def _in(*ports: int) -> Rule:
    """Return the rule of an operator that is linear in any one of these inputs: all outputs scale."""

    def rule(site: Site) -> Collection[int] | None:
        alone = len(site.scaled) == 1 and site.scaled <= set(ports)
        return range(len(site.node.outputs)) if alone else None

    return rule


def _first_output(site: Site) -> Collection[int] | None:
    return _FIRST if site.scaled == _ONLY_FIRST else None


def _together(*ports: int) -> Rule:
    """Return the rule of an operator that is linear in these inputs (by default all) together: each must be
    scaled, or zero.
    """

    def rule(site: Site) -> Collection[int] | None:
        operands = ports or range(len(site.node.inputs))
        joint = site.scaled <= set(operands) and _all_or_zero(site, operands)
        return _FIRST if joint else None

    return rule


def _all_or_zero(site: Site, ports: Iterable[int]) -> bool:
    return all(port in site.scaled or site.is_zero(port) for port in ports)


def _product(*, addend: int | None = None) -> Rule:
    """Return the rule of a product, linear in either factor; input `addend` must be scaled too, or zero."""

    def rule(site: Site) -> Collection[int] | None:
        factors = site.scaled & {0, 1}
        others = () if addend is None else (addend,)
        sound = len(factors) == 1 and site.scaled <= {0, 1, *others} and _all_or_zero(site, others)
        return _FIRST if sound else None

    return rule


def _cast(site: Site) -> Collection[int] | None:
    to = site.node.attributes.get("to")
    is_float = to is not None and not to.is_ref() and ir.DataType(to.as_int()) in FLOATS
    return _FIRST if is_float else None


FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE))
"""The element types of losses, seeds and gradients."""


def _cast_like(site: Site) -> Collection[int] | None:
    """Ignore the second input, which only provides the type."""
    return _FIRST if 0 in site.scaled else _NOTHING


def _scatter(site: Site) -> Collection[int] | None:
    reduction = site.node.attributes.get("reduction")
    adds = reduction is None or (not reduction.is_ref() and reduction.as_string() in ("none", "add"))
    return _together(0, 2)(site) if adds else None


def _pad(site: Site) -> Collection[int] | None:
    """Require zero padding: an input from opset 11 on, an attribute before."""
    mode, value = schema.text(site.node, "mode", "constant"), site.node.attributes.get("value")
    pads_with_zero = site.is_zero(2) and (value is None or _number(value) == 0)
    return _first_output(site) if mode != "constant" or pads_with_zero else None


def _resize(site: Site) -> Collection[int] | None:
    extrapolation = site.node.attributes.get("extrapolation_value")
    return _first_output(site) if extrapolation is None or _number(extrapolation) == 0 else None


def _number(attribute: ir.Attr) -> float | None:
    return None if attribute.is_ref() else attribute.as_float()


_RULES: Mapping[tuple[str, str], Rule] = {
    **{("", operator): _first_output for operator in (*LINEAR_IN_THE_FIRST, "Div")},
    **{("", operator): _together() for operator in LINEAR_IN_ALL},
    **{("", operator): lambda _: _NOTHING for operator in ("Shape", "Size")},
    **{("", operator): _scatter for operator in ("Scatter", "ScatterElements", "ScatterND")},
    **{("", operator): _product(addend=2) for operator in ("Gemm", "Conv", "ConvTranspose")},
    ("", "Mul"): _product(),
    ("", "MatMul"): _product(),
    ("", "Split"): lambda site: range(len(site.node.outputs)) if site.scaled == _ONLY_FIRST else None,
    ("", "Where"): _together(1, 2),
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast_like,
    ("", "Einsum"): lambda site: _FIRST if len(site.scaled) == 1 else None,
    ("com.microsoft", "FusedMatMul"): _product(),
    ("com.microsoft", "TransposeMatMul"): _product(),
    **{("com.microsoft", operator): _in(0) for operator in LINEAR_GRADIENTS},
    ("com.microsoft", "SoftmaxCrossEntropyLossGrad"): lambda site: (
        _FIRST if site.scaled == _ONLY_FIRST and site.is_zero(4) else None
    ),
    ("com.microsoft", "GatherGrad"): _in(2),
    ("com.microsoft", "GatherNDGrad"): _in(2),
}


def is_zero(value: ir.Value | None, *, overridable: bool) -> bool:
    """Whether a value is absent, or constant and zero in every element.

    With `overridable`, initializers that are inputs too are not constant (IR version 4 and later).
    """
    if value is None:
        return True
    if value.is_graph_input() and (overridable or not value.is_initializer()):
        return False
    tensor, node = constants.stored_as(value), value.producer()
    if tensor is not None:
        return tensor.size <= LARGEST_ZERO and _is_number(tensor) and not constants.numbers(tensor).any()
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return fill is None or (not fill.is_ref() and not constants.numbers(fill.as_tensor()).any())
    operands = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in KEEPING_ZERO | {"Concat"} and all(
        is_zero(each, overridable=overridable) for each in operands
    )


def _is_number(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype in FLOATS or tensor.dtype.is_integer()
