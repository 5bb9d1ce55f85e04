"""Casts that do nothing go, also those that a rewrite of a model that is half in part leaves; others stay."""

from functools import partial

import numpy as np
import pytest

from tests.text import agree, becomes, in_half, model, nodes, rewritten

CHAINS = {
    # float32 -> float16 -> float32 rounds, and somebody may have meant that.
    "float32 to half and back stays": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] z, float[4,4] y) <float[4,4] w> {
            h = Cast <to = 10> (x)
            f = Cast <to = 1> (h)
            z = Exp (f)
            y = MatMul (x, w)
        }""",
        """g (float[4,4] x) => (float[4,4] z, float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            h = Cast <to = 10> (x)
            f = Cast <to = 1> (h)
            z = Exp (f)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # Where half meets a part that is half already, the Casts between them go.
    "a model that is partly half joins up": partial(
        becomes,
        """g (float16[4,4] h) => (float16[4,4] z) <float[4,4] w, float16[4,4] v> {
            f = Cast <to = 1> (h)
            m = MatMul (f, w)
            b = Cast <to = 10> (m)
            z = MatMul (b, v)
        }""",
        """g (float16[4,4] h) => (float16[4,4] z) <float16[4,4] w, float16[4,4] v> {
            m = MatMul (h, w)
            z = MatMul (m, v)
        }""",
    ),
}


@pytest.mark.parametrize("holds", CHAINS.values(), ids=CHAINS)
def test_a_chain_of_casts(holds):
    """Casts to half and back stay; one from half to half goes."""
    holds()


def test_an_output_of_the_model_keeps_its_cast():
    """The Cast that gives an output of the model stays: the output must have its name."""
    text = """g (float16[4,4] h, float[4,4] x) => (float16[4,4] z, float[4,4] y) <float[4,4] w> {
        f = Cast <to = 1> (h)
        z = Cast <to = 10> (f)
        y = MatMul (x, w)
    }"""
    proto = model(text)
    result = rewritten(proto)
    assert nodes(result.model)[1:3] == ["f = Cast(h)", "z = Cast(f)"]
    agree(proto, result.model)


BRANCHES = """g (float16[4,4] h, bool c, float[4,4] x) => (float16[4,4] z, float[4,4] y) <float[4,4] w> {
    y = MatMul (x, w)
    z = If (c) <
        then_branch = t () => (float16[4,4] b) { f = Cast <to = 1> (INNER) b = Cast <to = 10> (f) },
        else_branch = e () => (float16[4,4] o) { n = Relu (h) o = Neg (n) }
    >
}"""


@pytest.mark.parametrize("outer", ["h", "m"])
def test_a_branch_does_not_give_what_is_made_outside(outer):
    """A branch gives only what it makes: a Cast of an outer value stays where it gives the result."""
    proto = model(BRANCHES.replace("INNER", outer).replace("    y =", "    m = Neg (h)\n    y ="))
    result = rewritten(proto)
    assert "b = Cast(f)" in nodes(result.model)
    agree(proto, result.model)


def test_a_branch_gives_nothing_twice():
    """A value that is an output of the branch already does not become a second one."""
    text = BRANCHES.replace("z = If", "z, u = If").replace(
        "float16[4,4] z,", "float16[4,4] z, float16[4,4] u,"
    )
    text = text.replace("(float16[4,4] b) { f =", "(float16[4,4] r, float16[4,4] b) { r = Relu (h) f =")
    text = text.replace("(float16[4,4] o) {", "(float16[4,4] n, float16[4,4] o) {").replace("INNER", "r")
    proto = model(text)
    result = rewritten(proto)
    assert "b = Cast(f)" in nodes(result.model)
    agree(proto, result.model)


@pytest.mark.parametrize("to", [10, 1])
def test_a_cast_to_the_type_that_a_value_has(to):
    """A Cast that changes no type goes, whether of half or of float32."""
    kind, dtype = {10: ("float16", np.float16), 1: ("float", np.float32)}[to]
    text = f"""g ({kind}[4,4] h, float[4,4] x) => ({kind}[4,4] z, float[4,4] y) <float[4,4] w> {{
        b = Cast <to = {to}> (h)
        z = {"Relu" if dtype == np.float16 else "Exp"} (b)
        y = MatMul (x, w)
    }}"""
    proto = model(text)
    result = rewritten(proto)
    assert "b = Cast(h)" not in nodes(result.model)
    agree(proto, result.model)


def test_what_the_rewrite_joins_needs_no_tidying():
    """Between two nodes that are both half there never was a Cast, so that none is removed."""
    result = rewritten(
        model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { m = MatMul (x, w) y = MatMul (m, w) }")
    )
    assert (result.report.casts_added, result.report.casts_removed) == (2, 0)


def test_a_cast_from_float32_to_float32_is_no_wall():
    """What exporters leave of `.to(float32)` goes, and half goes on behind it; one for an output stays."""
    text = """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
        a = MatMul (x, w) b = Cast <to = 1> (a) c = Sigmoid (b) y = MatMul (c, w) z = Cast <to = 1> (x) }"""
    assert in_half(text) == {"a", "c", "y"}
    made = rewritten(model(text)).model
    assert [node.op_type for node in made.graph.node].count("Cast") == 3
    agree(model(text), made)


def test_a_row_of_casts_that_do_nothing_goes():
    """Whatever stands behind them reads what the first of them read."""
    becomes(
        """g (float[2,4] x, float[4,4] w) => (float[2,4] y) {
            a = Cast <to = 1> (x) b = Cast <to = 1> (a) c = Cast <to = 1> (b)
            y = MatMul (c, w) }""",
        """g (float[2,4] x, float[4,4] w) => (float[2,4] y) {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float16] w__float16 = Cast <to = 10> (w)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16) }""",
    )
