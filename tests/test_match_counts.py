"""How many nodes match what the user names is said, and what matches none never passes silently."""

import amp_rewrite
from amp_rewrite.colouring.match_counts import Matched
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Options, Pins
from tests import text

BODY = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[4, 4] x, bool k) => (float[4, 4] y) {
    [first] a = MatMul (x, x)
    [second] b = Mul (a, a)
    [choice] y = If (k) <
        then_branch = t () => (float[4, 4] p) { [third] p = Mul (b, x) },
        else_branch = e () => (float[4, 4] q) { [fourth] q = com.acme.Norm (b) }
    >
}"""


def matched(pins=None, **asked):
    """What is counted for pins and lists."""
    chosen = operator_lists.load("default")
    for kind, operators in asked.items():
        chosen = chosen.override(Kind(kind), operators)
    options = Options(lists=chosen, pins=pins or Pins())
    return amp_rewrite.rewrite(text.unchecked(BODY), options).report.matched


def test_pins_say_how_many_nodes_they_name():
    """The nodes that a pattern names, not those that stand in their bodies."""
    assert matched(Pins(keep_full=("f.*", "choice"), force_half=("second",))) == (
        Matched("keep_full", "f.*", 2),
        Matched("keep_full", "choice", 1),
        Matched("force_half", "second", 1),
    )


UNKNOWN = (
    "the operator, or a part of it, is unknown here (schema); "
    "if its kernels take float16, --op-type com.acme:Norm=float16 says so"
)


def test_operators_say_how_many_nodes_they_are():
    """In bodies too, squares and what has no list included."""
    assert matched(deny=["Mul", "MatMul"], infer=["com.acme:Norm"]) == (
        Matched("deny", "MatMul", 1),
        Matched("deny", "Mul", 2),
        Matched("infer", "com.acme:Norm", 1, why=UNKNOWN),
    )
    assert matched(deny=["Mul(x,x)"]) == (Matched("deny", "Mul(x,x)", 1),)


def test_what_is_like_nothing_names_what_is_near():
    """An operator that the model lacks: what it has that is called nearly so."""
    assert matched(allow=["com.acme:Nrom"]) == (Matched("allow", "com.acme:Nrom", 0, ("com.acme:Norm",)),)
    assert matched(allow=["Gelu"]) == (Matched("allow", "Gelu", 0),)


def test_what_a_list_holds_is_not_asked_for():
    """Lists may speak of operators that a model lacks: nothing is said of them."""
    assert matched() == ()
