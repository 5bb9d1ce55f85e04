"""Why nodes stay float32, by what holds them back, and the flags that would free them."""

import re

import pytest
from onnx.parser import parse_model

from amp_rewrite import analyze, rewrite
from amp_rewrite.cli.decision_flags import options_of
from amp_rewrite.costs import flop_count
from amp_rewrite.explaining import suggestions
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.explaining.sentences import of_cause
from amp_rewrite.policy import node_patterns
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting.report import extents
from tests import real_models, text
from tests.real_models import NAMES

CHAINS = """g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) { [p] a = MatMul(x, w)
  [e1] b = Exp(a) [e2] c = Exp(a) [s] d = Sqrt(b) [q] f = Add(c, d) [o] y = MatMul(f, w) }"""
"""Two Exps between two products, and what they poison."""
TWO = "g (float[4, 4] x) => (float[4, 4] y) { [p] a = MatMul(x, x) [n] b = Softmax(a) [r] y = Exp(b) }"
SMALL = """g (float[4, 4] x) => (float[4, 4] y) <float e1 = {1e-12}, float e2 = {1e-10}, float[4, 4] w> {
  [p] a = MatMul(x, w) [a1] b = Add(a, e1) [d1] c = Div(a, b) [q] d = MatMul(c, w)
  [a2] f = Add(d, e2) [d2] h = Div(d, f) [z] y = MatMul(h, w) }"""
FEW = SMALL.replace("Add(d, e2)", "Abs(d)")
LOOSE = "g (float[4, 4] x) => (float[4, 4] y) { a = Sigmoid(x)  b = Tanh(a)  y = Add(a, b) }"
SQUARES = """g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) {
  a = MatMul(x, w)  b = Mul(a, a)  c = Mul(b, w)  y = MatMul(c, w) }"""
NORMS = """g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w, float two = {2.0}, float least = {1e-5}> {
  [p] a = MatMul(x, w) [s1] b = Pow(a, two) [m1] c = ReduceMean<axes = [-1]>(b) [e1] d = Add(c, least)
  [r1] f = Sqrt(d) [d1] h = Div(a, f) [q] i = MatMul(h, w) [s2] j = Pow(i, two)
  [m2] k = ReduceMean<axes = [-1]>(j) [e2] l = Add(k, least) [r2] m = Sqrt(l) [d2] n = Div(i, m)
  [z] o = MatMul(n, w) [n1] t = ReduceSumSquare<axes = [-1]>(o) [n2] u = Sqrt(t) [n3] v = Div(o, u)
  [last] y = MatMul(v, w) }"""
"""Two norms by the root of a mean, and one by a length: three of them are two causes."""
RESIZE = """g (float[1, 1, 4, 4] x, float[4] s) => (float[a, b, c, d] y) <float[1, 1, 1, 1] w> {
  a = Conv(x, w) b = Resize(a, , s) y = Conv(b, w) }"""
"""A Resize in half has float32 scales by its schema, and is no node that stays float32."""
REGIONS = """g (float[1, 1, 4, 4] x) => (float[a, b, c, d] y)
  <float[1, 1, 1, 1] w = {1}, float[0] roi = {}, float[4] s = {1, 1, 2, 2}> {
  a = Conv(x, w) [r] b = Resize(a, roi, s) y = Conv(b, w) }"""
"""A Resize in half that has regions, none of them, in float32: as in YOLOX."""
CONV = "g (float[1, 4, 8, 8] x, float[4, 4, 1, 1] w) => (float[1, 4, 8, 8] y) { y = Conv (x, w) }"
PARTLY = CHAINS.replace("MatMul(f, w)", "Sigmoid(f)").replace("Sqrt(b)", "MatMul(b, w)")
"""What ends in nothing allowed stays float32 with the flag."""


TOLD = {
    "g (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }": [],
    RESIZE: [],
    CHAINS: ["4 nodes, downstream of Exp 'e1' and 1 more: to allow: --list infer=Exp (frees 4 nodes)"],
    PARTLY: ["4 nodes, downstream of Exp 'e1' and 1 more: to allow: --list infer=Exp (frees 3 nodes)"],
    REGIONS: ["1 node in part, Resize 'r': no flag frees any (tried: --allow Resize; --force-half r)"],
    NORMS: [  # each with the Divs and Sqrts of the other
        (
            "10 nodes, Pow 's1' and 9 more: to allow: --allow Pow --allow ReduceMean --allow Add "
            "--allow Sqrt --allow Div (frees 12 nodes)"
        ),
        (
            "3 nodes, ReduceSumSquare 'n1' and 2 more: to allow: --allow ReduceSumSquare --allow Sqrt "
            "--allow Div (frees 7 nodes)"
        ),
    ],
    SMALL: ["4 nodes, Add 'a1' and 3 more: to force: --allow Add --allow Div (frees 4 nodes)"],
    FEW: ["2 nodes, Add 'a1' and 1 more: to force: --force-half a1 --force-half d1 (frees 2 nodes)"],
    CONV: [
        "1 node, Conv -> 'y': nothing at opset 17: the schema has bfloat16 from 22 on, which --opset 22 sets"
    ],
}


@pytest.mark.parametrize("source", TOLD)
def test_what_is_told_of_each_cause(source):
    """One line for an operator and a reason: how much it holds back, where it began, what would help."""
    options = Options(half="bfloat16", keep_opset=True) if source is CONV else Options()
    found = [of_cause(cause) for cause in analyze(text.model(source), options).causes()]
    lines = [f"{words.weight}, {words.origin}: {words.suggestion}" for words in found]
    assert [line.replace("; not compared)", ")") for line in lines] == TOLD[source]


def test_the_most_arithmetic_comes_first():
    """Nodes count where no FLOPs are given, in the order of the model where they tie; else FLOPs do.

    The nodes' share is of those that have float32, the FLOPs' that of all.
    """
    analysis = analyze(text.model(TWO))
    flops = {"p": 900.0, "n": 10.0, "r": 90.0}
    by_node = {unit.node: flops[unit.node.name] for unit in analysis.graph.units}
    for given, expected in ((None, [("n", None), ("r", None)]), (by_node, [("r", 0.09), ("n", 0.01)])):
        causes = analysis.causes(given)
        assert [(each.nodes[0].name, each.flop_share) for each in causes] == expected
        assert {each.node_share for each in causes} == {1 / 3}


def test_plain_data():
    """JSON has the numbers, the reason, the roots and all that is held."""
    (cause,) = analyze(text.model(CHAINS)).causes()
    found = cause.to_json()
    assert (found["nodes"], found["node_share"], found["flop_share"]) == (4, 4 / 6, None)
    assert (found["flags"], found["frees"], found["source"]) == (["--list infer=Exp"], 4, "default")
    assert found["held"] == ["Exp 'e1'", "Exp 'e2'", "Sqrt 's'", "Add 'q'"]
    assert of_cause(cause).reason.startswith("denied: overflows above 11.09")


@pytest.mark.parametrize(
    ("source", "flags", "words"),
    [
        ("g (float[4] x) => (float[4] y) { y = Unknown(x) }", "", "--op-type Unknown=float16 says so"),
        (
            "g (float[4, 4] x) => (float[4, 4] y) { y = com.microsoft.CDist (x, x) }",
            "",
            "it can only be float32 here",
        ),
        (CHAINS, "--keep-full 'p|o'", "leave out --keep-full 'p|o' (frees 2 nodes; not compared)"),
        (TWO, "--deny MatMul", "to allow: leave out --deny MatMul (frees 1 node; not compared)"),
        (
            SQUARES,
            "--deny Mul",
            "--list infer='Mul(x,x)' --list infer=Mul in place of --deny Mul (frees 2 nodes; not compared)",
        ),
        (LOOSE, "--list infer=Tanh", "--allow Tanh in place of --list infer=Tanh (frees 2 nodes; not"),
        ("g (float[4] x) => (float[4] y) { y = Neg(x) }", "", "nothing to gain"),
        ("g (double[4] x) => (float[4] y) { y = Cast <to = 1> (x) }", "", "to gain: a Cast takes"),
    ],
)
def test_where_no_flag_helps(source, flags, words):
    """Where nothing helps, or leaving a flag out does, that is said in place of a flag."""
    causes = analyze(parse_model(f"{text.HEADER} {source}"), options_of(flags)).causes()
    found = [of_cause(cause).suggestion for cause in causes]
    assert any(words in remedy for remedy in found), found


painted = Analysis.painted


def test_there_are_only_so_many_tries(monkeypatch):
    """The first causes are served; of the others it is said that nothing was tried."""
    tried = []
    monkeypatch.setattr(suggestions, "TRIES", 1)
    monkeypatch.setattr(Analysis, "painted", lambda *given: tried.append(given) or painted(*given))
    first, second = analyze(text.model(TWO)).causes()
    assert len(tried) == 1
    assert first.suggestion.flags == ("--allow Softmax",)
    assert second.suggestion.why == "no flag was tried: enough flags were tried for what stands above"


def test_a_large_model_gets_fewer_tries(monkeypatch):
    """The tries are bounded by the units that are decided anew, down to a few for the first causes."""
    tried = []
    monkeypatch.setattr(suggestions, "UNITS", 1)
    monkeypatch.setattr(Analysis, "painted", lambda *given: tried.append(given) or painted(*given))
    options = Options(level=Level.TENSOR_CORES_ONLY)
    source = "g (float[4] x) => (float[4] y) { a = Exp(x)  b = Sqrt(a)  c = Abs(b)  d = Tanh(c)  y = Neg(d) }"
    assert len(analyze(text.model(source), options).causes()) > suggestions.LEAST
    assert len(tried) == suggestions.LEAST


@pytest.mark.parametrize(
    ("name", "others", "pattern"),
    [
        ("a.b", ["a.b", "ab"], "a.b"),
        ("a.b", ["a.b", "axb"], r"a\.b"),
        ("f(x)[0]", [], r"f\(x\)\[0\]"),
        ("(a+)+$", ["a" * 40 + "!"], r"\(a\+\)\+\$"),
        ("a(", [], r"a\("),
        ("two words", [], "two words"),
    ],
)
def test_a_name_as_a_pin(name, others, pattern):
    """A pin names its node and no other, whatever the name has in it."""
    assert node_patterns.pattern_for(name, others) == pattern
    assert re.fullmatch(pattern, name)


ODD = """g (float[4, 4] x) => (float[4, 4] y) <float e = {1e-12}, float[4, 4] w> {
  [p] a = MatMul(x, w)  [n1] b = Add(a, e)  [n2] c = Div(a, b)
  [n3] d = Sigmoid(c)  [o] f = MatMul(d, w)  [z] y = Div(f, f)
}"""


@pytest.mark.parametrize(
    "names", [("", ""), ("a.b", "axb"), ("two words", "two words"), ("'", '"'), ("(", "[")]
)
def test_names_that_a_shell_or_a_pattern_would_misread(names):
    """Names that are empty, that repeat, or that mean something to a shell or a pattern are named rightly."""
    model = text.model(ODD)
    model.graph.node[1].name, model.graph.node[2].name = names
    cause = next(
        cause for cause in analyze(model).causes() if cause.first.evidence.authority is Authority.RANGE
    )
    assert cause.suggestion.flags[0].startswith("--force-half ")
    hold(model, (), [cause])


FROM_INTEGERS = """g (int64[4, 4] i, float[4, 4] w) => (float[4, 4] y) {
  [c] a = Cast <to = 1> (i) [p] y = MatMul(a, w) }"""
KEPT = ("--deny Mul", "--keep-full 'p|o'")
GIVEN = [(), ("--skip follow",), *((f"--level {level.value}",) for level in Level), KEPT]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("source", [CHAINS, TWO, SMALL, FROM_INTEGERS, LOOSE, SQUARES])
def test_every_flag_does_what_it_says(source, given):
    """With the flags that are named, a rewrite has exactly so many more nodes in half as is said."""
    given = given if given is not KEPT or "[o]" in source else KEPT[:1]
    model = text.model(source)
    hold(model, given, analyze(model, options_of(" ".join(given))).causes())


ASKED = [(), ("--list tensorflow",), ("--to bfloat16",), ("--io half",)]
QUICK = ("bigru_tagger.legacy", "ultraface_rfb320", "yolox_nano")
REAL = [(name, ASKED[index % len(ASKED)]) for index, name in enumerate(NAMES) if name not in QUICK]
"""The other models, each with one of the flags in turn."""


@pytest.mark.parametrize(
    ("name", "given"),
    [*((name, ()) for name in QUICK), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in REAL)],
)
def test_every_flag_does_what_it_says_for_real_models(name, given):
    """The same for models as they are found."""
    path = real_models.path(name)
    made = analyze(path, options_of(" ".join(given)))
    causes = made.causes(flop_count.count(made.loaded.model, made.graph.types).flops)
    hold(path.read_bytes(), given, causes)


def hold(model, given, causes):
    """What is said of each cause is so, of a rewrite with flags."""
    before = counted(model, given)
    for cause in causes:
        remedy = cause.suggestion
        if remedy.why:
            assert not remedy.flags
            assert not remedy.drops
        else:
            assert set(remedy.dropped_flags) <= set(given)
            kept = [flag for flag in given if flag not in remedy.dropped_flags]
            holds(cause, before, counted(model, [*kept, *remedy.flags]))


def holds(cause, before, after):
    """A remedy frees nodes, some that the cause holds among them, in a rewrite."""
    remedy = cause.suggestion
    assert [place for place, _ in before] == [place for place, _ in after]
    risen = [place for (place, old), (_, new) in zip(before, after, strict=True) if new > old]
    fallen = [place for (place, old), (_, new) in zip(before, after, strict=True) if new < old]
    assert len(risen) - len(fallen) == remedy.frees > 0
    assert not set(risen).isdisjoint(cause.decisions.all[unit].place for unit in cause.held)


def counted(model, given):
    """Every node that has float32 and how much of it is half, as it is in the report of a valid rewrite."""
    found = []

    def note(analysis):
        decided, extent_of = analysis.decisions(), extents(analysis.graph, analysis.painting)
        places = dict(zip(decided.nodes, (each.place for each in decided.all), strict=True))
        found.extend((places[node], extent) for node, extent in extent_of.items())

    report = rewrite(model, options_of(" ".join(given)), on_plan=note).report
    assert report.ok
    return found


UNSHAPED = """g (float[4, 4] x, int64[k] s, float[4, 4] w) => (float[a, b] y) {
  [reshape] r = Reshape(x, s)  [e] b = Exp(r)  [m] c = MatMul(b, w)
  [first] p = MatMul(x, w)  [e2] f = Exp(p)  [l] d = Log(f)  [last] g = MatMul(d, w)  y = Sum(c, g)
}"""


def test_a_share_is_of_what_is_known():
    """A node of unknown arithmetic holds no known share of it; all others are said to be of what is known."""
    analysis = analyze(text.unchecked(UNSHAPED))
    counted = flop_count.count(analysis.loaded.model, analysis.graph.types).flops
    assert {node.name for node, flops in counted.items() if flops is None} >= {"e", "m"}
    known, unknown = (
        [of_cause(cause) for cause in analysis.causes(flops) if cause.operators == ("Exp",)]
        for flops in (counted, {n: flops if n.op_type == "MatMul" else None for n, flops in counted.items()})
    )
    assert [words.weight.partition(", ")[2].partition("% ")[2] for words in known] == [
        "of the FLOPs that are known"
    ]
    assert [(words.weight.partition(",")[2], "FLOPs" in words.suggestion) for words in unknown] == [
        ("", False)
    ]
    whole = {node: flops or 0 for node, flops in counted.items()}
    assert all("of FLOPs" in of_cause(cause).weight for cause in analysis.causes(whole))
