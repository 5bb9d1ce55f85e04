"""Masks: huge negative fills before a softmax, for which the lowest number of half serves as well."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.constant import CARRY_HUGE, Constant, Context, harmed
from amp_rewrite.analysis.propagation import Propagation, UnitUse, propagate
from amp_rewrite.model import constants
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.operators.catalogue import ATTENTION_RESULTS, LARGEST_MASK_SCALE, find, having
from amp_rewrite.operators.record import ALL, FIRST, Role, Trait

_CARRY_MASK = CARRY_HUGE | having(Trait.SCALES)
_AS_THE_MASK_SAYS = 0
"""Sign after a product with 0 and 1, or 0 and -1: not positive, by the design of the model."""


class MaskUses:
    """The masks among constants, each with its uses. `clamped` are those that may be clamped, since all
    consumers on their paths to a softmax preserve a mask, whatever the other inputs of the model; the units
    on the paths of `others` need float32.

    A constant with other uses is no mask, nor is one that is positive in a softmax. All paths are followed
    together: many masks before one softmax share most of them.
    """

    def __init__(self, constants: Iterable[Constant], context: Context) -> None:
        self._context = context
        self.clamped: dict[ir.Value, tuple[UnitUse, ...]] = {}
        self.others: dict[ir.Value, tuple[UnitUse, ...]] = {}
        starts = {each.value: _starts(each, context) for each in constants}
        paths = self._follow(itertools.chain(*starts.values()))
        refused = paths.on_paths_to(use for use in paths.uses if not _masks(use, context)).keys()
        ending = paths.on_paths_to(use for use in paths.uses if _is_softmax(use, context)).keys()
        whole = _Whole(context)
        changing = (use for use in paths.uses if use not in refused and not _keeps_mask(use, context, whole))
        changed = paths.on_paths_to(changing).keys()
        for value, uses in starts.items():
            if refused.isdisjoint(uses) and not ending.isdisjoint(uses):
                (self.clamped if changed.isdisjoint(uses) else self.others)[value] = uses

    def _follow(self, starts: Iterable[UnitUse], seen: Container[UnitUse] = ()) -> Propagation:
        context = self._context
        return propagate(
            context.graph, starts, lambda use: None if use in seen else _sign_after(use, context)
        )

    def units(self, values: Iterable[ir.Value] | None = None) -> set[int]:
        """Return the units on the paths of masks that may be clamped, by default of all."""
        starts = (self.clamped[value] for value in (self.clamped if values is None else values))
        return {use.unit for use in self._follow(itertools.chain(*starts)).uses}

    def reaching(self, is_end: Callable[[int], bool]) -> set[ir.Value]:
        """Return the masks that may be clamped, with such a unit on their paths."""
        paths = self._follow(itertools.chain(*self.clamped.values()))
        before = paths.on_paths_to(use for use in paths.uses if is_end(use.unit)).keys()
        return {value for value, uses in self.clamped.items() if not before.isdisjoint(uses)}

    def new_units(self, value: ir.Value, seen: set[UnitUse]) -> set[int]:
        """Return the units on the paths of one of the `others` that are not `seen`; then they are."""
        starts = (use for use in self.others[value] if use not in seen)
        found = [use for use in self._follow(starts, seen).uses if use not in seen]
        seen.update(found)
        return {use.unit for use in found}


def _starts(constant: Constant, context: Context) -> tuple[UnitUse, ...]:
    """Return the uses of what may be a mask; none of another constant."""
    fit, largest = constant.fit, context.half.largest
    is_both = fit.low < -largest and fit.high > largest
    if constant.value in context.leaving or is_both or not any(harmed(constant, context)):
        return ()
    tensor, sign = constants.stored_as(constant.value), -1 if fit.low < -largest else 1
    sizes = np.zeros(1) if tensor is None else sign * constants.numbers(tensor)
    if ((sizes > context.half.fill) & (sizes <= largest)).any():
        return ()  # they would be larger than what is clamped
    return tuple(use._replace(carried=sign) for use in constant.uses)


def _masks(use: UnitUse, context: Context) -> bool:
    """Return whether a use is valid for a mask: propagation, comparison, shape, or negative in a softmax."""
    if _is_softmax(use, context):
        return use.carried <= 0
    traits = find("", effective_op(context.node(use.unit))).traits
    return _carries(use, context) or bool(traits & (Trait.COMPARES | Trait.MEASURES))


def _is_softmax(use: UnitUse, context: Context) -> bool:
    return bool(record_of(context.node(use.unit)).traits & Trait.SOFTMAX)


def _carries(use: UnitUse, context: Context) -> bool:
    operator = effective_op(context.node(use.unit))
    leaves = not context.leaving.isdisjoint(context.graph.units[use.unit].defs)
    return operator in _CARRY_MASK and not leaves and (operator, use.port) != ("Div", 1)


def _keeps_mask(use: UnitUse, context: Context, whole: _Whole) -> bool:
    """Return whether a use gives the same softmax for the clamped mask as for the mask: certificate.masks
    proves no other clamp.
    """
    node = context.node(use.unit)
    name, inputs = node.op_type, node.inputs
    record = record_of(node)
    if record.traits & Trait.MEASURES:
        return True
    if record.ports(Role.SCORES):
        is_scores = record.roles.get(use.port) is Role.SCORES
        return is_scores and not any(value.name for value in node.outputs[ATTENTION_RESULTS:])
    if name in ("Mul", "Div"):
        scale = _scale(use, node)
        if scale is None:
            return name == "Mul" and inputs[1 - use.port] in whole
        return use.carried == _AS_THE_MASK_SAYS or _is_near_one(scale * use.carried)
    return not node.domain and use.port in record.masks


def _scale(use: UnitUse, node: ir.Node) -> float | None:
    """Return the stored number near 1 that a Mul or a Div multiplies a mask by; None if it is no such."""
    tensor = constants.stored_as(node.inputs[1 - use.port])
    if tensor is None or tensor.size != 1 or (node.op_type, use.port) == ("Div", 1):
        return None
    number = float(constants.numbers(tensor).item())
    if not _is_near_one(number):
        return None
    return 1 / number if node.op_type == "Div" else number


def _is_near_one(factor: float) -> bool:
    return 1 / LARGEST_MASK_SCALE <= abs(factor) <= LARGEST_MASK_SCALE


_FAR = 8
"""The exponent of a factor that changes a mask."""


class _Whole:
    """The values whose elements are integers by their producers: Casts of integers or booleans, and
    differences and products of these and of stored integers.
    """

    def __init__(self, context: Context) -> None:
        self._types = context.graph.types
        self._known = set[ir.Value | None]()
        self._unknown = set[ir.Value | None]()

    def __contains__(self, value: ir.Value | None) -> bool:
        waiting, reached = [value], {value}
        while waiting:
            before = self._operands(waiting.pop())
            if before is None:
                self._unknown.add(value)
                return False
            waiting += before - reached
            reached |= before
        self._known |= reached
        return True

    def _operands(self, value: ir.Value | None) -> set[ir.Value | None] | None:
        """Return the values that must be whole if this one is to be; None if it is not."""
        tensor, node = constants.stored_as(value), None if value is None else value.producer()
        if value in self._known:
            return set()
        if value is None or value.is_graph_input() or value in self._unknown:
            return None
        if tensor is not None:
            is_one = tensor.size == 1 and float(constants.numbers(tensor).item()).is_integer()
            return set() if is_one else None
        if node is None or node.domain:
            return None
        name, data = node.op_type, node.inputs[0]
        kind = self._types.get(data) if name == "Cast" and data is not None else None
        if kind is not None and (kind.dtype.is_integer() or kind.dtype == ir.DataType.BOOL):
            return set()
        ports = FIRST if name == "Cast" else ALL if name == "Mul" else find("", name).masks
        return {each for port, each in enumerate(node.inputs) if port in ports} if ports else None


def _sign_after(use: UnitUse, context: Context) -> float | None:
    """Return the sign of a mask times its stored factors, as one of a few powers of two, since a loop may
    repeat them, or _AS_THE_MASK_SAYS; None if the unit does not propagate a mask.
    """
    if not _carries(use, context) or _is_softmax(use, context):
        return None
    node = context.node(use.unit)
    operator = effective_op(node)
    scale = _scale(use, node) if node.op_type in ("Mul", "Div") else None
    if scale is not None and use.carried != _AS_THE_MASK_SAYS:
        fraction, exponent = math.frexp(use.carried * scale)
        return math.copysign(2.0 ** np.clip(exponent - 1, -_FAR, _FAR), fraction)
    if operator == "Mul":
        return _AS_THE_MASK_SAYS
    flips = operator == "Neg" or (operator == "Sub" and use.port == 1)
    return -use.carried if flips else use.carried
