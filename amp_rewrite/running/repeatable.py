"""Models that draw random numbers, made to draw the same in every run.

onnxruntime seeds RandomNormal and the like by the position of the node, and draws others in the next run, so
that a model differs from its rewrite, and from itself, by what they draw. For runs that are compared, each
such node becomes a function of positions and of its name: the fractional part of
43758.5453 sin(12.9898 k + phase) is uniform in 0..1, and two of these make a normal one (G. E. P. Box, M. E.
Muller: A note on the generation of random normal deviates, Annals of Mathematical Statistics 29, 1958).
Dropout in training mode and Bernoulli compare such uniform numbers with their probabilities.
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


def may_draw(path: Path) -> bool:
    """Whether a file has the name of an operator that draws random numbers somewhere in it."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            return any(held.find(name.encode()) >= 0 for name in ("Random", *_COMPARING))


def repeatable(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy that draws the same in every run; None where nothing can be replaced.

    That takes opset 11, for Range, and 15, for CastLike, where a node does not name the type which it draws.
    """
    versions = {schema.canonical(entry.domain): entry.version for entry in model.opset_import}
    opset = versions.get("", 1)
    if opset < _FIRST_WITH_RANGE or not any(
        _is_drawn(node, opset) for node in proto_traversal.every_node(model)
    ):
        return None
    made = onnx.ModelProto()
    made.CopyFrom(model)
    drawing = [node for node in proto_traversal.every_node(made) if _is_drawn(node, opset)]
    drawn = [_replace(node, opset, count) for count, node in enumerate(drawing)]
    for holder in (made, *made.functions):
        holder.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    made.functions.extend(drawn)
    made.ir_version = max(made.ir_version, _FIRST_IR_WITH_FUNCTIONS)
    return made


_DOMAIN = "amp_rewrite.random"
_FIRST_WITH_RANGE, _FIRST_WITH_CAST_LIKE, _FIRST_IR_WITH_FUNCTIONS = 11, 15, 8
_FILLING = frozenset({"RandomNormal", "RandomUniform"})
_DRAWING = frozenset({*_FILLING, "RandomNormalLike", "RandomUniformLike"})
_COMPARING = frozenset({"Bernoulli", "Dropout"})
_RATIO, _TRAINING_MODE = 1, 2
"""The inputs of a Dropout."""


def _is_drawn(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain or node.op_type not in (*_DRAWING, *_COMPARING):
        return False
    if node.op_type == "Dropout":
        return opset >= _FIRST_WITH_CAST_LIKE and bool([*node.input, "", ""][_TRAINING_MODE])
    is_typed = node.op_type in _FILLING or any(entry.name == "dtype" for entry in node.attribute)
    return is_typed or opset >= _FIRST_WITH_CAST_LIKE


def _replace(node: onnx.NodeProto, opset: int, count: int) -> onnx.FunctionProto:
    """Makes a node a call of the function that is returned."""
    given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    name = f"Draw{count}"
    lines = (_head(node, opset, name), *_shape(given), *_UNIFORM, *_drawn(node, given), "}")
    numbers = {**_numbers(node.op_type, given), "phase": zlib.crc32((node.name or name).encode()) % 1000}
    inputs = [value for value in node.input if value]
    node.CopyFrom(helper.make_node(name, inputs, node.output, name=node.name, domain=_DOMAIN))
    return parser.parse_function("\n".join(lines) % numbers)


def _head(node: onnx.NodeProto, opset: int, name: str) -> str:
    taken = zip(("like", "ratio", "training"), node.input, strict=False)
    inputs = ", ".join(formal for formal, value in taken if value)
    outputs = ", ".join(("result", "mask")[: len(node.output)])
    imports = f'domain: "{_DOMAIN}", opset_import: ["" : {opset}]'
    return f"<{imports}> {name} ({inputs}) => ({outputs}) {{"


def _drawn(node: onnx.NodeProto, given: dict[str, Any]) -> Sequence[str]:
    """The lines that make what a node gives of the uniform numbers `first`."""
    if node.op_type == "Dropout":
        return (*(() if node.input[_RATIO] else _USUAL_RATIO), *_DROPPED)
    result = "result = Cast <to = %(dtype)d> (shaped)"
    if "dtype" not in given and node.op_type not in _FILLING:
        result = "result = CastLike (shaped, like)"
    if node.op_type == "Bernoulli":
        return (*_HIT, result)
    drawn = _NORMAL if "Normal" in node.op_type else ("drawn = Identity (first)",)
    return (*drawn, *_END, result)


def _shape(given: dict[str, Any]) -> Sequence[str]:
    if "shape" not in given:
        return ("shape = Shape (like)",)
    sizes = ", ".join(map(str, given["shape"]))
    return (f"shape = Constant <value = int64[{len(given['shape'])}] {{{sizes}}}> ()",)


def _numbers(operator: str, given: dict[str, Any]) -> dict[str, float]:
    """What a number that was drawn is multiplied with, what is added, and the type that it then gets."""
    dtype = given.get("dtype", onnx.TensorProto.FLOAT)
    if "Normal" in operator:
        return {"scale": given.get("scale", 1.0), "offset": given.get("mean", 0.0), "dtype": dtype}
    low, high = given.get("low", 0.0), given.get("high", 1.0)
    return {"scale": high - low, "offset": low, "dtype": dtype}


_UNIFORM = (
    "one = Constant <value = int64 {1}> () zero = Constant <value = int64 {0}> ()",
    "count = ReduceProd <keepdims = 0> (shape) at = Range (zero, count, one) k = Cast <to = 11> (at)",
    "rate = Constant <value = double {12.9898}> () phase = Constant <value = double {%(phase)d.0}> ()",
    "turned = Mul (k, rate) angle = Add (turned, phase) sine = Sin (angle)",
    "much = Constant <value = double {43758.5453}> () large = Mul (sine, much)",
    "whole = Floor (large) first = Sub (large, whole)",
)

_NORMAL = (
    "half = Constant <value = double {0.5}> () k2 = Add (k, half)",
    "turned2 = Mul (k2, rate) angle2 = Add (turned2, phase) sine2 = Sin (angle2)",
    "large2 = Mul (sine2, much) whole2 = Floor (large2) second = Sub (large2, whole2)",
    "tiny = Constant <value = double {1e-12}> () above = Add (first, tiny) log = Log (above)",
    "minus_two = Constant <value = double {-2.0}> () square = Mul (log, minus_two) radius = Sqrt (square)",
    "circle = Constant <value = double {6.283185307179586}> () around = Mul (second, circle)",
    "side = Sin (around) drawn = Mul (radius, side)",
)

_END = (
    "scale = Constant <value = double {%(scale).9e}> () scaled = Mul (drawn, scale)",
    "offset = Constant <value = double {%(offset).9e}> () moved = Add (scaled, offset)",
    "shaped = Reshape (moved, shape)",
)

_HIT = ("wide = Cast <to = 11> (like) spread = Reshape (first, shape) shaped = Less (spread, wide)",)

_USUAL_RATIO = ("ratio = Constant <value = float {0.5}> ()",)

_DROPPED = (
    "wide = Cast <to = 11> (ratio) spread = Reshape (first, shape) below = Less (spread, wide)",
    "drops = And (below, training) mask = Not (drops) full = Constant <value = double {1.0}> ()",
    "share = Sub (full, wide) divisor = Where (training, share, full) data = Cast <to = 11> (like)",
    "larger = Div (data, divisor) none = Constant <value = double {0.0}> ()",
    "kept = Where (mask, larger, none)",
    "result = CastLike (kept, like)",
)
