"""The rule `lead`: what is made of stored values alone goes half on its way to what is half."""

from amp_rewrite import analyze
from amp_rewrite.colouring.painting import Rule
from amp_rewrite.policy.options import Options
from tests.text import in_half, model

EMBEDDING = """g (int64[2] ids, int64[2] at) => (float[2,4] y)
    <float[9,4] table, float[9,4] places, float[4] s, float[4,4] w> {
        a = Gather (table, ids) b = Gather (places, at) c = Add (a, b)
        n = LayerNormalization (c, s) y = MatMul (n, w) }"""


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
