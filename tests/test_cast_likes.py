"""CastLike: a Cast wherever the type of what it follows is known, and a constant behind it is seen as one."""

from __future__ import annotations

import pytest

from amp_rewrite import certify, restore, rewrite
from amp_rewrite.policy.options import Options
from tests import text

GRAPH = """<ir_version: 9, opset_import: ["": 19, "my": 1]>
g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w> { %s }"""
CALLS = GRAPH % "n = my.norm (x) h = MatMul (n, w) y = my.gelu (h)"
NORM = """<domain: "my", opset_import: ["": 19]> norm (a) => (o) {
    axes = Constant <value_ints = [-1]> ()
    mean = ReduceMean (a, axes) centred = Sub (a, mean) squared = Mul (centred, centred)
    variance = ReduceMean (squared, axes)
    little = Constant <value_float = 1e-5> () epsilon = CastLike (little, a)
    more = Add (variance, epsilon) root = Sqrt (more) o = Div (centred, root) }"""
GELU = """<domain: "my", opset_import: ["": 19]> gelu (a) => (o) {
    root = Constant <value_float = 1.4142135> () r = CastLike (root, a) d = Div (a, r) e = Erf (d)
    whole = Constant <value_int = 1> () one = CastLike (whole, a) s = Add (e, one) p = Mul (a, s)
    part = Constant <value_float = 0.5> () half = CastLike (part, a) o = Mul (p, half) }"""


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_functions_keep_their_idioms(half):
    """Of a norm and a GELU as onnxscript writes them, each is one decision: two Casts at the edges of what is
    half, and the one of the integer that CastLike made a float.
    """
    proto = text.model(CALLS + NORM + GELU)
    made = text.rewritten(proto, Options(half=half)).model
    operators = [node.op_type for node in made.graph.node]
    assert "CastLike" not in operators
    assert operators.count("Cast") == 3
    if half == "float16":  # the CPU provider multiplies no bfloat16
        text.agree(proto, made)


def test_a_plain_constant_gives_the_same():
    """Whether a constant stands behind a CastLike to the type that it has decides nothing."""
    liked = GRAPH % "h = MatMul (x, w) c = Constant <value_float = 2.5> () l = CastLike (c, h) y = Mul (h, l)"
    plain = liked.replace("l = CastLike (c, h)", "").replace("(h, l)", "(h, c)")
    assert text.nodes(text.rewritten(text.model(liked)).model) == text.nodes(
        text.rewritten(text.model(plain)).model
    )


def test_an_output_stays():
    """A CastLike that makes an output of the model becomes a Cast of the same name."""
    made = text.rewritten(text.model(GRAPH % "h = MatMul (x, w) y = CastLike (x, h)")).model
    assert "y = Cast(x)" in text.nodes(made)


def test_an_unknown_type_is_followed_in_the_runtime():
    """Where nothing tells the type, the CastLike stays."""
    made = text.rewritten(text.model(GRAPH % "v = my.A (x) l = CastLike (x, v) y = my.B (l)")).model
    assert "l = CastLike(x, v)" in text.nodes(made)


LIKE = """<ir_version: 9, opset_import: ["": 19, "other": 1]>
g (float[2] x, int64[2] i, uint8[2] u) => (float[2] y) { %s }"""
FOLLOWED = LIKE % "l = CastLike (i, x) y = Add (l, x)"
INTO = LIKE % "n = CastLike (x, i) y = CastLike (n, x)"
UNKNOWN = LIKE % "v = other.A (x) l = CastLike (x, v) y = other.B (l)"


def proved(original, result):
    """Whether the certificate proves one text to be the other."""
    return certify(text.unchecked(original), text.unchecked(result)).proved


@pytest.mark.parametrize(
    ("original", "result"),
    [
        (FOLLOWED, LIKE % "l = Cast <to = 1> (i) y = Add (l, x)"),
        (FOLLOWED, LIKE % "h = Cast <to = 10> (x) l = CastLike (i, h) w = Cast <to = 1> (l) y = Add (w, x)"),
        (INTO, LIKE % "n = Cast <to = 7> (x) y = Cast <to = 1> (n)"),
        (LIKE % "c = CastLike (x, x) y = Neg (c)", LIKE % "y = Neg (x)"),
    ],
)
def test_a_cast_to_the_same_kind_is_proved(original, result):
    """A CastLike is the Cast to the kind of what it follows; between floats it changes precision alone."""
    assert proved(original, result)


@pytest.mark.parametrize(
    ("original", "result"),
    [
        (INTO, LIKE % "y = CastLike (x, x)"),
        (INTO, LIKE % "n = CastLike (x, u) y = CastLike (n, x)"),
        (INTO, LIKE % "n = Cast <to = 6> (x) y = Cast <to = 1> (n)"),
        (UNKNOWN, LIKE % "v = other.A (x) y = other.B (x)"),
        (UNKNOWN, LIKE % "v = other.A (x) l = Cast <to = 1> (x) y = other.B (l)"),
    ],
)
def test_another_kind_is_not(original, result):
    """Integers of another width, none at all, and a kind that only a foreign operator knows."""
    assert not proved(original, result)


def test_a_widened_model_has_none():
    """The way back takes Casts for what they are, in whatever form they came."""
    proto = text.model(CALLS + NORM + GELU)
    back = restore(rewrite(proto).model).model
    assert certify(proto, back).proved
