"""Absorption: a large constant in half absorbs digits of the other term of a sum.

    Add(Mul(x, std), mean)        with a mean of 40000 and a std of 100, at the end of a model
    Gemm(x, w, bias)              the same, by the length of the columns of w

Inside a model, that matters where half has no fractions left. At its end, the reader of the output subtracts
the offset again, and the absorbed digits are missing.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.constant import NONE, Constant, Context, Findings
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import moves, source
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.catalogue import REARRANGES, SELECTS
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.evidence import Evidence, Reason

_BESIDE = 16.0
"""Ratio of an offset to the rest above which only 128 of float16's 2,048 steps remain for the rest: the error
of the output about its mean is then half of the tolerance of a verdict, in any half type.
"""
_MOST = 1 << 24
"""Maximum number of elements of a tensor whose values are inspected; those of larger ones count as 1."""
_ONE = np.ones(1)


def find(constant: Constant, context: Context) -> Findings:
    """Return the sums that add a constant so large that half has no fractions there, and those at the end of
    the model whose constant is large relative to the other term, in any channel.
    """
    fit, half = constant.fit, context.half
    if fit.overflowing or not fit.magnitude:
        return NONE

    def moved(use: UnitUse) -> float | None:
        is_moved = use.port == 0 and context.node(use.unit).op_type in REARRANGES | SELECTS
        return 0.0 if is_moved else None

    def evidence(number: float) -> Evidence:
        step = 2.0 ** (math.floor(math.log2(number)) + 1) / half.integers
        return constant.evidence(Reason.ABSORPTION, half, number, step)

    direct = {use.unit for use in constant.uses}
    uses = propagate(context.graph, constant.uses, moved).uses if context.ending else ()
    offsets = {use.unit: _offset(use, constant, context) for use in uses if use.unit in context.ending}
    findings = {unit: evidence(offset) for unit, offset in offsets.items() if offset}
    if (least := max(fit.low, -fit.high)) >= half.integers:
        sums = [unit for unit in direct if record_of(context.node(unit)).traits & Trait.ADDS]
        findings |= dict.fromkeys(sums, evidence(least))
    return findings


def _offset(use: UnitUse, constant: Constant, context: Context) -> float:
    """Return the largest number that is large relative to the other term in a channel; 0 if there is none."""
    node = context.node(use.unit)
    others = [value for port, value in enumerate(node.inputs) if port != use.port and value is not None]
    record = record_of(node)
    if record.traits & Trait.ADDS and len(others) == 1:
        size = _size(others[0])
    elif record.bias is not None and use.port == record.bias:
        size = _output_size(node)
    else:
        return 0.0
    offset = _channels(constant.value)
    if 1 not in (offset.size, size.size) and offset.size != size.size:
        size = size.max(keepdims=True)  # other channels
    return float(np.max(np.where(offset >= _BESIDE * size, offset, 0.0)))


def _size(value: ir.Value) -> NDArray[np.float64]:
    """Return the magnitude of a value by channel: the constant that scales it last, or its producer's."""
    node = source(value, moves).producer()
    if node is None or node.op_type not in ("Div", "Mul"):
        return _ONE if node is None else _output_size(node)
    scales = [_channels(each) for each in node.inputs[node.op_type == "Div" :] if stored_as(each) is not None]
    scale = scales[0] if scales else _ONE
    return scale if node.op_type == "Mul" else 1 / np.maximum(scale, np.finfo(np.float64).tiny)


def _output_size(node: ir.Node) -> NDArray[np.float64]:
    """Return the magnitude of a norm's or product's output by channel, for data of about 1; 1 for others."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    channel, has_bias = record_of(node).channel, record_of(node).bias is not None
    if has_bias and channel is None:
        return _channels(weight)  # a norm
    array = _ONE[0] if channel is None else _numbers(weight)
    if channel is None or array.ndim <= channel:
        return _ONE
    axis = channel if not schema.integer(node, "transB") else 0
    return np.sqrt(np.square(array).sum(axis=tuple(other for other in range(array.ndim) if other != axis)))


def _channels(value: ir.Value | None) -> NDArray[np.float64]:
    """Return the magnitudes of a stored value along the one axis on which it varies; the largest where it
    varies on several, as a table of positions does.
    """
    array = np.abs(_numbers(value))
    varying = [axis for axis in range(array.ndim) if (array != array.take([0], axis)).any()]
    others = tuple(axis for axis in range(array.ndim) if len(varying) > 1 or axis not in varying)
    return array.max(axis=others).reshape(-1)


def _numbers(value: ir.Value | None) -> NDArray[np.float64]:
    tensor = stored_as(value)
    size = math.prod(dims(tensor)) if tensor is not None and tensor.dtype == ir.DataType.FLOAT else 0
    return numbers(tensor).astype(np.float64) if tensor is not None and 0 < size <= _MOST else _ONE
