"""The rule `lead`: what is made of stored values alone goes half on its way to what is half."""

import pytest

from amp_rewrite import analyze
from amp_rewrite.colouring.painting import Rule
from amp_rewrite.policy.options import Options
from tests.text import becomes, in_half, model

EMBEDDING = """g (int64[2] ids, int64[2] at) => (float[2,4] y)
    <float[9,4] table, float[9,4] places, float[4] s, float[4,4] w> {
        a = Gather (table, ids) b = Gather (places, at) c = Add (a, b)
        n = LayerNormalization (c, s) y = MatMul (n, w) }"""


def test_an_embedding_is_half_with_its_tables():
    """Rows that are picked, added and normalised are half, and so is what is stored."""
    becomes(
        EMBEDDING,
        """g (int64[2] ids, int64[2] at) => (float[2,4] y)
        <float16[9,4] table, float16[9,4] places, float16[4] s, float16[4,4] w> {
            a = Gather (table, ids)
            b = Gather (places, at)
            c = Add (a, b)
            n = LayerNormalization (c, s)
            y__float16 = MatMul (n, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_each_says_whom_it_leads_to():
    """The chain of causes goes on to the product."""
    found = analyze(model(EMBEDDING))
    names = [unit.node.op_type for unit in found.graph.units]
    unit = names.index("Add")
    assert found.painting.paints[unit].rule is Rule.LEAD
    assert [names[cause] for cause in found.decisions().why(unit)] == ["Add", "LayerNormalization", "MatMul"]


def test_without_follow_nothing_leads():
    """The rule is one of ours, as `follow` is: without both, the colours are Grappler's."""
    assert {"a", "c", "n"}.isdisjoint(in_half(EMBEDDING, Options(follow=False)))


STAYS = {
    "what enters the model": "float[2,4] x) => (float[2,4] y) <float[4] s, float[4,4] w> { c = Mul (x, s)",
    "what is the same in every run": """float[4,4] x) => (float[4,4] y) <float[4,4] s, float[4,4] t> {
        c = Add (s, t) w = Identity (x)""",
    "what is denied, and what that feeds": """int64[2] ids) => (float[2,4] y) <float[9,4] s, float[4,4] w> {
        a = Gather (s, ids) e = Exp (a) c = Add (e, e)""",
    "what is not marked to follow": """int64[2] ids) => (float[2,4] y) <float[9,4] s, float[4,4] w> {
        a = Gather (s, ids) c = Sqrt (a)""",
    "what comes from a node that stays": """int64[2] ids) => (float[2,4] y) <float[9,4] s, float[4,4] w> {
        a = Gather (s, ids) m = Sinh (a) c = Add (m, m)""",
}


@pytest.mark.parametrize("case", STAYS)
def test_other_values_do_not_lead(case):
    """Their range is not known from what is stored, or float32 costs nothing there."""
    found = in_half(f"g ({STAYS[case]} y = MatMul (c, w) }}")
    assert "y" in found
    assert "c" not in found
