"""Random operators -> functions that draw the same numbers in every run.

onnxruntime seeds RandomNormal and the like by the position of the node, and draws other numbers in the next
run, so that a model differs from its rewrite, and from itself, by random numbers. In compared runs,
each such node becomes a function of positions and of its name: the fractional part of
43758.5453 sin(12.9898 k + phase) is uniform in 0..1, and two of these make a normal one (G. E. P. Box,
M. E. Muller: A note on the generation of random normal deviates, Annals of Mathematical Statistics 29,
1958). Dropout in training mode and Bernoulli compare such uniform numbers with their probabilities.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, parser

from amp_rewrite.model import proto_traversal
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait


def may_draw(path: Path) -> bool:
    """Whether the bytes of a file contain the name of a random operator."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name.encode()) >= 0 for name in _DRAWN)


def repeatable(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy with the same random numbers in every run; None if no node can be replaced.

    This needs opset 11 for Range, and 15 for CastLike if a node does not declare its output type.
    """
    versions = {schema.canonical(entry.domain): entry.version for entry in model.opset_import}
    opset = versions.get("", 1)
    if opset < _FIRST_WITH_RANGE or not any(
        _is_drawn(node, opset) for node in proto_traversal.every_node(model)
    ):
        return None
    clone = onnx.ModelProto()
    clone.CopyFrom(model)
    drawing = [node for node in proto_traversal.every_node(clone) if _is_drawn(node, opset)]
    functions = [_replace(node, opset, count) for count, node in enumerate(drawing)]
    for holder in (clone, *clone.functions):
        holder.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    clone.functions.extend(functions)
    clone.ir_version = max(clone.ir_version, _FIRST_IR_WITH_FUNCTIONS)
    return clone


_DOMAIN = "amp_rewrite.random"
_FIRST_WITH_RANGE, _FIRST_WITH_CAST_LIKE, _FIRST_IR_WITH_FUNCTIONS = 11, 15, 8
_DRAWN = having(Trait.DRAWS) - {"Multinomial"}
_RATIO, _TRAINING_MODE = 1, 2
"""The inputs of a Dropout."""


def _is_drawn(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain or node.op_type not in _DRAWN:
        return False
    if node.op_type == "Dropout":
        return opset >= _FIRST_WITH_CAST_LIKE and bool([*node.input, "", ""][_TRAINING_MODE])
    is_typed = not node.input or any(entry.name == "dtype" for entry in node.attribute)
    return is_typed or opset >= _FIRST_WITH_CAST_LIKE


def _replace(node: onnx.NodeProto, opset: int, count: int) -> onnx.FunctionProto:
    """Turn a node into a function call, and return the function."""
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    name = f"Draw{count}"
    lines = (
        _head(node, opset, name),
        *_shape(attributes),
        _TEXTS["uniform"],
        *_draw_lines(node, attributes),
        "}",
    )
    numbers = {**_numbers(node.op_type, attributes), "phase": zlib.crc32((node.name or name).encode()) % 1000}
    inputs = [value for value in node.input if value]
    node.CopyFrom(helper.make_node(name, inputs, node.output, name=node.name, domain=_DOMAIN))
    return parser.parse_function("\n".join(lines) % numbers)


def _head(node: onnx.NodeProto, opset: int, name: str) -> str:
    pairs = zip(("like", "ratio", "training"), node.input, strict=False)
    inputs = ", ".join(formal for formal, value in pairs if value)
    outputs = ", ".join(("result", "mask")[: len(node.output)])
    imports = f'domain: "{_DOMAIN}", opset_import: ["" : {opset}]'
    return f"<{imports}> {name} ({inputs}) => ({outputs}) {{"


def _draw_lines(node: onnx.NodeProto, attributes: dict[str, Any]) -> Sequence[str]:
    """Return the lines that compute the output of a node from the uniform numbers `first`."""
    if node.op_type == "Dropout":
        return (*(() if node.input[_RATIO] else [_TEXTS["usual ratio"]]), _TEXTS["dropped"])
    result = "result = Cast <to = %(dtype)d> (shaped)"
    if "dtype" not in attributes and node.input:
        result = "result = CastLike (shaped, like)"
    if node.op_type == "Bernoulli":
        return (_TEXTS["hit"], result)
    drawn = _TEXTS["normal" if "Normal" in node.op_type else "same"]
    return (drawn, _TEXTS["scaled"], result)


def _shape(attributes: dict[str, Any]) -> Sequence[str]:
    if "shape" not in attributes:
        return ("shape = Shape (like)",)
    sizes = ", ".join(map(str, attributes["shape"]))
    return (f"shape = Constant <value = int64[{len(attributes['shape'])}] {{{sizes}}}> ()",)


def _numbers(operator: str, attributes: dict[str, Any]) -> dict[str, float]:
    """Return scale, offset and output type of the random numbers."""
    dtype = attributes.get("dtype", onnx.TensorProto.FLOAT)
    if "Normal" in operator:
        return {"scale": attributes.get("scale", 1.0), "offset": attributes.get("mean", 0.0), "dtype": dtype}
    low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
    return {"scale": high - low, "offset": low, "dtype": dtype}


_TEXTS = {
    "uniform": """
        one = Constant <value = int64 {1}> () zero = Constant <value = int64 {0}> ()
        count = ReduceProd <keepdims = 0> (shape) at = Range (zero, count, one) k = Cast <to = 11> (at)
        rate = Constant <value = double {12.9898}> () phase = Constant <value = double {%(phase)d.0}> ()
        turned = Mul (k, rate) angle = Add (turned, phase) sine = Sin (angle)
        much = Constant <value = double {43758.5453}> () large = Mul (sine, much)
        whole = Floor (large) first = Sub (large, whole)
    """,
    "same": "drawn = Identity (first)",
    "normal": """
        half = Constant <value = double {0.5}> () k2 = Add (k, half)
        turned2 = Mul (k2, rate) angle2 = Add (turned2, phase) sine2 = Sin (angle2)
        large2 = Mul (sine2, much) whole2 = Floor (large2) second = Sub (large2, whole2)
        tiny = Constant <value = double {1e-12}> () above = Add (first, tiny) log = Log (above)
        minus_two = Constant <value = double {-2.0}> () square = Mul (log, minus_two) radius = Sqrt (square)
        circle = Constant <value = double {6.283185307179586}> () around = Mul (second, circle)
        side = Sin (around) drawn = Mul (radius, side)
    """,
    "scaled": """
        scale = Constant <value = double {%(scale).9e}> () scaled = Mul (drawn, scale)
        offset = Constant <value = double {%(offset).9e}> () moved = Add (scaled, offset)
        shaped = Reshape (moved, shape)
    """,
    "hit": "wide = Cast <to = 11> (like) spread = Reshape (first, shape) shaped = Less (spread, wide)",
    "usual ratio": "ratio = Constant <value = float {0.5}> ()",
    "dropped": """
        wide = Cast <to = 11> (ratio) spread = Reshape (first, shape) below = Less (spread, wide)
        drops = And (below, training) mask = Not (drops) full = Constant <value = double {1.0}> ()
        share = Sub (full, wide) divisor = Where (training, share, full) data = Cast <to = 11> (like)
        larger = Div (data, divisor) none = Constant <value = double {0.0}> ()
        kept = Where (mask, larger, none)
        result = CastLike (kept, like)
    """,
}
"""The nodes of a function, by what they compute; `first` are uniform numbers."""
