"""Half for the nodes that are named, and for those between them, alone."""

import pytest

from amp_rewrite import Options, Pins, analyze, rewrite
from tests import text

MODEL = """g (float[64,64] x) => (float[64,64] y) <float[64,64] w, float[64,64] v> {
    [first] a = MatMul(x, w)
    [bias] b = Add(a, v)
    [turn] t = Transpose(b)
    [exp] e = Exp(t)
    [second] c = MatMul(b, w)
    [sum] s = Add(c, e)
    [third] d = MatMul(s, w)
    [last] f = Relu(d)
    [end] y = Tanh(f)
}"""

ROWS = [
    (Pins(only="first"), {"first"}),
    (Pins(only=["first", "second"]), {"first", "bias", "second"}),
    (Pins(only="first|third"), {"first", "third"}),  # the second product is between them, and not named
    (Pins(only=["first", "last"]), {"first", "last"}),
    (Pins(only="bias"), {"bias"}),  # though it does not pay
    (Pins(only=["first", "exp"]), {"first"}),  # denied: values may leave half's range
    (Pins(only="first", force_half="exp"), {"first", "bias", "turn", "exp"}),
    (Pins(only=["first", "second"], keep_full="bias"), {"first", "second"}),
    (Pins(only_op="MatMul"), {"first", "bias", "second", "sum", "third"} - {"sum"}),
    (Pins(only_op="Add", only="third"), {"bias", "sum", "third"}),
    (Pins(only=".*"), {"first", "bias", "turn", "second", "sum", "third", "last", "end"}),
]


def halves(model, pins, **options):
    """The names of the nodes in half."""
    analysis = analyze(text.model(model), Options(pins=pins, **options))
    units = analysis.graph.units
    return {unit.node.name for unit in units if analysis.painting.is_half(unit.index)}


@pytest.mark.parametrize(("pins", "expected"), ROWS)
def test_half_is_for_what_is_named(pins, expected):
    """Nothing follows, leads or spreads from it; denials hold, and so do pins."""
    assert halves(MODEL, pins) == expected


def test_the_result_has_no_other_half_node():
    """The report counts what was named; explain says of another node that it was not, and by which flag."""
    result = rewrite(text.model(MODEL), Options(pins=Pins(only="first|second")))
    assert (result.report.nodes.half, result.report.ok) == (3, True)
    analysis = analyze(text.model(MODEL), Options(pins=Pins(only="first|second")))
    (cause,) = [cause for cause in analysis.causes() if "third" in str(cause.root_places)]
    assert cause.to_json()["reason"] == "not named by 'first|second'"
    assert cause.suggestion.dropped_flags == ("--only 'first|second'",)


LOOP = """g (float[64,64] x, int64 n, bool c) => (float[64,64] y) <float[64,64] w> {
    [loop] y = Loop(n, c, x) <body = b (int64 i, bool k, float[64,64] p) => (bool l, float[64,64] q) {
        l = Identity(k)
        [inner] q = MatMul(p, w)
    }>
}"""


@pytest.mark.parametrize("pins", [Pins(only="loop"), Pins(only="inner"), Pins(only_op="MatMul")])
def test_a_node_is_named_with_what_is_inside(pins):
    """As pins name it."""
    assert "inner" in halves(LOOP, pins)
