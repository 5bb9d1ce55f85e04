"""The rule `lead`: whom it leads to; `weight_derived.cases` has what it paints."""

from amp_rewrite import analyze
from amp_rewrite.colouring.painting import Rule
from tests.text import model


def test_each_says_whom_it_leads_to():
    """The chain of causes goes on to the product."""
    found = analyze(
        model(
            """g (int64[2] ids) => (float[2,4] y) <float[9,4] table, float[4] b, float[4] s, float[4,4] w> {
            a = Gather (table, ids) c = Add (a, b) n = LayerNormalization (c, s) y = MatMul (n, w) }"""
        )
    )
    names = [unit.node.op_type for unit in found.graph.units]
    unit = names.index("Add")
    assert found.painting.paints[unit].rule is Rule.LEAD
    assert [names[cause] for cause in found.decisions().why(unit)] == ["Add", "LayerNormalization", "MatMul"]
