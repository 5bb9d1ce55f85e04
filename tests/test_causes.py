"""Why nodes stay float32, by what holds them back, and the flags that would free them."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx.parser import parse_model

from amp_rewrite import analyze, lists
from amp_rewrite.lists import Kind
from amp_rewrite.options import Level, Options, Pins
from amp_rewrite.reporting.causes import Remedy
from amp_rewrite.reporting.sentences import of_cause
from tests import text

CHAINS = """g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) {
  [p] a = MatMul(x, w)
  [e1] b = Exp(a)
  [e2] c = Exp(a)
  [s] d = Sqrt(b)
  [q] f = Add(c, d)
  [o] y = MatMul(f, w)
}"""
"""Two Exps between two products, and what they poison."""


def causes(source, options=None, flops=None, **weights):
    """Each cause as (root places, held nodes, remedy)."""
    analysis = analyze(text.model(source, weights), options)
    by_name = {u.node: flops[u.node.name] for u in analysis.graph.units} if flops else None
    return [(c.root_places, [n.name for n in c.nodes], c.remedy) for c in analysis.causes(by_name)]


def test_one_line_for_an_operator_and_a_reason():
    """Two roots of one operator and reason are one cause, with all that is downstream of either."""
    ((roots, held, remedy),) = causes(CHAINS)
    assert roots == ("Exp 'e1'", "Exp 'e2'")
    assert held == ["e1", "e2", "s", "q"]
    assert (remedy.flags, remedy.frees) == (("--infer Exp",), 4)


def test_nothing_is_held_back():
    """Where all is half there is no cause."""
    assert causes("g (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }") == []


TWO = """g (float[4, 4] x) => (float[4, 4] y) {
  [p] a = MatMul(x, x)
  [n] b = Softmax(a)
  [r] y = Exp(b)
}"""


def test_the_most_arithmetic_comes_first():
    """Nodes count where no FLOPs are given, in the order of the model where they tie; else FLOPs do."""
    assert [held for _, held, _ in causes(TWO)] == [["n"], ["r"]]
    flops = {"p": 900.0, "n": 10.0, "r": 90.0}
    assert [held for _, held, _ in causes(TWO, flops=flops)] == [["r"], ["n"]]


def test_shares():
    """The nodes' share is of those that have float32, the FLOPs' that of all."""
    analysis = analyze(text.model(TWO))
    flops = {"p": 900.0, "n": 10.0, "r": 90.0}
    found = analysis.causes({unit.node: flops[unit.node.name] for unit in analysis.graph.units})
    assert [(c.node_share, c.flop_share) for c in found] == [(1 / 3, 0.09), (1 / 3, 0.01)]
    assert [c.flop_share for c in analysis.causes()] == [None, None]


def test_words():
    """A reader is told how much, where it began, why, and what would help."""
    (cause,) = analyze(text.model(CHAINS)).causes()
    words = of_cause(cause)
    assert words.weight == "4 nodes"
    assert words.origin == "downstream of Exp 'e1' and 1 more"
    assert words.reason.startswith("denied: overflows above 11.09")
    assert words.remedy == "to allow: --infer Exp"


def test_a_flag_that_frees_a_part_says_how_much():
    """What ends in nothing allowed stays float32 with --infer, and that is counted."""
    source = CHAINS.replace("MatMul(f, w)", "Sigmoid(f)")
    (cause,) = analyze(text.model(source.replace("Sqrt(b)", "MatMul(b, w)"))).causes()
    assert cause.remedy == Remedy(("--infer Exp",), 3)
    assert of_cause(cause).remedy == "to allow: --infer Exp (frees 3 of 4)"


def test_plain_data():
    """JSON has the numbers, the roots and all that is held."""
    (cause,) = analyze(text.model(CHAINS)).causes()
    found = cause.to_json()
    assert (found["nodes"], found["node_share"], found["flop_share"]) == (4, 4 / 6, None)
    assert (found["flags"], found["frees"], found["source"]) == (["--infer Exp"], 4, "default")
    assert found["held"] == ["Exp 'e1'", "Exp 'e2'", "Sqrt 's'", "Add 'q'"]


RESIZE = """g (float[1, 1, 4, 4] x, float[4] s) => (float[a, b, c, d] y) <float[1, 1, 1, 1] w> {
  a = Conv(x, w)
  b = Resize(a, , s)
  y = Conv(b, w)
}"""


def test_a_part_that_can_only_be_float32_holds_nothing_back():
    """A Resize in half has float32 scales by its schema, and is no node that stays float32."""
    assert causes(RESIZE) == []


SMALL = """g (float[4, 4] x) => (float[4, 4] y) <float[1] e1, float[1] e2, float[4, 4] w> {
  [p] a = MatMul(x, w)
  [a1] b = Add(a, e1)
  [d1] c = Div(a, b)
  [q] d = MatMul(c, w)
  [a2] f = Add(d, e2)
  [d2] h = Div(d, f)
  [z] y = MatMul(h, w)
}"""
TINY = {"e1": np.array([1e-12], np.float32), "e2": np.array([1e-10], np.float32)}


def test_a_finding_in_several_places_is_one_cause():
    """Findings that differ in names and numbers are one; who goes against one forces it."""
    (cause,) = analyze(text.model(SMALL, TINY)).causes()
    assert cause.root_places == ("Add 'a1'", "Div 'd1'", "Add 'a2'", "Div 'd2'")
    assert of_cause(cause).remedy == "to force: --allow Add --allow Div"
    few = SMALL.replace("Add(d, e2)", "Abs(d)")
    (cause,) = analyze(text.model(few, TINY)).causes()
    assert of_cause(cause).remedy == "to force: --force-half a1 --force-half d1"


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("g (float[4] x) => (float[4] y) { y = Unknown(x) }", Options(), "it can only be float32 here"),
        (CHAINS, Options(pins=Pins(keep_full=("p|o",))), "leave out the --keep-full that names it"),
        (
            TWO,
            Options(lists=lists.load("default").override(Kind.DENY, ["MatMul"], "--deny")),
            "leave out the --deny",
        ),
        ("g (float[4] x) => (float[4] y) { y = Neg(x) }", Options(), "nothing to gain"),
        (
            "g (double[4] x) => (float[4] y) { y = Cast <to = 1> (x) }",
            Options(),
            "nothing to gain: a Cast goes with",
        ),
    ],
)
def test_where_no_flag_helps(source, options, words):
    """Where nothing helps, or leaving a flag out does, that is said in place of a flag."""
    found = [
        of_cause(cause).remedy for cause in analyze(parse_model(f"{text.HEADER} {source}"), options).causes()
    ]
    assert any(words in remedy for remedy in found), found


FROM_INTEGERS = """g (int64[4, 4] i, float[4, 4] w) => (float[4, 4] y) {
  [c] a = Cast <to = 1> (i)
  [p] y = MatMul(a, w)
}"""
LOOSE = "g (float[4, 4] x) => (float[4, 4] y) { a = Sigmoid(x)  b = Tanh(a)  y = Add(a, b) }"
SQUARES = """g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) {
  a = MatMul(x, w)  b = Mul(a, a)  c = Mul(b, w)  y = MatMul(c, w)
}"""
LEVELS = [Options(), Options(follow=False), *(Options(level=level) for level in Level)]


@pytest.mark.parametrize("options", LEVELS, ids=str)
@pytest.mark.parametrize("source", [CHAINS, TWO, SMALL, FROM_INTEGERS, LOOSE, SQUARES])
def test_every_flag_does_what_it_says(source, options):
    """With the flags that are named, exactly so many of the held nodes are half as is said."""
    model = text.model(source, TINY)
    for cause in analyze(model, options).causes():
        if cause.remedy.flags:
            assert cause.remedy.frees > 0
            assert freed(model, options, cause) == cause.remedy.frees
        else:
            assert cause.remedy.why


MODELS = Path(__file__).parents[2] / "shared" / "models"


@pytest.mark.parametrize(
    "name", ["ultraface_rfb320", "bigru_tagger.legacy", "mamba_tiny.legacy", "silero_vad_v6"]
)
def test_every_flag_does_what_it_says_for_real_models(name):
    """The same for models as they are found."""
    if not (MODELS / "index.json").is_file():
        pytest.skip(f"the real models are not in {MODELS}")
    index = {
        entry["name"]: MODELS / entry["file"] for entry in json.loads((MODELS / "index.json").read_text())
    }
    found = [cause for cause in analyze(index[name]).causes() if cause.remedy.flags]
    assert found
    for cause in found:
        assert freed(index[name], Options(), cause) == cause.remedy.frees


def freed(model, options, cause):
    """How many of the nodes that a cause holds back are half with the flags that it names."""
    after = analyze(model, flagged(options, cause.remedy.flags))
    return sum(map(after.painting.is_half, cause.held))


def flagged(options, flags):
    """Options with flags as the command line takes them."""
    found = options.operator_lists()
    pins = options.pins
    for flag in flags:
        name, value = shlex.split(flag)
        if name == "--force-half":
            pins = replace(pins, force_half=(*pins.force_half, value))
        else:
            found = found.override(Kind(name[2:]), [value], name)
    return replace(options, lists=found, pins=pins)
