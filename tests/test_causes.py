"""Why nodes stay float32, by what holds them back, and the flags that would free them."""

import re

import pytest

from amp_rewrite import analyze, rewrite
from amp_rewrite.cli.decisions import options_of
from amp_rewrite.costs import flop_count
from amp_rewrite.explaining import suggestions
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.explaining.sentences import of_cause
from amp_rewrite.policy import node_patterns
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting.report import extents
from tests import case_files, real_models, text
from tests.real_models import NAMES

SOURCES = {
    case.name.partition(",")[0]: case.model for case in case_files.read(case_files.FOLDER / "causes.cases")
}
NOTHING = "g (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }"
TOLD = {
    NOTHING: [],
    "resize": [],
    "chains": ["4 nodes, downstream of Exp 'e1' and 1 more: to allow: --list infer=Exp (frees 4 nodes)"],
    "partly": ["4 nodes, downstream of Exp 'e1' and 1 more: to allow: --list infer=Exp (frees 3 nodes)"],
    "regions": ["1 node in part, Resize 'r': no flag frees any (tried: --allow Resize; --force-half r)"],
    "norms": [  # each with the Divs and Sqrts of the other
        (
            "10 nodes, Pow 's1' and 9 more: to allow: --allow Pow --allow ReduceMean --allow Add "
            "--allow Sqrt --allow Div (frees 12 nodes)"
        ),
        (
            "3 nodes, ReduceSumSquare 'n1' and 2 more: to allow: --allow ReduceSumSquare --allow Sqrt "
            "--allow Div (frees 7 nodes)"
        ),
    ],
    "small": ["4 nodes, Add 'a1' and 3 more: to force: --allow Add --allow Div (frees 4 nodes)"],
    "few": ["2 nodes, Add 'a1' and 1 more: to force: --force-half a1 --force-half d1 (frees 2 nodes)"],
    "conv": [
        "1 node, Conv -> 'y': nothing at opset 17: the schema has bfloat16 from 22 on, which --opset 22 sets"
    ],
}


@pytest.mark.parametrize("source", TOLD)
def test_what_is_told_of_each_cause(source):
    """One line for an operator and a reason: how much it holds back, where it began, what would help."""
    options = Options(half="bfloat16", keep_opset=True) if source == "conv" else Options()
    found = [of_cause(cause) for cause in analyze(text.model(SOURCES.get(source, source)), options).causes()]
    lines = [f"{words.weight}, {words.origin}: {words.suggestion}" for words in found]
    assert [line.replace("; not compared)", ")") for line in lines] == TOLD[source]


def test_the_most_arithmetic_comes_first():
    """Nodes count where no FLOPs are given, in the order of the model where they tie; else FLOPs do.

    The nodes' share is of those that have float32, the FLOPs' that of all.
    """
    analysis = analyze(text.model(SOURCES["two"]))
    flops = {"p": 900.0, "n": 10.0, "r": 90.0}
    by_node = {unit.node: flops[unit.node.name] for unit in analysis.graph.units}
    for given, expected in ((None, [("n", None), ("r", None)]), (by_node, [("r", 0.09), ("n", 0.01)])):
        causes = analysis.causes(given)
        assert [(each.nodes[0].name, each.flop_share) for each in causes] == expected
        assert {each.node_share for each in causes} == {1 / 3}


def test_plain_data():
    """JSON has the numbers, the reason, the roots and all affected nodes."""
    (cause,) = analyze(text.model(SOURCES["chains"])).causes()
    found = cause.to_json()
    assert (found["nodes"], found["node_share"], found["flop_share"]) == (4, 4 / 6, None)
    assert (found["flags"], found["frees"], found["source"]) == (["--list infer=Exp"], 4, "default")
    assert found["affected"] == ["Exp 'e1'", "Exp 'e2'", "Sqrt 's'", "Add 'q'"]
    assert of_cause(cause).reason.startswith("denied: overflows above 11.09")


painted = Analysis.painted


def test_there_are_only_so_many_tries(monkeypatch):
    """The first causes are served; of the others it is said that nothing was tried."""
    tried = []
    monkeypatch.setattr(suggestions, "TRIES", 1)
    monkeypatch.setattr(Analysis, "painted", lambda *given: tried.append(given) or painted(*given))
    first, second = analyze(text.model(SOURCES["two"])).causes()
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


@pytest.mark.parametrize(
    "names", [("", ""), ("a.b", "axb"), ("two words", "two words"), ("'", '"'), ("(", "[")]
)
def test_names_that_a_shell_or_a_pattern_would_misread(names):
    """Names that are empty, that repeat, or that mean something to a shell or a pattern are named rightly."""
    model = text.model(SOURCES["odd"])
    model.graph.node[1].name, model.graph.node[2].name = names
    cause = next(
        cause for cause in analyze(model).causes() if cause.first.evidence.authority is Authority.RANGE
    )
    assert cause.suggestion.flags[0].startswith("--force-half ")
    hold(model, (), [cause])


KEPT = ("--deny Mul", "--keep-full 'p|o'")
GIVEN = [(), ("--skip follow",), *((f"--level {level.value}",) for level in Level), KEPT]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("source", ["chains", "two", "small", "from integers", "loose", "squares"])
def test_every_flag_does_what_it_says(source, given):
    """With the flags that are named, a rewrite has exactly so many more nodes in half as is said."""
    given = given if given is not KEPT or source == "chains" else KEPT[:1]
    model = text.model(SOURCES[source])
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
    assert not set(risen).isdisjoint(cause.decisions.all[unit].place for unit in cause.affected)


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


def test_a_share_is_of_what_is_known():
    """A node of unknown arithmetic holds no known share of it; all others are said to be of what is known."""
    analysis = analyze(text.unchecked(SOURCES["unshaped"]))
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
