"""What is proven of values: each rule in numbers, and a law: no run shows anything beyond its bound."""

import math

import pytest
from hypothesis import given

from amp_rewrite.bounds.transfer import TRANSFERS
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.onnx_types import schema
from amp_rewrite.running.inputs import feeds
from tests import random_models
from tests.bounds import SHARED, broken, of
from tests.test_laws import LAW
from tests.text import model

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
