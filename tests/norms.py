"""Norms that are written out, in every spelling, as models: between two products."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests import text

SHAPE = (2, 4, 8)


@dataclass(frozen=True)
class Spelling:
    """How a norm is written.

    `kind` is centred (LayerNormalization), mean (RMSNormalization) or sum (LpNormalization). `square` is pow,
    mul or reduction (ReduceSumSquare, ReduceL2); `root` is what the data are divided by, or multiplied with.
    `bound` keeps that from zero. `beside` is what else reads the data, `source` what makes them.
    """

    kind: str = "centred"
    square: str = "pow"
    root: str = "sqrt-div"
    bound: str = "add"
    axes: tuple[int, ...] = (-1,)
    swapped: bool = False
    twice: bool = False
    weight: bool = True
    bias: bool = True
    beside: str = ""
    source: str = "product"
    opset: int = 17

    def __str__(self) -> str:
        plain = Spelling()
        said = (f"{f.name}={getattr(self, f.name)}" for f in fields(self) if self != plain)
        return " ".join(each for each in said if not each.endswith(f"={getattr(plain, each.split('=')[0])}"))


OPSETS = (11, 12, 13, 15, 16, 17, 18, 20, 22)
KINDS = ("centred", "mean", "sum")
CHOICES = {
    "square": ("mul", "reduction"),
    "root": ("sqrt-inverse-mul", "sqrt-reciprocal-mul", "inverse-sqrt-mul", "pow-mul", "pow-div"),
    "bound": ("max", "clip", "expanded"),
    "axes": ((2,), (-2, -1), (1,)),
    "swapped": (True,),
    "twice": (True,),
    "weight": (False,),
    "bias": (False,),
    "beside": ("output", "softmax", "norm", "residual"),
    "source": ("input", "table"),
}


def spellings(*opsets: int) -> Iterator[Spelling]:
    """Every kind at every opset, and every other choice with each kind at some, also as exporters do."""
    for kind in KINDS:
        yield from (Spelling(kind, opset=opset) for opset in OPSETS)
        for name, others in CHOICES.items():
            for other in others:
                yield from (replace(Spelling(kind, opset=opset), **{name: other}) for opset in opsets)
    for opset in opsets:  # as PyTorch's older and newer exporter, and TensorFlow's, have them
        yield Spelling("mean", root="sqrt-inverse-mul", swapped=True, bias=False, opset=opset)
        yield Spelling("mean", root="sqrt-reciprocal-mul", swapped=True, bias=False, opset=opset)
        yield Spelling("centred", "mul", "sqrt-reciprocal-mul", opset=opset)
        yield Spelling("sum", "reduction", bound="clip", weight=False, bias=False, opset=opset)


# Parts of a norm of A as n: V is what is squared, and D what is divided. Of an operator with a 2, the inputs
# may be swapped, and how a reduction names its axes is a matter of opsets.

SQUARES = {
    "pow": "q = Pow (V, two) s = TOTAL (q)",
    "mul": "q = Mul (V, V) s = TOTAL (q)",
    "reduction": "t = ReduceSumSquare (V) s = Div (t, size)",  # a mean as a sum over a number of elements
    "reduction of a sum": "s = ReduceSumSquare (V)",
}
BOUNDS = {
    "add": "b = Add2 (s, least)",
    "max": "b = Max2 (s, least)",
    "clip": "b = Clip (s, least)",
    "expanded": "w = Add2 (s, least) b = Expand (w, shape)",
}
ROOTS = {
    "sqrt-div": "r = Sqrt (b) n = Div (D, r)",
    "sqrt-inverse-mul": "r = Sqrt (b) i = Div (one, r) n = Mul2 (D, i)",
    "sqrt-reciprocal-mul": "r = Sqrt (b) i = Reciprocal (r) n = Mul2 (D, i)",
    "inverse-sqrt-mul": "r = Div (one, b) i = Sqrt (r) n = Mul2 (D, i)",
    "pow-mul": "i = Pow (b, inverse) n = Mul2 (D, i)",
    "pow-div": "r = Pow (b, root) n = Div (D, r)",
}
SOURCES = {"product": "a = MatMul (x, first)", "table": "a = Gather (table, x)", "input": ""}
BESIDE = {
    "": "",
    "output": "z = Identity (A)",
    "softmax": "z = Exp (A)",
    "norm": "NORM z = MatMul (mn, third)",
    "residual": "e = Add (A, x) z = MatMul (e, third)",
}


def model(spelling: Spelling) -> onnx.ModelProto:
    """The model of a norm; its nodes are called after their operators and places, as mul_6."""
    way, value = spelling, "kn"
    body = f"{SOURCES[way.source]} {_norm(way, 'k')} "
    for wanted, part, operator, weight in ((way.weight, "g", "Mul", "gain"), (way.bias, "h", "Add", "shift")):
        body += f"{part} = {operator}2 ({value}, {weight}) " if wanted else ""
        value = part if wanted else value
    body += f"y = MatMul ({value}, second) {BESIDE[way.beside].replace('NORM', _norm(way, 'm'))}"
    body = re.sub(r"\bA\b", "x" if way.source == "input" else "a", body)
    body = re.sub(r"(\w+)2 \((\w+), (\w+)\)", r"\1 (\3, \2)" if way.swapped else r"\1 (\2, \3)", body)
    body = re.sub(r"(Reduce\w+) \((\w+)\)", lambda found: _reduced(way, *found.groups()), body)
    words = re.findall(r"\w+", body)
    stored = {name: array for name, array in _stored(way).items() if name in words}
    kind = "int64[2,4]" if way.source == "table" else "float[2,4,8]"
    outputs = ", ".join(f"float[2,4,8] {name}" for name in "yz" if name in words)
    header = f'<ir_version: 8, opset_import: ["": {way.opset}]>'
    made = text.unchecked(f"{header} g ({kind} x) => ({outputs}) {{ {body} }}")
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    for place, node in enumerate(made.graph.node):
        node.name = f"{node.op_type.lower()}_{place}"
    return made


def _norm(way: Spelling, prefix: str) -> str:
    """The nodes of a norm of A, without a weight and a bias; what they make has a prefix."""
    centred, of_a_sum = way.kind == "centred", " of a sum" * (way.kind == "sum" and way.square == "reduction")
    again = "d = Sub (A, c)" if centred and way.twice else ""
    centre = f"c = ReduceMean (A) v = Sub (A, c) {again}" if centred else ""
    made = f"{centre} {SQUARES[way.square + of_a_sum]} {BOUNDS[way.bound]} {ROOTS[way.root]}"
    made = made.replace("TOTAL", "ReduceSum" if way.kind == "sum" else "ReduceMean")
    value = "v" if centred else "A"
    made = re.sub(r"\bD\b", "d" if again else value, re.sub(r"\bV\b", value, made))
    return re.sub(r"\b([a-z])\b", rf"{prefix}\1", made)


def _reduced(way: Spelling, operator: str, value: str) -> str:
    if way.opset < (13 if operator == "ReduceSum" else 18):
        return f"{operator} <axes = {list(way.axes)}, keepdims = 1> ({value})"
    return f"{operator} <keepdims = 1> ({value}, axes)"


def _stored(way: Spelling) -> dict[str, NDArray[np.generic]]:
    random, size = np.random.default_rng(0), np.prod([SHAPE[axis] for axis in way.axes])
    made = {name: random.standard_normal((8, 8)) * 0.3 for name in ("first", "second", "third")}
    made |= {
        "table": random.standard_normal((8, 8)),
        "gain": 0.5 + random.random(8),
        "shift": random.random(8) - 0.5,
    }
    made |= {"two": 2, "one": 1, "least": 1e-5, "inverse": -0.5, "root": 0.5, "size": size}
    floats = {name: np.asarray(array, np.float32) for name, array in made.items()}
    return {**floats, "shape": np.array(SHAPE), "axes": np.array(way.axes)}
