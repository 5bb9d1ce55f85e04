"""Operators with more than one type variable, with a fixed type, or with no schema at all."""

from functools import partial

import pytest

from amp_rewrite.policy.options import Options, Pins
from tests.text import becomes, model, nodes, rewritten

OPERATORS = {
    # LayerNormalization in half: X, Scale, B and Y change, Mean and InvStdDev stay float32.
    "layer normalization keeps its statistics": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y, float[4,1] mean, float[4,1] dev)
        <float[4,4] w, float[4] s, float[4] b> {
            m = MatMul (x, w)
            y, mean, dev = LayerNormalization (m, s, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,1] mean, float[4,1] dev)
        <float16[4,4] w, float16[4] s, float16[4] b> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            y__float16, mean, dev = LayerNormalization (m, s, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=5e-2,
    ),
    # Resize in half: X and Y change; the scales are float32 in its schema, and the missing roi stays missing.
    "resize keeps its scales": partial(
        becomes,
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y)
        <float[1,1,1,1] w, float[4] s = {1, 1, 2, 2}> {
            m = Conv (x, w)
            y = Resize <mode = "linear"> (m, , s)
        }""",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s, float16[1,1,1,1] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = Conv (x__float16, w)
            y__float16 = Resize <mode = "linear"> (m, "", s)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(pins=Pins(force_half="y")),
    ),
    # T, T1 and T2 have the same type for the default target, whose kernel has one type.
    "batch normalization stays in one piece": partial(
        becomes,
        """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
        <float[4,4,1,1] w, float[4] s, float[4] b, float[4] m, float[4] v> {
            c = Conv (x, w)
            y = BatchNormalization (c, s, b, m, v)
        }""",
        """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
        <float16[4,4,1,1] w, float16[4] s, float16[4] b, float16[4] m, float16[4] v> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            c = Conv (x__float16, w)
            y__float16 = BatchNormalization (c, s, b, m, v)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(fold=False),
    ),
    # Omitted inputs of Clip and LSTM stay omitted; ratio is T1.
    "empty optional inputs stay empty": partial(
        becomes,
        """g (float[3,1,4] x) => (float[3,1,1,2] y, float[1,1,2] h)
        <float[1,8,4] w, float[1,8,2] r, float[1,1,2] h0, float hi, float ratio> {
            a, b = LSTM <hidden_size = 2> (x, w, r, , , h0)
            c = Clip (a, , hi)
            y, k = Dropout (c, ratio)
            h = Clip (b)
        }""",
        """g (float[3,1,4] x) => (float[3,1,1,2] y, float[1,1,2] h)
        <float16[1,8,4] w, float16[1,8,2] r, float16[1,1,2] h0, float16 hi, float ratio> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a, b = LSTM <hidden_size = 2> (x__float16, w, r, "", "", h0)
            c = Clip (a, "", hi)
            y__float16, k = Dropout (c, ratio)
            [y__float32] y = Cast <to = 1> (y__float16)
            h__float16 = Clip (b)
            [h__float32] h = Cast <to = 1> (h__float16)
        }""",
    ),
    # An operator of onnxruntime's own domain is coloured by onnxruntime's schema.
    "onnxruntime operators are known": partial(
        becomes,
        """g (float[1,4,4] x) => (float[1,4,4] y) <float[4,4] w, float[4] s, float[4] b> {
            m = MatMul (x, w)
            n = com.microsoft.SkipLayerNormalization (x, m, s, b)
            y = MatMul (n, w)
        }""",
        """g (float[1,4,4] x) => (float[1,4,4] y) <float16[4,4] w, float16[4] s, float16[4] b> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            n = com.microsoft.SkipLayerNormalization (x__float16, m, s, b)
            y__float16 = MatMul (n, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # The inputs and outputs of an operator of an unknown domain stay float32.
    "unknown operators keep their types": partial(
        becomes,
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            c = my.Thing (m, w)
            y = MatMul (c, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float16[4,4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w__float16)
            [m__float32] m__float32 = Cast <to = 1> (m)
            c = my.Thing (m__float32, w)
            [c__float16] c__float16 = Cast <to = 10> (c)
            y__float16 = MatMul (c__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        runs=False,
    ),
    # NonMaxSuppression has no half: its boxes are cast back to float32.
    "an operator that is float32 in its schema": partial(
        becomes,
        """g (float[1,4,4] x, float[1,1,4] s) => (int64[n,3] y) <float[4,4] w, int64 k, float[1] t> {
            m = MatMul (x, w)
            y = NonMaxSuppression (m, s, k, t)
        }""",
        """g (float[1,4,4] x, float[1,1,4] s) => (int64[n,3] y)
        <float16[4,4] w, int64 k, float[1] t> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            y = NonMaxSuppression (m__float32, s, k, t)
        }""",
    ),
}


@pytest.mark.parametrize("holds", OPERATORS.values(), ids=OPERATORS)
def test_each_variable_has_its_own_type(holds):
    """Ports that share a type variable change together, and only if the schema allows half."""
    holds()


def test_pow_has_two_types():
    """Pow is denied and stays, unless it is forced: then base and exponent are independent."""
    text = """g (float[4,4] x, int64[4] n) => (float[4,4] y) <float[4,4] w, float e = {1.1}> {
        m = MatMul (x, w)
        [p] p = Pow (m, n)
        [q] y = Pow (p, e)
    }"""
    becomes(
        text,
        """g (float[4,4] x, int64[4] n) => (float[4,4] y) <float e, float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            [p] p = Pow (m__float32, n)
            [q] y = Pow (p, e)
        }""",
    )
    becomes(
        text,
        """g (float[4,4] x, int64[4] n) => (float[4,4] y) <float16 e, float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [p] p = Pow (m, n)
            [q] y__float16 = Pow (p, e)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(pins=Pins(force_half=("p", "q"))),
    )


def test_what_unknown_operators_give_is_not_guessed():
    """A product of two values of unknown type stays as it is, since its operands cannot be cast."""
    result = rewritten(
        model(
            """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
                a = my.Thing (x)
                b = my.Thing (x)
                m = MatMul (a, b)
                y = MatMul (m, w)
            }"""
        )
    )
    assert nodes(result.model)[2:4] == ["m = MatMul(a, b)", "m__float16 = Cast(m)"]
