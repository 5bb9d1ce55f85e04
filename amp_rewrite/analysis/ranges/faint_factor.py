"""Factors so small that half rounds them to few steps or to zero, which something multiplies up behind.

    Mul(MatMul(x, w), 1e6)        with w of about 1e-7: half has steps of 6e-8 there
    LayerNormalization(MatMul(x, w))                  the same, by the root of its epsilon

Small weights do no harm where what they make stays as small, or is added to something larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from amp_rewrite.analysis.operators import PRODUCTS, effective_op
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Reason

_STEPS = 64.0
"""How many steps of half a factor has at most that is faint: its smaller numbers lose several percent."""
_SCALE = 64.0
"""The least factor that multiplies something up; weights of layers are smaller."""
_KEEP = frozenset(
    "Abs Expand Flatten Gather Identity LeakyRelu Neg Relu Reshape Slice Split Squeeze Tile Transpose "
    "Unsqueeze".split()
)
_SUMS = frozenset(("Add", "Sub", "Sum"))
_NORMS = frozenset(("GroupNormalization", "InstanceNormalization", "LayerNormalization"))
_EPSILON = 1e-5
"""That of a norm which declares none."""
_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
"""The inputs of products that are added."""


def find(constant: Constant, context: Context) -> Findings:
    """The units on any path from a faint factor to where what it makes is multiplied up to half's normal
    numbers.
    """
    fit, half = constant.fit, context.half
    if fit.exact or not 0 < fit.magnitude < half.smallest * _STEPS:
        return NONE
    normal = _normal(half)

    def after(use: UnitUse) -> float | None:
        made = _made(use, context)
        return made if made is not None and made < normal else None

    found = propagate(context.graph, [use._replace(carried=fit.magnitude) for use in constant.uses], after)
    ends = [use for use in found.uses if (_made(use, context) or 0.0) >= normal]
    evidence = constant.evidence(Reason.FAINT_FACTOR, half, fit.magnitude, half.smallest)
    return {use.unit: evidence for use in found.on_paths_to(ends)} if ends else NONE


def _normal(half: Half) -> float:
    """The smallest normal number."""
    return half.smallest * half.integers / 2


def _made(use: UnitUse, context: Context) -> float | None:
    """The magnitude of what a node makes of what it reads there, beside data of about 1; None where something
    larger takes its place.
    """
    node = context.node(use.unit)
    operator = effective_op(node)
    if operator in _KEEP:
        return use.carried
    if operator in _SUMS:
        others = (value for port, value in enumerate(node.inputs) if port != use.port)
        return use.carried if _are_faint(others, context) else None
    if operator in _NORMS and use.port == 0:
        epsilon = max(schema.number(node, "epsilon", _EPSILON), context.half.smallest**2)
        return use.carried * _scale(epsilon**-0.5)
    return _multiplied(node, operator, use, context)


def _multiplied(node: ir.Node, operator: str, use: UnitUse, context: Context) -> float | None:
    """The same for products, factors and dividends."""
    bias = _BIAS.get(operator)
    if use.port == bias or (operator == "Div" and use.port == 1):
        return None
    if operator not in PRODUCTS and operator not in ("Div", "Mul"):
        return None
    if bias is not None and not _are_faint(node.inputs[bias : bias + 1], context):
        return None
    others = (value for port, value in enumerate(node.inputs) if port not in (use.port, bias))
    by = math.prod(_factor(value, context) for value in others)
    return use.carried * _scale(1 / by if operator == "Div" else by * _alpha(node))


def _factor(value: ir.Value | None, context: Context) -> float:
    """The largest number of a stored factor; 1 for data."""
    fit = context.fits.get(value) if value is not None else None
    return (fit.magnitude or 1.0) if fit is not None else 1.0


def _alpha(node: ir.Node) -> float:
    return abs(schema.number(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0


def _scale(by: float) -> float:
    return by if by >= _SCALE else 1.0


def _are_faint(values: Iterable[ir.Value | None], context: Context) -> bool:
    """Whether all of these are stored and faint."""
    fits = [context.fits.get(value) for value in values if value is not None]
    return all(fit is not None and fit.magnitude < context.half.smallest * _STEPS for fit in fits)
