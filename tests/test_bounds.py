"""What is proven of values: each rule in numbers, and a law: no run shows anything beyond its bound."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from numpy.typing import NDArray

from amp_rewrite import pipeline
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.intervals import UNKNOWN, Interval
from amp_rewrite.bounds.transfer import TRANSFERS
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import serialization
from amp_rewrite.onnx_types import schema
from amp_rewrite.options import Options
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.instrumented_model import InstrumentedModel
from amp_rewrite.running.sessions import Device
from tests import commands, random_models
from tests.test_laws import LAW
from tests.text import model, stored, unchecked

SHARED = Path(__file__).parents[2] / "shared" / "models"

Feeds = Mapping[str, NDArray[Any]]


def bounds(analysis: Analysis) -> dict[str, Interval]:
    """The bound of every value of the main graph of an analysed model, by name; masks are as they are."""
    analysis.facts.ranges.masks.clamped.clear()
    proven = Proven(analysis.loaded.model, analysis.facts, analysis.options)
    return {
        value.name or "": proven.of(value) for node in analysis.loaded.model.graph for value in node.outputs
    }


def of(model: onnx.ModelProto, **ranges: tuple[float, float]) -> dict[str, Interval]:
    """The bounds of a model whose inputs have these ranges."""
    return bounds(pipeline.analyze(model, Options(ranges=ranges, fold=False, keep_overridable=True)))


def ranges_of(sample: Feeds) -> dict[str, tuple[float, float]]:
    """The ranges of the float inputs of a sample."""
    floats = {name: array for name, array in sample.items() if getattr(array, "dtype", None) == np.float32}
    return {name: (float(array.min()), float(array.max())) for name, array in floats.items() if array.size}


class Sizes:
    """What an analysed model declares of the shapes of its values, its outputs aside, which are its author's;
    sizes of one name are the same, as a runtime believes.
    """

    def __init__(self, analysis: Analysis) -> None:
        graph = analysis.loaded.model.graph
        values = (*graph.inputs, *(value for node in graph for value in node.outputs))
        self._declared = {
            value.name: [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            for value in values
            if value.shape is not None and type(value.type) is ir.TensorType and not value.is_graph_output()
        }
        self._named: dict[str, int] = {}

    def wrong(self, name: str, shape: tuple[int, ...]) -> Iterator[str]:
        """What is declared of a value that has this shape, and is another."""
        declared = self._declared.get(name, [None] * len(shape))
        sizes = [
            self._named.setdefault(dim, size) if isinstance(dim, str) else size if dim is None else dim
            for dim, size in zip(declared, shape, strict=False)
        ]
        if len(declared) != len(shape) or sizes != list(shape):
            yield f"{name}: {declared}, and is {shape}"


def broken(source: onnx.ModelProto | Path, sample: Feeds) -> Iterator[str]:
    """What a run of a model on this sample shows beyond its bounds, where its inputs are declared to be as
    they are in the sample.
    """
    analysis = pipeline.analyze(source, Options(ranges=ranges_of(sample)))
    known, sizes = bounds(analysis), Sizes(analysis)
    for name, array in sample.items():
        yield from sizes.wrong(name, np.shape(array))
    runner = InstrumentedModel(serialization.to_proto(analysis.loaded), Device.CPU)
    for values in runner.chunks(runner.values, sample):
        for name, array in values.items():
            yield from sizes.wrong(name, np.shape(array))
            bound = known.get(name, UNKNOWN)
            if any(beyond(np.asarray(array, np.float64), bound)):
                yield f"{name}: {bound}"


def beyond(array: NDArray[np.float64], bound: Interval) -> Iterator[bool]:
    """What an array shows beyond its bound: its elements. NaN proves nothing."""
    numbers = array[~np.isnan(array)]
    yield bool(numbers.size) and not (bound.low <= numbers.min() and numbers.max() <= bound.high)


# ---- rules

NEARLY = 1e-2
"""How far above the exact bound one may be for rounding: sums of unknown length are the worst."""

RULES = [
    ("y = Relu (x)", (0, 3)),
    ("y = Neg (x)", (-3, 2)),
    ("y = Abs (x)", (0, 3)),
    ("y = ReduceL2 <axes = [-1]> (x)", (0, 6)),
    ("s = Shape (x)\n o = ConstantOfShape <value = float[1] {2}> (s)\n y = Abs (o)", (2, 2)),
    (
        "t = Constant <value = bool[2] {1, 0}> () c = Compress (x, t)\n s = Mul (c, c) y = ReduceSum (s)",
        (0, math.inf),
    ),
    ("y = Tanh (x)", (math.tanh(-2), math.tanh(3))),
    ("y = Exp (x)", (math.exp(-2), math.exp(3))),
    ("y = Sigmoid (x)", (0, 1)),
    ("y = Mul (x, x)", (0, 9)),
    ("three = Constant <value_float = 3.0> ()\n y = Pow (x, three)", (-8, 27)),
    ("s = Sigmoid (x)\n y = Mul (x, s)", (-2, 3)),
    ("m = ReduceMax <axes = [-1]> (x)\n y = Sub (x, m)", (-5, 0)),
    ("m = ReduceMax <axes = [-1]> (x)\n d = Sub (x, m)\n y = Exp (d)", (math.exp(-5), 1)),
    ("y = Add (x, x)", (-4, 6)),
    ("y = Softmax (x)", (0, 1)),
    ("s = Softmax (x)\n y = MatMul (s, x)", (-2, 3)),
    ("t = Transpose <perm = [1, 0]> (x)\n y = MatMul (x, t)", (-36, 36)),
    ("y = MatMul (x, w)", (-9.6, 9.6)),
    ("y = Gemm <alpha = 2.0, transB = 1> (x, w)", (-12, 12)),
    ("y = LayerNormalization (x, scale)", (-4, 4)),
    ("n = LayerNormalization (x, scale)\n y = MatMul (n, w)", (-12.8, 12.8)),
    ("y = Clip (x)", (-2, 3)),
    ("y = Concat <axis = 0> (x, w)", (-2, 3)),
    ("axes = Constant <value_ints = [0]> ()\n y = ReduceSum (x, axes)", (-8, 12)),
    ("y = ReduceMean <axes = [0]> (x)", (-2, 3)),
    ("e = Exp (x)\n y = Div (x, e)", (-14.778, 22.167)),
    ("y = Sin (x)", (-1, 1)),
    ("one = Constant <value_float = 1.0> () c = Greater (x, one)\n y = Where (c, x, one)", (1, 3)),
    ("y = Reciprocal (x)", (-math.inf, math.inf)),
    ("y = Det (x)", (-math.inf, math.inf)),
]
W = """float[4,4] w = {1.0, 0.0, 0.0, 0.0,  1.0, 1.0, 0.0, 0.0,  1.0, 0.0, -1.0, 0.0,  0.2, 0.0, 0.0, 0.1}"""
"""A matrix of which the first column has the largest norms: 3.2 (L1) and 1.743 (L2)."""


def _proven(nodes):
    stored = f"{W}, float[4] scale = {{2.0, -1.0, 0.5, 1.0}}"
    text = f"g (float[4,4] x) => (int64[n] z) <{stored}> {{ {nodes} z = Shape (y) }}"
    return of(model(text), x=(-2.0, 3.0))["y"]


@pytest.mark.parametrize(
    ("nodes", "expected"), RULES, ids=[nodes.split("\n")[-1].strip() for nodes, _ in RULES]
)
def test_the_interval_of_an_operator(nodes, expected):
    """Of x from -2 to 3, 4 by 4, the interval is the one that arithmetic gives, and hardly wider."""
    found = _proven(nodes)
    low, high = expected
    assert found.low <= low + 1e-3
    assert found.high >= high - 1e-3
    assert found.low >= low - NEARLY * abs(low) - 1e-5 or math.isinf(low)
    assert found.high <= high + NEARLY * abs(high) + 1e-5 or math.isinf(high)


def test_scaled_written_out_norms_are_not_bounded():
    """A divisor that is scaled, or bounded from above, bounds no quotient."""
    for scaling in ("b = Mul (a, tiny)", "b = Clip (a, e, tiny)"):
        found = _proven(
            f"""e = Constant <value_float = 1e-6> () tiny = Constant <value_float = 1e-9> ()
            s = Mul (x, x) m = ReduceMean <axes = [-1]> (s) a = Add (m, e) {scaling}
            q = Sqrt (b) y = Div (x, q)"""
        )
        assert found.most > 1000


def test_bodies_are_sound():
    """Branches join, what is scanned is as a whole, and what an iteration carries on is not bounded."""
    found = of(
        model(
            """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) <float one = {1.0}, int64 n = {0}> {
                y = If (c) <then_branch = t () => (float[4,4] a) { a = Tanh (x) },
                            else_branch = e () => (float[4,4] b) { b = Add (x, one) }>
                first = Gather (x, n)
                last, z = Scan <num_scan_inputs = 1,
                    body = s (float[4] h, float[4] r) => (float[4] k, float[4] o) {
                        k = Add (h, r)
                        o = Relu (r)
                    }> (first, x)
            }"""
        ),
        x=(-2.0, 3.0),
    )
    assert (found["y"].low, found["y"].high) == pytest.approx((-1, 4))
    assert (found["z"].low, found["z"].high) == pytest.approx((0, 3))
    assert found["last"].most == math.inf


def test_what_a_caller_can_change_is_not_bounded():
    """From IR version 4 on, an initializer that is also an input is a default."""
    made = model(
        """g (float[4,4] x, float[4] w) => (float[4,4] y) <float[4] w = {1.0, 1.0, 1.0, 1.0}> {
            y = Mul (x, w)
        }"""
    )
    assert of(made, x=(-2.0, 3.0))["y"].most == math.inf
    assert of(made, x=(-2.0, 3.0), w=(0.0, 2.0))["y"].high == pytest.approx(6)


# ---- the law


@LAW
@given(random_models.models())
def test_no_random_model_shows_more(made):
    """No run of a model drawn at random shows an element beyond its bound."""
    sample = random_models.feeds()
    try:
        found = list(broken(made, sample))
    except AmpRewriteError:
        return  # onnxruntime does not run every valid model
    assert found == []


def _shared():
    quick = ("dit_small.dynamo", "dynamo_cond_scan.dynamo")
    paths = sorted(SHARED.glob("*/*.onnx")) if SHARED.exists() else []
    for path in paths:
        marks = [] if path.parent.name in quick else [pytest.mark.slow]
        yield pytest.param(path, id=path.parent.name, marks=marks)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared models are not here")
@pytest.mark.parametrize("path", tuple(_shared()))
def test_no_shared_model_shows_more(path):
    """The same of real ones, on inputs that the tool makes up."""
    try:
        samples = list(feeds.feeds(path, feeds.Data(samples=2)))
        found = [line for sample in samples for line in broken(path, sample)]
    except AmpRewriteError as error:
        pytest.skip(f"does not run here: {error}")
    assert found == []


def test_rules_are_of_operators_that_exist():
    """A rule of an operator that no schema knows would never apply."""
    for written in TRANSFERS:
        domain, name = schema.parse(written)
        assert name in schema.known_operators(domain), written


# ---- bounds hold where arithmetic is not that of real numbers: it rounds, wraps, repeats, has two zeros

MANY = [each * 1e-3 + 1e4 for each in range(512)]
TRAPS = """
a vector on the right of a weight | float[4] v = {3, 3, 3, 3} | y = MatMul (w, v)
a stack of weights                | float[4,4] x = {ONES} | y = MatMul (x, stack)
a vector on the right             | float[4] v = {3, 3, 3, 3}, float[4,4] x = {ONES} | y = MatMul (x, v)
a negative zero                   | float[1,2] x = {-0.0, 1} | y = Reciprocal (x)
integers that wrap                | float[1,2] x = {1, 2}
    | i = Cast <to = 6> (x) n = Constant <value = int32[1] {2147483647}> () a = Add (i, n)
    y = Cast <to = 1> (a)
a square that wraps               | float[1,2] x = {50000, 50001}
    | i = Cast <to = 6> (x) a = Mul (i, i) y = Cast <to = 1> (a)
integers that are truncated       | float[1,2] x = {7, 7}
    | i = Cast <to = 6> (x) n = Constant <value = int32[1] {2}> () a = Div (i, n) y = Cast <to = 1> (a)
a product with its own truth      | float[1,2] x = {-3, 2}
    | b = Cast <to = 9> (x) f = Cast <to = 1> (b) y = Mul (x, f)
less than its own largest integer | float[1,2] x = {1.5, 1.9}
    | i = Cast <to = 6> (x) m = ReduceMax <axes = [-1]> (i) f = Cast <to = 1> (m) y = Sub (x, f)
arithmetic in float16             | float[1,2] x = {300, 200} | h = Cast <to = 10> (x) y = Mul (h, h)
what float16 flushes    | float[1,2] x = {1e-9, 3e-9} | h = Cast <to = 10> (x) y = Cast <to = 1> (h)
a square that underflows          | float[1,2] x = {1e-30, 1e-30} | s = Mul (x, x) y = Reciprocal (s)
a norm without an epsilon         | float[1,4] x = {SPECIAL}
    | z = Pow (x, two) m = ReduceMean <axes = [-1]> (z) q = Sqrt (m) y = Div (x, q)
a norm that is a sum              | float[1,4] x = {SPECIAL} | q = ReduceL2 <axes = [-1]> (x) y = Div (x, q)
an epsilon behind the reciprocal  | float[1,4] x = {1e6, 1e6, 1e6, 1e6}
    | z = Pow (x, two) m = ReduceMean <axes = [-1]> (z) a = Add (m, e) q = Sqrt (a) r = Reciprocal (q)
    b = Add (r, one) y = Mul (x, b)
statistics along another axis
    | float[4,4] x = {1, 8, 27, 64, 125, 216, 343, 512, 729, 1000, 1331, 1728, 2197, 2744, 3375, 4096}
    | z = Pow (x, two) m = ReduceMean <axes = [-1], keepdims = 0> (z) a = Add (m, e) q = Sqrt (a)
    y = Div (x, q)
two means                         | float[2,4] x = {1, 1, 1, 1, 500, 500, 500, 500}
    | a = ReduceMean <axes = [-1]> (x) b = ReduceMean <axes = [0]> (x) d = Sub (x, a) f = Sub (x, b)
    g = Mul (d, d) m = ReduceMean <axes = [-1]> (g) h = Add (m, tiny) q = Sqrt (h) y = Div (f, q)
a variance that cancels           | float[1,512] x = {MANY}
    | z = Pow (x, two) a = ReduceMean <axes = [-1]> (x) d = Sub (x, a) m = ReduceMean <axes = [-1]> (z)
    g = Mul (a, a) v = Sub (m, g) h = Add (v, tiny) q = Sqrt (h) y = Div (d, q)
a norm of one node, the same | float[1,4] x = {SPECIAL} | y = LayerNormalization <epsilon = 0.0> (x, one4)
a weight that is broadcast        | float[1,4] x = {1000, 0, 0, 0} | y = LayerNormalization (x, one1)
a window of padding alone         | float[1,1,4] p = {1, 1, 1, 1}
    | y = MaxPool <kernel_shape = [2], dilations = [5], pads = [1, 1]> (p)
rows that become columns, of a rank that is not known
    | float[4,4] x = {9, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0}, int64[2] n = {4, 4}
    | r = Reshape (x, n) s = Softmax (r) y = Transpose (s)
a sum along no axis           | float[1,2] x = {1, 2} | y = ReduceSum <noop_with_empty_axes = 1> (x)
a norm whose square overflows | float[1,2] x = {1e20, 1e20} | y = ReduceL2 <axes = [-1]> (x)
the least integer             | float[1,2] x = {-9223372036854775808.0, 3}
    | i = Cast <to = 7> (x) a = Abs (i) y = Cast <to = 1> (a)
weights that underflow        | float[4,4] x = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}
    | m = MatMul (x, small) y = MatMul (m, huge)
"""
"""The inputs of a run, and what it computes; each is beyond the bound of a rule for real numbers."""
NUMBERS = {"ONES": [1] * 16, "SPECIAL": [1e-24, -1e-24, 2e-24, -2e-24], "MANY": MANY}
SIZES = {"w": (4, 4), "one4": 4, "one1": 1, "stack": (1, 4, 4)}
SCALES = {"e": 1e-6, "one": 1, "two": 2, "tiny": 1e-12}
WEIGHTS = {name: np.ones(size, np.float32) for name, size in SIZES.items()}
WEIGHTS |= {name: np.asarray(number, np.float32) for name, number in SCALES.items()}
WEIGHTS |= {name: np.full((4, 4), number, np.float32) for name, number in (("small", 1e-23), ("huge", 1e23))}


@pytest.mark.parametrize(
    ("given", "nodes"),
    [row[1:] for row in commands.rows(TRAPS)],
    ids=[row[0] for row in commands.rows(TRAPS)],
)
def test_no_trap_shows_more(given, nodes):
    """No value of these runs is beyond its bound."""
    for name, numbers in NUMBERS.items():
        given = given.replace(name, ", ".join(map(repr, numbers)))
    sample = stored(unchecked(f"g () => () <{given}> {{ }}"))
    declared = re.sub(r" = \{.*?\}", "", given).replace("int64[2]", "int64[K]")
    weights = ", ".join(f"float{list(array.shape) or ''} {name}" for name, array in WEIGHTS.items())
    made = model(f"g ({declared}) => (int64[r] size) <{weights}> {{ {nodes} size = Shape (y) }}", WEIGHTS)
    assert list(broken(made, sample)) == []


POINTS = (0.0, -0.0, 1e-40, -1e-40, 1e-20, 3e-4, -3e-4, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.718, -7.3, 17.9)
POINTS += (-17.9, 80.0, -80.0, 103.0, -103.0, 3e4, -3e4, 65504.0, -1e8, 1e8, 1e19, -1e19, 3.4e38, -3.4e38)
UNARY = """Abs Cos Erf Exp HardSigmoid HardSwish LeakyRelu Neg Reciprocal Relu Sigmoid Sign Sin Softplus Sqrt
Tanh""".split()


@pytest.mark.parametrize("operator", UNARY)
def test_at_single_points_functions_are_within_their_bounds(operator):
    """Of one number, whether tiny, huge or a negative zero, what is computed is within the bound."""
    names = [f"x{i}" for i in range(len(POINTS))]
    inputs = ", ".join(f"float[1] {name}" for name in names)
    nodes = " ".join(f"y{i} = {operator} ({name})" for i, name in enumerate(names))
    outputs = ", ".join(f"float[1] y{i}" for i in range(len(POINTS)))
    made = model(f"g ({inputs}) => ({outputs}) {{ {nodes} }}")
    feeds = {name: np.array([point], np.float32) for name, point in zip(names, POINTS, strict=True)}
    assert list(broken(made, feeds)) == []


def test_functions_of_a_model_are_not_what_their_names_say():
    """A function that stays a call has no rule, whatever operator it is called after."""
    made = model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[4] x) => (float[4] y) { y = com.microsoft.Gelu (x) }
        <domain: "com.microsoft", opset_import: ["" : 17]> Gelu (a) => (b) { b = Exp (a) }"""
    )
    analysis = pipeline.analyze(made, Options(ranges={"x": (0, 1)}, keep_functions=True))
    assert bounds(analysis)["y"] == UNKNOWN


def test_old_broadcasting_is_not_that_of_today():
    """At opset 6 an attribute aligns axes: norms would be those of other axes."""
    made = model(
        """<ir_version: 3, opset_import: ["" : 6]>
        g (float[4,4] x, float[4] v) => (float[4,4] y) { y = Add <axis = 0, broadcast = 1> (x, v) }"""
    )
    assert of(made, x=(0.0, 1.0), v=(0.0, 1.0))["y"] == UNKNOWN
