"""The form of each operator's output, from those of its inputs; one pass over the nodes of all graphs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.forms import CLOSE, SURE, Form, Forms, Rest, negated
from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.analysis.idioms.norms import SUM
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.patterns import effective_op, rearranges, scalar, source
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.onnx_facts.operators import (
    AVERAGES,
    BOUNDS,
    CONTROL_FLOW,
    JOINS,
    LIMITS,
    PRODUCTS,
    REARRANGES,
    SELECTS,
)
from amp_rewrite.onnx_types import control_flow

_HELD_BY_HALF = frozenset((ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8))
"""Input types that half represents exactly."""
_COMPARED = 1 << 20
"""Maximum number of elements of indices that are compared with others."""

Rule = Callable[[Forms, ir.Node, ir.Value], "Form | None"]
"""Computes the form of the first output of a node with this first input; None for an atom of its own."""


def read(graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> Forms:
    """Return the forms of the values of a model with these constants."""
    forms = Forms(graph, fits, half.integers)
    waiting: list[tuple[Iterator[ir.Node], ir.Node | None]] = [(iter(graph.nodes[graph.root]), None)]
    while waiting:
        nodes, holder = waiting[-1]
        for node in nodes:
            bodies = control_flow.bodies(node) if control_flow.may_have_bodies(node) else ()
            if bodies:
                waiting.append((iter(()), node))
                waiting += [(iter(graph.nodes[body]), None) for body in reversed(bodies)]
                break
            _read_node(forms, node)
        else:
            waiting.pop()
            if holder is not None:
                _leave(forms, holder)
    return forms


def _read_node(forms: Forms, node: ir.Node) -> None:
    forms.order.append(node)
    first = node.inputs[0] if node.inputs else None
    if node.domain or not node.outputs or first is None:
        return
    graph, output = forms.graph, node.outputs[0]
    idiom_part = graph.spelled.get(graph.producer.get(output, -1)) if graph.spelled else None
    if idiom_part is not None and idiom_part.part is not Part.OUTER:
        if idiom_part.part is Part.RESULT and idiom_part.operator == SUM:
            forms.forms[output] = forms.fresh(output)._replace(normalised=True)
        return
    rule = _RULES.get(effective_op(node), _fallback_form)
    if rule is not None and (form := rule(forms, node, first)) is not None:
        forms.forms[output] = form


def _leave(forms: Forms, node: ir.Node) -> None:
    """Set the outputs of an If to the joined forms of its branches."""
    forms.order.append(node)
    for one in (control_flow.bindings(node) or ()) if node.op_type == "If" else ():
        output = node.outputs[one.outputs[0]]
        branch_outputs = [body.outputs[at] for body, at in one.leaves]
        forms.leaving.update(dict.fromkeys(branch_outputs, output))
        if branch_outputs:
            forms.forms[output] = forms.join([forms.of(value) for value in branch_outputs], output)


def _fallback_form(forms: Forms, node: ir.Node, first: ir.Value) -> Form | None:
    """Return the form of an operator without a rule: of sizes alone, or near the limits of its range."""
    if node.op_type in ("Shape", "Size"):
        return forms.of_sizes()
    if forms.is_scale(forms.of(first)) and all(
        value is None or forms.is_scale(forms.of(value)) for value in node.inputs
    ):
        return forms.of_sizes()
    near = LIMITS.get(node.op_type)
    if near is None:
        return None
    shift = added_before(node)
    if shift is not None and abs(shift) >= SURE:
        near = frozenset((1.0 if shift > 0 else 0.0,))
    return forms.fresh(node.outputs[0], near)


def added_before(node: ir.Node) -> float | None:
    """Return the number added to the input of a sigmoid; None where there is none."""
    if node.op_type != "Sigmoid" or node.inputs[0] is None:
        return None
    total = addition_before(node)
    if total is None:
        return None
    one, other = (scalar(value) for value in total.inputs[:2])
    if total.op_type == "Sub":
        return -other if other is not None else None
    return other if other is not None else one


def addition_before(node: ir.Node) -> ir.Node | None:
    """Return the Add or Sub whose result, rearranged or not, a node reads; None for another node."""
    maker = source(node.inputs[0]).producer() if node.inputs[0] is not None else None
    if maker is None or maker.domain or maker.op_type not in ("Add", "Sub") or len(maker.inputs) != 2:
        return None
    return maker


def _rearranged(forms: Forms, _: ir.Node, first: ir.Value) -> Form | None:
    return None if first in forms.inputs and first.dtype in _HELD_BY_HALF else forms.of(first)


def _negative(forms: Forms, _: ir.Node, first: ir.Value) -> Form | None:
    return negated(forms.of(first))


def _selected(forms: Forms, node: ir.Node, first: ir.Value) -> Form | None:
    form = forms.of(first)
    if rearranges(node) or form.number is not None or forms.is_position(form):
        return form
    how = _selection(node)
    for at, output in enumerate(node.outputs[1:], 1):
        forms.forms[output] = forms.select(form, (how, at))
    return forms.select(form, (how, 0))


def _selection(node: ir.Node) -> object:
    """Return a key that is equal for nodes that select the same elements."""
    indices = tuple(
        value
        if (tensor := stored_as(value)) is None or tensor.size > _COMPARED
        else numbers(tensor).tobytes()
        for value in node.inputs[1:]
    )
    return (
        node.op_type,
        indices,
        tuple(sorted((name, str(each.value)) for name, each in node.attributes.items())),
    )


def _bounded(forms: Forms, node: ir.Node, _: ir.Value) -> Form | None:
    operand_forms = [forms.of(value) for value in node.inputs if value is not None]
    computed = [form for form in operand_forms if form.number is None]
    if len(computed) == 1:
        rounded = _rounded_to_1(forms, operand_forms)
        near = computed[0].near or rounded or None
        return computed[0]._replace(near=near, bounded=not rounded, number=None)
    form = forms.join(operand_forms, node.outputs[0])
    is_place = bool(computed) and all(map(forms.is_position, computed))
    return form if is_place else forms.fresh(node.outputs[0], form.near)


def _rounded_to_1(forms: Forms, operand_forms: list[Form]) -> frozenset[float]:
    """Return 1 or -1 where a bound is so close to it that half rounds it there."""
    bounds = (form.number for form in operand_forms if form.number is not None)
    steps = 0.5 / forms.integers
    return frozenset(math.copysign(1.0, bound) for bound in bounds if 0 < 1 - abs(bound) <= steps)


def _join_form(forms: Forms, node: ir.Node, _: ir.Value) -> Form | None:
    ports = JOINS[node.op_type]
    values = node.inputs if ports is None else [node.inputs[at] for at in ports if at < len(node.inputs)]
    operand_forms = [forms.of(value) for value in values if value is not None]
    if len(operand_forms) == 1:
        return operand_forms[0]
    form = forms.join(operand_forms, node.outputs[0]) if operand_forms else None
    if form is None or node.op_type == "Concat":
        return form
    computed = [each for each in operand_forms if each.number is None]
    return form if all(map(forms.is_position, computed)) else forms.fresh(node.outputs[0], form.near)


def _averaged(forms: Forms, _: ir.Node, first: ir.Value) -> Form | None:
    form = forms.of(first)
    if form.normalised or form.near is not None:
        form = form._replace(near=None, normalised=False)
    return form._replace(sums=form.sums + 1)


def _sum_of_squares(forms: Forms, node: ir.Node, first: ir.Value) -> Form | None:
    return forms.times(node, forms.of(first), forms.of(first), summed=True)


def _normalised(forms: Forms, node: ir.Node, _: ir.Value) -> Form | None:
    return forms.fresh(node.outputs[0])._replace(normalised=True)


def _product_form(forms: Forms, node: ir.Node, _: ir.Value) -> Form | None:
    pair = forms.given(node, 2)
    if pair is None:
        return None
    one, other = pair
    if one.number is not None and other.number is not None:
        number = one.number * other.number
        return Form({(): 1 if number >= 0 else -1}, frozenset((number,)), number)
    for scale, form in ((one, other), (other, one)):
        if scale.number is not None:
            return forms.scale(form, scale.number)
        if forms.is_scale(scale):
            return form._replace(near=None, normalised=False)
    return forms.times(node, one, other)


def _quotient_form(forms: Forms, node: ir.Node, _: ir.Value) -> Form | None:
    pair = forms.given(node, 2)
    if pair is None:
        return None
    one, other = pair
    if other.number is not None and one.number is None:
        return forms.scale(one, 1 / other.number) if other.number else None
    if forms.is_scale(other):
        return one._replace(near=None, number=None) if not forms.is_scale(one) else forms.of_sizes()
    return None


def _power_form(forms: Forms, node: ir.Node, first: ir.Value) -> Form | None:
    pair = forms.given(node, 2)
    if pair is None:
        return None
    if pair[1].number == 2:
        return forms.times(node, pair[0], pair[0])
    return _fallback_form(forms, node, first)


def _sum_form(forms: Forms, node: ir.Node, _: ir.Value) -> Form | None:
    operand_forms = [forms.of(value) for value in node.inputs if value is not None]
    if len(operand_forms) < 2:
        return operand_forms[0] if operand_forms else None
    if len(operand_forms) == 2:
        _rest(forms, node, operand_forms)
    form = operand_forms[0]
    for other in operand_forms[1:]:
        form = forms.add(node, form, negated(other) if node.op_type == "Sub" else other)
    return form


def _rest(forms: Forms, node: ir.Node, operand_forms: list[Form]) -> None:
    """Note a node that adds something to 1, or subtracts one of the two from the other."""
    if forms.graph.producer.get(node.outputs[0]) is None:
        return
    for at, number in enumerate(form.number for form in operand_forms):
        value, form = node.inputs[1 - at], operand_forms[1 - at]
        if number is None or abs(number) != 1 or value is None:
            continue
        sign = -number if node.op_type == "Sub" else number
        near = _signs_of_square(form) if form.near is None else form.near
        rests = [abs(1 + sign * point) for point in near]
        forms.rests[node] = Rest(value, any(r <= CLOSE for r in rests), bool(rests) and max(rests) <= CLOSE)


def _signs_of_square(form: Form) -> frozenset[float]:
    """Return 0 and the sign of a square; nothing for another form, and for a sum of squares."""
    if form.sums or len(form.terms) != 1:
        return frozenset()
    ((term, sign),) = form.terms.items()
    is_square = len(term) > 1 and all(count % 2 == 0 for count in Counter(term).values())
    return frozenset((0.0, float(sign))) if is_square else frozenset()


def _average_form(forms: Forms, node: ir.Node, first: ir.Value) -> Form | None:
    """Return the form of a depthwise average of windows; any other Conv is a layer."""
    kernel = stored_as(node.inputs[1]) if len(node.inputs) == 2 else None
    if kernel is None or dims(kernel)[1:2] != (1,):
        return None
    form = forms.of(first)
    return form._replace(sums=form.sums + 1, near=None, number=None, normalised=False)


def _multiplied_up(forms: Forms, node: ir.Node, first: ir.Value) -> Form | None:
    return forms.fresh(node.outputs[0], forms.known_near(first))


_RULES: Mapping[str, Rule | None] = {
    **dict.fromkeys(PRODUCTS | CONTROL_FLOW | {"Constant"}),
    **dict.fromkeys(REARRANGES, _rearranged),
    **dict.fromkeys(SELECTS, _selected),
    **dict.fromkeys(BOUNDS, _bounded),
    **dict.fromkeys(JOINS, _join_form),
    **dict.fromkeys(AVERAGES, _averaged),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum_form),
    **dict.fromkeys(("Einsum", "Gemm", "MatMul"), lambda forms, node, _: forms.product(node)),
    "Conv": _average_form,
    "Div": _quotient_form,
    "LpNormalization": _normalised,
    "Mul": _product_form,
    "Neg": _negative,
    "Pow": _power_form,
    "ReduceProd": _multiplied_up,
    "ReduceSumSquare": _sum_of_squares,
}
"""Rule of each operator; `_fallback_form` for others."""
