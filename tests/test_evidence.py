"""Evidence is data: the order of authority stands once, and words are made in one place."""

import itertools

import pytest

import amp_rewrite
from amp_rewrite.colouring import classification
from amp_rewrite.explaining import rules
from amp_rewrite.policy.entries import Kind, authority_in_words
from amp_rewrite.policy.evidence import Authority, Evidence, Reason, in_words
from amp_rewrite.policy.options import Options, Pins
from tests import text


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason):
    """Whatever evidence holds, its words are one line."""
    told = in_words(Evidence(Authority.RANGE, reason, "{the}'subject'", 1.5, 2.5, "float16", "its text"))
    assert told
    assert "\n" not in told
    assert "None" not in told
    assert in_words(Evidence(Authority.RANGE, reason))


OTHERS = """UNKNOWN_OPERATOR NO_HALF_TYPE KEEPS_TYPE OPSET_WITHOUT_HALF PINNED ASKED LOSS_REGION SCALING
    OPTIMISER SENSITIVE LEVEL CAST NOT_LISTED LISTED GATED"""
"""What schemas, users, lists, train steps, searches and the gate decide."""


@pytest.mark.parametrize("reason", Reason)
def test_every_rule_can_be_explained(reason):
    """What is no rule is listed here: who adds a reason says which it is."""
    assert (reason in rules.RULES) is not (reason.name in OTHERS.split())
    if reason in rules.RULES:
        assert rules.describe(reason.value.replace(" ", "-")).startswith(f"{reason.value}: ")
        assert "    " in rules.describe(reason.value), "has no example"


def test_the_order_of_authority():
    """Of two authorities exactly one outranks the other: the one that stands first."""
    for first, second in itertools.combinations(Authority, 2):
        assert first.outranks(second)
        assert not second.outranks(first)
    assert not any(authority.outranks(authority) for authority in Authority)


@pytest.mark.parametrize(
    "authority", [a for a in Authority if a not in (Authority.PIN, Authority.LIST, Authority.PREDICTION)]
)
def test_findings_yield_to_higher_authorities(authority):
    """A finding holds against lists that it outranks, and yields to pins unless it is the schema's."""
    source = "g (float[4, 4] x) => (float[4, 4] y) { [node] y = MatMul(x, x) }"
    units = amp_rewrite.analyze(text.model(source)).graph
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
