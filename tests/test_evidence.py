"""Evidence is data: the order of authority stands once, and words are made in one place."""

import itertools

import pytest

import amp_rewrite
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring import classification
from amp_rewrite.explaining.causes import find
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.policy.reasons import authority_in_words, in_words
from tests import text


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason):
    """Whatever evidence holds, its words are one line."""
    told = in_words(Evidence(Authority.RANGE, reason, "{the}'subject'", 1.5, 2.5, "float16", "its text"))
    assert told
    assert "\n" not in told
    assert "None" not in told
    assert in_words(Evidence(Authority.RANGE, reason))


def test_a_reason_says_what_differs():
    """Evidence of one reason on other values reads otherwise."""
    found = [Evidence(Authority.RANGE, Reason.OVERFLOW, "w", n, 65504.0, "float16") for n in (7e4, 8e4)]
    assert list(map(in_words, found)) == [
        "70000 in 'w' is beyond float16's 65504",
        "80000 in 'w' is beyond float16's 65504",
    ]


def test_the_order_of_authority():
    """Of two authorities exactly one outranks the other: the one that stands first."""
    for first, second in itertools.combinations(Authority, 2):
        assert first.outranks(second)
        assert not second.outranks(first)
    assert not any(authority.outranks(authority) for authority in Authority)


def graph(source: str) -> UnitGraph:
    """The units of a model."""
    return amp_rewrite.analyze(text.model(source)).graph


@pytest.mark.parametrize(
    "authority", [a for a in Authority if a not in (Authority.PIN, Authority.LIST, Authority.PREDICTION)]
)
def test_findings_yield_to_higher_authorities(authority):
    """A finding holds against lists that it outranks, and yields to pins unless it is the schema's."""
    units = graph("g (float[4, 4] x) => (float[4, 4] y) { [node] y = MatMul(x, x) }")
    found = {0: Evidence(authority, Reason.OVERFLOW, "w", 7e4, 65504.0, "float16")}
    (listed,) = classification.classify(units, {}, Options())
    (held,) = classification.classify(units, found, Options())
    assert (listed.kind, held.kind, held.unheld) == (Kind.ALLOW, Kind.FIXED, Kind.ALLOW)
    if authority is not Authority.SCHEMA:
        (pinned,) = classification.classify(units, found, Options(pins=Pins(force_half="node")))
        assert (pinned.kind, pinned.authority) == (Kind.ALLOW, Authority.PIN)


def test_who_says_it():
    """A list speaks by its name, an override by its flag, others by what they are."""
    listed = Evidence(Authority.LIST, Reason.LISTED, subject="mine", text="fast")
    assert authority_in_words(listed, Kind.ALLOW) == "mine"
    assert authority_in_words(Evidence(Authority.OVERRIDE, Reason.ASKED), Kind.DENY) == "--deny"
    assert authority_in_words(Evidence(Authority.RANGE, Reason.OVERFLOW), Kind.FIXED) == "range"


def test_one_cause_for_one_reason():
    """Nodes that are held for one reason are one cause, whatever the values and their names."""
    source = """g (float[4] x) => (float[4] y) {
      a = Constant <value = float {70000}> ()
      b = Constant <value = float {90000}> ()
      [first] t = Add(x, a)
      [second] y = Mul(t, b)
      }"""
    causes = find(amp_rewrite.analyze(text.model(source)).decisions())
    assert [len(cause.held) for cause in causes if cause.first.evidence.authority is Authority.RANGE] == [2]
