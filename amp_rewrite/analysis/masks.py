"""Masks: huge negative fills before a softmax, for which the lowest number of half serves as well."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.constant import CARRY_HUGE, Constant, Context, harmed
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.model import constants
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_facts.operators import (
    ALL,
    ATTENTION_RESULTS,
    FIRST,
    LARGEST_MASK_SCALE,
    MASK_CARRIERS,
    SOFTMAX_PORTS,
)

_SOFTMAX = frozenset(name for _, name in SOFTMAX_PORTS) - {"Exp"} | {"LogSoftmax"}
_COMPARE = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN".split())
_READ_NO_ELEMENT = frozenset(("Shape", "Size"))
_CARRY_MASK = CARRY_HUGE | {"Div", "Mul", "Sum"}
_AS_THE_MASK_SAYS = 0
"""Sign after a product with 0 and 1, or 0 and -1: not positive, by the design of the model."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The units on the paths of a mask to a softmax, none where a constant is no mask.

    It may be clamped only where all consumers on these paths preserve a mask, whatever the other inputs of
    the model: elsewhere these units need float32.
    """

    units: tuple[int, ...] = ()
    may_be_clamped: bool = False


def find(constant: Constant, context: Context) -> Mask:
    """Return the paths of a mask; none where the constant has other uses, or is positive in a softmax."""
    fit, largest = constant.fit, context.half.largest
    if constant.value in context.leaving or (fit.low < -largest and fit.high > largest):
        return Mask()
    sign = -1 if fit.low < -largest else 1
    starts = [use._replace(carried=sign) for use in constant.uses] if any(harmed(constant, context)) else ()
    uses = propagate(context.graph, starts, lambda use: _sign_after(use, context)).uses
    if not all(_masks(use, context) for use in uses) or not any(_is_softmax(use, context) for use in uses):
        return Mask()
    units = tuple(dict.fromkeys(use.unit for use in uses))
    return Mask(units, all(_keeps_mask(use, context) for use in uses))


def _masks(use: UnitUse, context: Context) -> bool:
    """Return whether a use is valid for a mask: propagation, comparison, shape, or negative in a softmax."""
    if _is_softmax(use, context):
        return use.carried <= 0
    return _carries(use, context) or effective_op(context.node(use.unit)) in _COMPARE | _READ_NO_ELEMENT


def _is_softmax(use: UnitUse, context: Context) -> bool:
    return effective_op(context.node(use.unit)) in _SOFTMAX


def _carries(use: UnitUse, context: Context) -> bool:
    operator = effective_op(context.node(use.unit))
    leaves = not context.leaving.isdisjoint(context.graph.units[use.unit].defs)
    return operator in _CARRY_MASK and not leaves and (operator, use.port) != ("Div", 1)


def _keeps_mask(use: UnitUse, context: Context) -> bool:
    """Return whether a use gives the same softmax for the clamped mask as for the mask: certificate.masks
    proves no other clamp.
    """
    node = context.node(use.unit)
    name, inputs = node.op_type, node.inputs
    if name in _READ_NO_ELEMENT:
        return True
    if (port := SOFTMAX_PORTS.get((node.domain, name))) is not None:
        return use.port == port and not any(value.name for value in node.outputs[ATTENTION_RESULTS:])
    if name == "Mul":
        return _is_scale(inputs[1 - use.port]) or _is_whole(inputs[1 - use.port], context)
    if name == "Div":
        return use.port == 0 and _is_scale(inputs[1])
    return not node.domain and use.port in MASK_CARRIERS.get(name, ())


def _is_scale(value: ir.Value | None) -> bool:
    tensor = constants.stored_as(value)
    if tensor is None or tensor.size != 1:
        return False
    return 1 / LARGEST_MASK_SCALE <= abs(float(constants.numbers(tensor).item())) <= LARGEST_MASK_SCALE


def _is_whole(value: ir.Value | None, context: Context) -> bool:
    """Return whether the elements of a value are integers by their producers: Casts of integers or booleans,
    and differences and products of these and of stored integers.
    """
    waiting, reached = [value], {value}
    while waiting:
        value = waiting.pop()
        tensor = constants.stored_as(value)
        if value is None or value.is_graph_input():
            return False
        if tensor is not None:
            if tensor.size != 1 or not float(constants.numbers(tensor).item()).is_integer():
                return False
            continue
        node = value.producer()
        if node is None or node.domain:
            return False
        name, data = node.op_type, node.inputs[0]
        kind = context.graph.types.get(data) if name == "Cast" and data is not None else None
        if kind is not None and (kind.dtype.is_integer() or kind.dtype == ir.DataType.BOOL):
            continue
        ports = FIRST if name == "Cast" else ALL if name == "Mul" else MASK_CARRIERS.get(name)
        if ports is None:
            return False
        before = {each for port, each in enumerate(node.inputs) if port in ports} - reached
        reached |= before
        waiting += before
    return True


def _sign_after(use: UnitUse, context: Context) -> float | None:
    """Return -1, +1 or _AS_THE_MASK_SAYS; None if the unit does not propagate a mask."""
    if not _carries(use, context) or _is_softmax(use, context):
        return None
    operator = effective_op(context.node(use.unit))
    if operator == "Mul":
        return _AS_THE_MASK_SAYS
    flips = operator == "Neg" or (operator == "Sub" and use.port == 1)
    return -use.carried if flips else use.carried
