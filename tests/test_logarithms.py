"""Logarithms of sigmoids, softmaxes and tanhs: logsigmoid, log-probabilities, squashed actions."""

import numpy as np
import pytest

from amp_rewrite import analyze, verify
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests import text

NETWORK = """g (float[4, 64] x) => (float[4, 64] y)
    <float[64, 64] w, float[64, 64] v, int64[2] square = {{4, 64}}, float one = {{1}}, float low = {{0.0001}},
    float tiny = {{0.0000001}}, float high = {{1}}, float two = {{2}}> {{
    [first] h = MatMul (x, w) {way} [scale] z = Mul (h, l) [second] y = MatMul (z, v) }}"""
WAYS = {
    "logsigmoid": "[core] p = Sigmoid (h) [log] l = Log (p)",
    "log-probabilities": "[core] p = Softmax (h) [log] l = Log (p)",
    "of the rest": "[core] p = Sigmoid (h) [rest] q = Sub (one, p) [log] l = Log (q)",
    "bounded": "[core] p = Softmax (h) [bound] q = Clip (p, low, high) [log] l = Log (q)",
    "moved": """[core] p = Sigmoid (h) [moved] q = Reshape (p, square) [added] r = Add (q, low)
        [log] l = Log (r)""",
    "squashed": """[core] p = Tanh (h) [squared] q = Mul (p, p) [rest] r = Sub (one, q)
        [added] s = Add (r, low) [log] l = Log (s)""",
    "squashed by a power": """[core] p = Tanh (h) [squared] q = Pow (p, two) [rest] r = Sub (one, q)
        [log] l = Log (r)""",
    "a normal probability": """[core] p = Erf (h) [added] q = Add (p, one) [scaled] r = Div (q, two)
        [log] l = Log (r)""",
    "two scores": """[core] p = Sigmoid (h) [other] q = Softmax (h)
        [product] r = Mul (p, q) [log] l = Log (r)""",
    "a bin": """[core] p = Sigmoid (h) [added] k = Add (h, low) [other] q = Sigmoid (k) [rest] r = Sub (q, p)
        [bound] s = Max (r, tiny) [log] l = Log (s)""",
    "entropy": "[core] p = Softmax (h) [log] k = Log (p) [between] l = Mul (p, k)",
}
OTHERS = {
    "of a Relu": "p = Relu (h) q = Add (two, p) l = Log (q)",
    "of a product with a Relu": "p = Sigmoid (h) q = Relu (h) r = Mul (p, q) l = Log (r)",
    "of a sum of two": "p = Sigmoid (h) q = Relu (h) r = Add (p, q) l = Log (r)",
}


_PARTS = set("core other rest squared bound moved added scaled product log between".split())


def full(way: str, options: Options | None = None) -> set[str | None]:
    """The names of the nodes that stay float32."""
    found = analyze(text.model(NETWORK.format(way=WAYS[way])), options)
    return {u.node.name for u in found.graph.units if not found.painting.is_half(u.index)}


@pytest.mark.parametrize("half", [None, Options(half=BFLOAT16)])
@pytest.mark.parametrize("way", WAYS)
def test_only_what_leads_to_the_logarithm_is_float32(way: str, half: Options | None):
    """From what saturates up to the logarithm all is float32, and what stands between its results; the nodes
    behind are half again."""
    assert full(way, half) == _PARTS & {word.strip("[]") for word in WAYS[way].split()}


@pytest.mark.parametrize("way", OTHERS)
def test_other_logarithms_are_as_their_list_says(way: str):
    """A logarithm of anything else is half between products."""
    model = text.model(NETWORK.format(way=OTHERS[way]))
    found = analyze(model)
    assert not found.graph.spelled
    assert all(found.painting.is_half(unit.index) for unit in found.graph.units)


@pytest.mark.skipif(not text.RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize(
    ("way", "to"),
    [
        ("log-probabilities", 11),
        ("of the rest", 11),
        ("squashed", 11),
        ("a normal probability", 3.5),
        ("two scores", 9),
    ],
)
def test_a_logarithm_that_half_makes_infinite_is_close(way: str, to: float):
    """Probabilities of 1e-9, and a rest of 1e-5, have finite logarithms in the result as in the original."""
    weights = {"w": np.eye(64, dtype=np.float32), "v": np.eye(64, dtype=np.float32)}
    model = text.model(NETWORK.format(way=WAYS[way]), weights)
    feeds = {"x": np.linspace(-to, to, 256, dtype=np.float32).reshape(64, 4).T.copy()}
    verdict = verify(model, text.rewritten(model).model, feeds, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3


def test_a_logarithm_of_what_another_graph_makes_is_left():
    """A sigmoid outside of a body is not followed: the two may run at different times."""
    model = text.model("""g (float[4, 4] x, bool c) => (float[4, 4] y) <float[4, 4] w> {
        h = MatMul (x, w) p = Sigmoid (h)
        y = If (c) <then_branch = a () => (float[4, 4] l) { l = Log (p) },
            else_branch = b () => (float[4, 4] m) { m = Identity (p) }> }""")
    assert not analyze(model).graph.spelled


def test_ways_that_meet_again_are_one():
    """A node that reads a value over and over has one way to it: these would be 40 to the power of 5."""
    chosen = "\n".join(f"m{at + 1} = Max ({', '.join([f'm{at}'] * 40)})" for at in range(5))
    model = text.model(f"""g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> {{
        h = MatMul (x, w) m0 = Sigmoid (h)
        {chosen}
        l = Log (m5) y = MatMul (l, w) }}""")
    assert len(analyze(model).graph.spelled) == 7
