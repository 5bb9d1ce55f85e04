"""Absorption: a large constant in half absorbs digits of the other term of a sum.

    Add(Mul(x, std), mean)        with a mean of 40000 and a std of 100, at the end of a model
    Gemm(x, w, bias)              the same, by the length of the columns of w

Inside a model, that matters where half has no fractions left. At its end, the reader of the output subtracts
the offset again, and the absorbed digits are missing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.constant import NONE, Constant, Context, Findings
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.patterns import moves, source
from amp_rewrite.onnx_facts.operators import REARRANGES, SELECTS
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Evidence, Reason

_SUMS = frozenset(("Add", "Sub", "Sum"))
_BIASED = frozenset("Conv ConvTranspose FusedConv FusedGemm Gemm".split())
_NORMS = frozenset("BatchNormalization GroupNormalization InstanceNormalization LayerNormalization".split())
"""Operators with a bias at port 2; a norm adds it to values of the size of its input 1."""
_BESIDE = 16.0
"""Ratio of an offset to the rest above which only 128 of float16's 2,048 steps remain for the rest: the error
of the output about its mean is then half of the tolerance of a verdict, in any half type.
"""
_MOST = 1 << 24
"""Maximum number of elements of a tensor whose values are inspected; those of larger ones count as 1."""


def find(constant: Constant, context: Context) -> Findings:
    """Return the sums that add a constant so large that half has no fractions there, and those at the end of
    the model whose constant is large relative to the other term, in any channel.
    """
    fit, half = constant.fit, context.half
    if fit.overflowing or not fit.magnitude:
        return NONE
    least = max(fit.low, -fit.high)
    if least < half.integers and not any(
        u.unit in context.ending or _moves(u, context) for u in constant.uses
    ):
        return NONE
    uses = propagate(context.graph, constant.uses, lambda use: 0.0 if _moves(use, context) else None).uses
    offsets = {
        use.unit: _offset(use, constant, context.node(use.unit)) for use in uses if use.unit in context.ending
    }
    evidence = {unit: _evidence(constant, context, offset) for unit, offset in offsets.items() if offset}
    if least >= half.integers:
        sums = [use.unit for use in constant.uses if context.node(use.unit).op_type in _SUMS]
        evidence |= dict.fromkeys(sums, _evidence(constant, context, least))
    return evidence


def _moves(use: UnitUse, context: Context) -> bool:
    return use.port == 0 and context.node(use.unit).op_type in REARRANGES | SELECTS


def _evidence(constant: Constant, context: Context, number: float) -> Evidence:
    step = 2.0 ** (math.floor(math.log2(number)) + 1) / context.half.integers
    return constant.evidence(Reason.ABSORPTION, context.half, number, step)


def _offset(use: UnitUse, constant: Constant, node: ir.Node) -> float:
    """Return the largest number that is large relative to the other term in a channel; 0 if there is none."""
    others = [value for port, value in enumerate(node.inputs) if port != use.port and value is not None]
    if node.op_type in _SUMS and len(others) == 1:
        size = _size(others[0])
    elif use.port == 2 and node.op_type in _BIASED | _NORMS:
        size = _output_magnitude(node)
    else:
        return 0.0
    offset = _channels(constant.value)
    if 1 not in (offset.size, size.size) and offset.size != size.size:
        size = size.max(keepdims=True)  # other channels
    return float(np.max(np.where(offset >= _BESIDE * size, offset, 0.0)))


def _size(value: ir.Value) -> NDArray[Any]:
    """Return the magnitude of a value by channel: the constant that scales it last, or its producer's."""
    node = source(value, moves).producer()
    if node is None or node.op_type not in ("Div", "Mul"):
        return _ONE if node is None else _output_magnitude(node)
    scales = [each for each in node.inputs[node.op_type == "Div" :] if stored_as(each) is not None]
    scale = _channels(scales[0]) if scales else _ONE
    return scale if node.op_type == "Mul" else 1 / np.maximum(scale, _TINY)


def _output_magnitude(node: ir.Node) -> NDArray[Any]:
    """Return the magnitude of a norm's or product's output by channel, for data of about 1; 1 for others."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type in _NORMS:
        return _channels(weight)
    channel = _CHANNEL.get(node.op_type, 0)
    array = _numbers(weight) if node.op_type in _BIASED | _CHANNEL.keys() else None
    if array is None or array.ndim <= channel:
        return _ONE
    axis = channel if not schema.integer(node, "transB") else 0
    return np.sqrt(np.square(array).sum(axis=tuple(other for other in range(array.ndim) if other != axis)))


_ONE, _TINY = np.ones(1), float(np.finfo(np.float64).tiny)
_CHANNEL = {"ConvTranspose": 1, "FusedGemm": 1, "Gemm": 1, "MatMul": 1}
"""Axis of a product's weights that its output shares; 0 for convolutions."""


def _channels(value: ir.Value | None) -> NDArray[Any]:
    """Return the magnitudes of a stored value along the one axis on which it varies; the largest where it
    varies on several, as a table of positions does, and 1 where it is unknown.
    """
    array = _numbers(value)
    if array is None or not array.size:
        return _ONE
    varying = [axis for axis in range(array.ndim) if (array != np.take(array, [0], axis)).any()]
    if len(varying) > 1:
        return np.abs(array).max(keepdims=True).reshape(1)
    slices = tuple(slice(None) if axis in varying else slice(1) for axis in range(array.ndim))
    return np.abs(array[slices]).reshape(-1)


def _numbers(value: ir.Value | None) -> NDArray[Any] | None:
    tensor = stored_as(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or math.prod(dims(tensor)) > _MOST:
        return None
    return numbers(tensor).astype(np.float64)
