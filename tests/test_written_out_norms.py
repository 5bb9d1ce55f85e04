"""Norms in every spelling: results load, run and are close; on CUDA too, where onnxruntime-gpu is there.

What is predicted of them: one kernel where onnxruntime fuses them, else one for each node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from amp_rewrite import pipeline, rewrite
from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.explaining import sentences
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import cuda_sessions, text
from tests.commands import every

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


def written_out(spelling: Spelling) -> onnx.ModelProto:
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


SPELLINGS = [*dict.fromkeys([*spellings(17), *spellings(13, 20)])]


@pytest.mark.parametrize("spelling", every(11, SPELLINGS))
def test_a_norm_is_one_decision(spelling):
    """It is recognised; nothing between its data and its result is half; the result loads and is close."""
    model = written_out(spelling)
    onnx.checker.check_model(model, full_check=True)
    analysis = pipeline.analyze(model)
    graph, painting = analysis.graph, analysis.painting
    inner = {unit for unit, spelled in graph.spelled.items() if spelled.part is not Part.OUTER}
    roots = [unit.node for unit in graph.units if unit.node.op_type in ("Sqrt", "Pow")]
    assert {graph.units[unit].node for unit in inner}.issuperset(roots)
    assert not any(map(painting.is_half, inner))
    result = pipeline.rewrite(model)
    text.agree(model, result.model, 3e-2)
    assert pipeline.rewrite(result.model).model == result.model


DEMANDS = {
    "float16": Options(),
    "bfloat16": Options(half="bfloat16"),
    "tensor cores only": Options(level="tensor-cores-only"),
    "tensor cores only, bfloat16": Options(half="bfloat16", level="tensor-cores-only"),
    "infer as deny": Options(level="treat-infer-as-deny"),
    "forced": Options(level="unsafe-force-all"),
    "half inputs and outputs": Options(io="half"),
    "bfloat16 inputs and outputs": Options(half="bfloat16", io="half"),
}


ONE_KERNEL = ["centred", "mean"]
CASTS = [
    *((Spelling(kind), 2) for kind in ONE_KERNEL),
    *((Spelling(kind, root="sqrt-reciprocal-mul"), 2) for kind in ONE_KERNEL),
    *((Spelling(kind, axes=(2,), twice=True), 2) for kind in ONE_KERNEL),
    *((Spelling(kind, beside="residual"), 3) for kind in ONE_KERNEL),
    (Spelling("mean", bias=False), 2),
    (Spelling("centred", bias=False), 3),  # the mean is taken apart
    *((Spelling(kind, axes=(-2, -1)), 4) for kind in KINDS),
    *((Spelling(kind, axes=(1,)), 4) for kind in KINDS),
    *((Spelling(kind, weight=False), 4) for kind in KINDS),
    *((Spelling(kind, root="pow-mul"), 4) for kind in KINDS),
    *((Spelling(kind, bound="max"), 4) for kind in KINDS),
    (Spelling("sum"), 4),
]


def predicted(model, **asked):
    """The predicted time of a run of the result."""
    return pipeline.rewrite(model, Options(**asked)).report.prediction.result


@pytest.mark.parametrize(("spelling", "casts"), CASTS, ids=str)
def test_casts_of_norms(spelling, casts):
    """Those within a fused norm do not run; all others do, beside those at both ends of the model."""
    assert predicted(written_out(spelling)).casts == casts


def test_a_weight_of_two_axes_is_not_fused():
    """Its norm runs node by node, in float32, between two Casts."""
    plain, wide = written_out(Spelling("mean")), written_out(Spelling("mean"))
    (weight,) = (node.input[1] for node in wide.graph.node if node.name == "mul_6")
    (stored,) = (tensor for tensor in wide.graph.initializer if tensor.name == weight)
    stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored)[None], weight))
    onnx.checker.check_model(wide, full_check=True)
    assert (predicted(plain).casts, predicted(wide).casts) == (2, 4)
    assert predicted(wide).launches == predicted(plain).launches + 2 + 5


def test_a_norm_of_float32_data_needs_no_cast():
    """A fused kernel takes data and weights of two types; what follows is half."""
    given = written_out(Spelling("mean", source="input"))
    assert predicted(given, pins=Pins(force_half="mul_5|add_6")).casts == 1


SHARES = 4
"""The spellings are divided among so many tests, each of which has one process that opens sessions."""


@cuda_sessions.marks
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("share", range(SHARES))
def test_predicted_casts_run(share, half):
    """As many Casts run on CUDA as are predicted; onnxruntime merges those of two norms that are the same."""
    with cuda_sessions.cuda_placer() as place:
        for spelling in SPELLINGS[share::SHARES]:
            result = pipeline.rewrite(written_out(spelling), Options(half=half))
            merged = 1 if spelling.kind == "sum" and spelling.beside == "norm" else 0
            told = result.report.prediction
            casts = told.result.casts if told is not None else 0
            assert place(result.model).float_casts == casts - merged, spelling


@cuda_sessions.marks
@pytest.mark.parametrize("share", range(2 * SHARES))
def test_every_spelling_loads_on_cuda(share):
    """Whatever is asked for, with no more nodes on the CPU, copies or inserted Casts than float32 has."""
    with cuda_sessions.cuda_placer() as place:
        for spelling in SPELLINGS[share :: 2 * SHARES]:
            model = written_out(spelling)
            original = place(model)
            assert original.refused == "", spelling
            for name, options in DEMANDS.items():
                result = place(pipeline.rewrite(model, options).model)
                assert result.refused == "", (spelling, name)
                assert cuda_sessions.worsened(original, result) == [], (spelling, name)


# ---- what is said of a part of a norm that is written as onnxruntime fuses it

NORM = """g (float[2,4] x) => (float[2,4] y)
  <float[4,4] w, float[4] v, float e = {{1e-6}}, float two = {{2}}> {{
  a = MatMul (x, w) [square] q = {} m = ReduceMean <axes = [-1]> (q) p = Add (m, e) s = Sqrt (p)
  {} z = Mul (n, v) y = MatMul (z, w) }}"""


@pytest.mark.parametrize(
    ("square", "divide", "change", "words"),
    [
        (
            "Mul (a, a)",
            "n = Div (a, s)",
            FormChange(FormChangeKind.SQUARE, "square"),
            "a power of 2",
        ),
        (
            "Pow (a, two)",
            "[invert] r = Reciprocal (s) n = Mul (a, r)",
            FormChange(FormChangeKind.RECIPROCAL, "invert"),
            "a division",
        ),
    ],
)
def test_it_keeps_its_names(square, divide, change, words):
    """Those of the node and of its output; it is said, and done once."""
    result = rewrite(text.model(NORM.format(square, divide)))
    (node,) = (node for node in result.model.graph.node if node.name == change.node)
    assert list(node.output) == ["q" if node.name == "square" else "r"]
    assert result.report.form_changes == (change,)
    assert sentences.of(change).startswith(f"written as {words}, which")
    assert rewrite(result.model).model == result.model
