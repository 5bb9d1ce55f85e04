"""Outputs whose type is given by an attribute of the node."""

from functools import partial

import pytest

from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Options, Pins
from tests.text import becomes

ANY_TARGET = Options(target=targets.ANY)

TYPED = {
    # The type of ConstantOfShape is that of its value, by default a float32 zero.
    "fills take the colour of their readers": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            s = Shape (x)
            a = ConstantOfShape <value = float[1] {2.5}> (s)
            b = ConstantOfShape (s)
            c = ConstantOfShape (s)
            z = Exp (c)
            m = MatMul (x, w)
            n = Add (m, a)
            y = Add (n, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            s = Shape (x)
            a = ConstantOfShape <value = float16[1] {16640}> (s)
            b = ConstantOfShape <value = float16[1] {0}> (s)
            c = ConstantOfShape (s)
            z = Exp (c)
            m = MatMul (x__float16, w)
            n = Add (m, a)
            y__float16 = Add (n, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # EyeLike gets the new type, whether it named the old one or took it from its input.
    "eye like has the type of its input": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            a = EyeLike (m)
            b = EyeLike <dtype = 1> (m)
            c = Add (m, a)
            y = Add (c, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            a = EyeLike (m)
            b = EyeLike (m)
            c = Add (m, a)
            y__float16 = Add (c, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        ANY_TARGET,
        runs=False,  # no half kernel on the CPU
    ),
    # An EyeLike with half input and float32 output names float32 explicitly.
    "what follows its input says float32 when that becomes half": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            y = MatMul (x, w)
            [eye] a = EyeLike (y)
            z = Exp (a)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
            [eye] a = EyeLike <dtype = 1> (y__float16)
            z = Exp (a)
        }""",
        ANY_TARGET,
        runs=False,
    ),
    # RandomNormalLike has its input's type: it stays float32, so that it draws the same values.
    "random draws stay": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            r = RandomNormalLike (m)
            y = MatMul (r, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            r = RandomNormalLike (m__float32)
            [r__float16] r__float16 = Cast <to = 10> (r)
            y__float16 = MatMul (r__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        runs=False,  # two draws differ
    ),
    # A Cast with only half consumers casts to half; one that defines an output of the model does not.
    "a cast from bool gives half": partial(
        becomes,
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] b) <float[4,4] w> {
            a = Cast <to = 1> (k)
            b = Cast <to = 1> (k)
            m = MatMul (x, w)
            n = Mul (m, a)
            y = Mul (n, b)
        }""",
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] b) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Cast <to = 10> (k)
            b = Cast <to = 1> (k)
            [b__float16] b__float16 = Cast <to = 10> (b)
            m = MatMul (x__float16, w)
            n = Mul (m, a)
            y__float16 = Mul (n, b__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(pins=Pins(force_half="y")),
    ),
    # A Cast that also has float32 consumers keeps its type; its half consumers get another Cast.
    "a cast with readers of both colours stays": partial(
        becomes,
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            a = Cast <to = 1> (k)
            m = MatMul (x, w)
            y = Mul (m, a)
            z = Exp (a)
        }""",
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Cast <to = 1> (k)
            [a__float16] a__float16 = Cast <to = 10> (a)
            m = MatMul (x__float16, w)
            y__float16 = Mul (m, a__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (a)
        }""",
        Options(pins=Pins(force_half="y")),
    ),
}


@pytest.mark.parametrize("holds", TYPED.values(), ids=TYPED)
def test_an_attribute_names_the_new_type(holds):
    """An attribute that gives the type of an output gives the new one."""
    holds()
