"""Bounds hold where arithmetic is not that of real numbers: it rounds, wraps, repeats, has two zeros."""

import numpy as np
import pytest

from amp_rewrite import pipeline
from amp_rewrite.bounds.intervals import UNKNOWN
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.options import Options
from tests.bounds import bounds, broken, of
from tests.text import model

ROOT = """e = Constant <value_float = 1e-6> () one = Constant <value_float = 1.0> ()
    two = Constant <value_float = 2.0> () tiny = Constant <value_float = 1e-12> ()
    z = Pow (x, two)"""
SPECIAL = np.array([[1e-24, -1e-24, 2e-24, -2e-24]], np.float32)
LARGE = np.full((1, 4), 1e6, np.float32)
TALL = np.arange(1, 17, dtype=np.float32).reshape(4, 4) ** 3

TRAPS = {
    "a vector on the right of a weight": ("y = MatMul (w, v)", {"v": [3, 3, 3, 3]}),
    "a stack of weights": ("y = MatMul (x, stack)", {"x": np.ones((4, 4))}),
    "a vector on the right": ("y = MatMul (x, v)", {"v": [3, 3, 3, 3], "x": np.ones((4, 4))}),
    "a negative zero": ("y = Reciprocal (x)", {"x": [[-0.0, 1.0]]}),
    "integers that wrap": (
        """i = Cast <to = 6> (x) n = Constant <value = int32[1] {2147483647}> () a = Add (i, n)
        y = Cast <to = 1> (a)""",
        {"x": [[1.0, 2.0]]},
    ),
    "a square that wraps": (
        "i = Cast <to = 6> (x) a = Mul (i, i) y = Cast <to = 1> (a)",
        {"x": [[50000.0, 50001.0]]},
    ),
    "integers that are truncated": (
        "i = Cast <to = 6> (x) n = Constant <value = int32[1] {2}> () a = Div (i, n) y = Cast <to = 1> (a)",
        {"x": [[7.0, 7.0]]},
    ),
    "a product with its own truth": (
        "b = Cast <to = 9> (x) f = Cast <to = 1> (b) y = Mul (x, f)",
        {"x": [[-3.0, 2.0]]},
    ),
    "less than its own largest integer": (
        """i = Cast <to = 6> (x) m = ReduceMax <axes = [-1]> (i) f = Cast <to = 1> (m) y = Sub (x, f)""",
        {"x": [[1.5, 1.9]]},
    ),
    "arithmetic in float16": ("h = Cast <to = 10> (x) y = Mul (h, h)", {"x": [[300.0, 200.0]]}),
    "what float16 flushes": ("h = Cast <to = 10> (x) y = Cast <to = 1> (h)", {"x": [[1e-9, 3e-9]]}),
    "a square that underflows": ("s = Mul (x, x) y = Reciprocal (s)", {"x": [[1e-30, 1e-30]]}),
    "a norm without an epsilon": (
        f"{ROOT} m = ReduceMean <axes = [-1]> (z) q = Sqrt (m) y = Div (x, q)",
        {"x": SPECIAL},
    ),
    "a norm that is a sum": ("q = ReduceL2 <axes = [-1]> (x) y = Div (x, q)", {"x": SPECIAL}),
    "an epsilon behind the reciprocal": (
        f"""{ROOT} m = ReduceMean <axes = [-1]> (z) a = Add (m, e) q = Sqrt (a) r = Reciprocal (q)
        b = Add (r, one) y = Mul (x, b)""",
        {"x": LARGE},
    ),
    "statistics along another axis": (
        f"{ROOT} m = ReduceMean <axes = [-1], keepdims = 0> (z) a = Add (m, e) q = Sqrt (a) y = Div (x, q)",
        {"x": TALL},
    ),
    "two means": (
        f"""{ROOT} a = ReduceMean <axes = [-1]> (x) b = ReduceMean <axes = [0]> (x) d = Sub (x, a)
        f = Sub (x, b) g = Mul (d, d) m = ReduceMean <axes = [-1]> (g) h = Add (m, tiny) q = Sqrt (h)
        y = Div (f, q)""",
        {"x": [[1, 1, 1, 1], [500, 500, 500, 500]]},
    ),
    "a variance that cancels": (
        f"""{ROOT} a = ReduceMean <axes = [-1]> (x) d = Sub (x, a) m = ReduceMean <axes = [-1]> (z)
        g = Mul (a, a) v = Sub (m, g) h = Add (v, tiny) q = Sqrt (h) y = Div (d, q)""",
        {"x": 1e4 + np.arange(512).reshape(1, 512) * 1e-3},
    ),
    "a normalisation without an epsilon": (
        "y = LayerNormalization <epsilon = 0.0> (x, one4)",
        {"x": SPECIAL},
    ),
    "a weight that is broadcast": ("y = LayerNormalization (x, one1)", {"x": [[1000, 0, 0, 0]]}),
    "a window of padding alone": (
        "y = MaxPool <kernel_shape = [2], dilations = [5], pads = [1, 1]> (p)",
        {"p": np.ones((1, 1, 4))},
    ),
    "rows that become columns, of a rank that is not known": (
        "r = Reshape (x, n) s = Softmax (r) y = Transpose (s)",
        {"x": np.array([[9.0, 0, 0, 0]] * 4), "n": np.array([4, 4])},
    ),
    "a sum along no axis": (
        "y = ReduceSum <noop_with_empty_axes = 1> (x)",
        {"x": [[1.0, 2.0]]},
    ),
    "a norm whose square overflows": ("y = ReduceL2 <axes = [-1]> (x)", {"x": [[1e20, 1e20]]}),
    "the least integer": (
        "i = Cast <to = 7> (x) a = Abs (i) y = Cast <to = 1> (a)",
        {"x": [[-(2.0**63), 3.0]]},
    ),
    "weights that underflow": ("m = MatMul (x, small) y = MatMul (m, huge)", {"x": np.eye(4)}),
}
STORED = """<float[4,4] w = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0},
    float[4] one4 = {1.0, 1.0, 1.0, 1.0}, float[1] one1 = {1.0},
    float[1,4,4] stack = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0},
    float[4,4] small = {1e-23, 1e-23, 1e-23, 1e-23, 1e-23, 1e-23, 1e-23, 1e-23,
        1e-23, 1e-23, 1e-23, 1e-23, 1e-23, 1e-23, 1e-23, 1e-23},
    float[4,4] huge = {1e23, 1e23, 1e23, 1e23, 1e23, 1e23, 1e23, 1e23,
        1e23, 1e23, 1e23, 1e23, 1e23, 1e23, 1e23, 1e23}>"""


@pytest.mark.parametrize(("nodes", "sample"), TRAPS.values(), ids=list(TRAPS))
def test_no_trap_shows_more(nodes, sample):
    """No value of these runs is beyond its bound; each was beyond that of a rule for real numbers."""
    feeds = {
        name: np.asarray(array, np.int64 if name == "n" else np.float32) for name, array in sample.items()
    }
    inputs = ", ".join(_declared(name, array) for name, array in feeds.items())
    made = model(f"g ({inputs}) => (int64[r] size) {STORED} {{ {nodes} size = Shape (y) }}")
    try:
        found = list(broken(made, feeds))
    except AmpRewriteError as error:
        pytest.skip(f"does not run here: {error}")
    assert found == []


def _declared(name, array):
    if name == "n":
        return "int64[K] n"
    return f"float[{','.join(map(str, array.shape))}] {name}"


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
