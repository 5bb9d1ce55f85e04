"""Half for the nodes that are named: by operator, in a body, in words; `deciding.cases` has the rest."""

import pytest

from amp_rewrite import Options, Pins, analyze
from tests import text

MODEL = """g (float[64,64] x, int64 n, bool k) => (float[64,64] y) <float[64,64] w, float[64,64] v> {
    [first] a = MatMul (x, w) [bias] b = Add (a, v) [second] c = MatMul (b, w) [sum] d = Add (c, v)
    [third] e = MatMul (d, w) [last] f = Relu (e)
    [loop] y = Loop (n, k, f) <body = b (int64 i, bool m, float[64,64] p) => (bool l, float[64,64] q) {
        l = Identity (m) [inner] q = MatMul (p, w) }> }"""


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        (Pins(only_op="Relu"), "last"),
        (Pins(only_op="Add", only="third"), "bias sum third"),
        (Pins(only="loop"), "loop inner"),
        (Pins(only="inner"), "loop inner"),
        (Pins(only_op="MatMul", only="loop"), "first bias second sum third last loop inner"),
    ],
)
def test_half_is_for_what_is_named(pins, named):
    """With what is inside, and what is between."""
    analysis = analyze(text.model(MODEL), Options(pins=pins))
    units = [unit for unit in analysis.graph.units if analysis.painting.is_half(unit.index)]
    assert {unit.node.name for unit in units} == set(named.split())


def test_explain_names_the_flag():
    """Of a node that was not named, and without a name of it."""
    analysis = analyze(text.model(MODEL), Options(pins=Pins(only="first|second")))
    (cause,) = [cause for cause in analysis.causes() if "third" in str(cause.root_places)]
    assert cause.to_json()["reason"] == "not named by 'first|second'"
    assert cause.suggestion.dropped_flags == ("--only 'first|second'",)
