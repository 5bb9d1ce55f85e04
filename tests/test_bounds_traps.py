"""Bounds hold where arithmetic is not that of real numbers: it rounds, wraps, repeats, has two zeros."""

import re

import numpy as np
import pytest

from amp_rewrite import pipeline
from amp_rewrite.bounds.intervals import UNKNOWN
from amp_rewrite.options import Options
from tests import commands
from tests.bounds import bounds, broken, of
from tests.text import model, stored, unchecked

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
