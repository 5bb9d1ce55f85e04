"""Scatters that add or multiply in half -> a function in float32 that rounds after each element.

Runtimes apply the updates of one element one by one: 2048 + 1 is 2048 in float16. Round n applies the n-th
update of every element, so that there are as many rounds as updates of the element with most.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx.parser
import onnx_ir as ir

from amp_rewrite.model import inlining
from amp_rewrite.onnx_types import element_types

_DOMAIN = "amp_rewrite.emulation"
_FUNCTION = """<domain: "{domain}", opset_import: ["": {opset}]>
{name} (data, indices, updates) => (result) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    flat = Constant <value = int64[1] {{-1}}> ()
    shape = Shape (data)
    size = Size (data)
    places = Range (zero, size, one)
    shaped_places = Reshape (places, shape)
    updated = {gather} (shaped_places, indices)
    updated_flat = Reshape (updated, flat)
    count = Shape (updated_flat)
    place, order = TopK <largest = 0> (updated_flat, count)
    updates_flat = Reshape (updates, flat)
    terms = Gather (updates_flat, order)
    place_values, place_firsts, place_inverse, place_counts = Unique (place)
    place_stops = CumSum (place_counts, zero)
    place_starts = Sub (place_stops, place_counts)
    start = Gather (place_starts, place_inverse)
    terms_size = Size (terms)
    positions = Range (zero, terms_size, one)
    nth = Sub (positions, start)
    turns, by_turn = TopK <largest = 0> (nth, count)
    turn_places = Gather (place, by_turn)
    turn_terms = Gather (terms, by_turn)
    turn_values, turn_firsts, turn_inverse, turn_counts = Unique (turns)
    turn_stops = CumSum (turn_counts, zero)
    turn_starts = Sub (turn_stops, turn_counts)
    rounds = Size (turn_counts)
    before = Reshape (data, flat)
    after = Loop (rounds, , before) <body = step (int64 turn, bool go, float[] last)
            => (bool[] on, float[] next) {{
        on = Identity (go)
        at = Reshape (turn, flat)
        low = Gather (turn_starts, at)
        high = Gather (turn_stops, at)
        now_places = Slice (turn_places, low, high)
        now_terms = Slice (turn_terms, low, high)
        exact = ScatterElements <axis = 0, reduction = "{reduction}"> (last, now_places, now_terms)
        half = Cast <to = {half}> (exact)
        next = Cast <to = 1> (half)
    }}>
    result = Reshape (after, shape)
}}"""


def apply(model: ir.Model, scatters: Iterable[tuple[ir.Node, ir.DataType]]) -> None:
    """Replace these scatters, which add or multiply values of a half type, in an emulation."""
    opset = element_types.default_opset(model.opset_imports)
    for node, half in scatters:
        is_nd = node.op_type == "ScatterND"
        axis, reduction = node.attributes.get_int("axis", 0), node.attributes.get_string("reduction", "")
        name = f"{node.op_type}_{reduction}_{half.name}_{axis}".replace("-", "m")
        text = _FUNCTION.format(
            domain=_DOMAIN,
            opset=opset,
            name=name,
            gather="GatherND" if is_nd else f"GatherElements <axis = {axis}>",
            reduction=reduction,
            half=int(half),
        )
        function = ir.from_proto(onnx.parser.parse_function(text))
        model.functions[function.identifier()] = function
        node.domain, node.op_type = _DOMAIN, name
        node.attributes.clear()
    if model.functions:
        model.opset_imports[_DOMAIN] = 1
        inlining.inline(model)
