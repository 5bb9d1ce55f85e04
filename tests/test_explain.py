"""`amp-rewrite explain` of models, results and plans; words for evidence; advice on Tensor Cores."""

import itertools
import json

import onnx
import pytest

import amp_rewrite
from amp_rewrite import analyze, rewrite
from amp_rewrite.colouring import classification
from amp_rewrite.costs import flop_count
from amp_rewrite.coverage.advice import advise
from amp_rewrite.explaining import rules
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.devices import H200
from amp_rewrite.policy.entries import Kind, authority_in_words
from amp_rewrite.policy.evidence import Authority, Evidence, Reason, in_words
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.rewriting.decisions import Decisions
from tests import commands, text
from tests.commands import run

MODEL = """g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) {
  [product] a = MatMul (x, w) [exponential] e = Exp (a) [root] r = Sqrt (e) [second] y = MatMul (r, w) }"""


def told(*arguments):
    """What `explain` prints on standard output, in lines; on standard error, that it decided now, if so."""
    result = run("explain", *arguments)
    assert result.exit_code == 0, result.output
    assert not result.stderr or result.stderr.startswith("note     ")
    assert result.stderr.count("\n") <= 1
    return result.stdout.splitlines()


def test_damaged_metadata_is_a_warning(tmp_path):
    """What cannot be read is said in one line, and the model is analysed as it stands."""
    made = rewrite(text.model(MODEL)).model
    made.metadata_props[0].value = "[]"
    rewritten = tmp_path / "m.onnx"
    onnx.save(made, rewritten)
    result = run("explain", rewritten, "root")
    assert result.exit_code == 0
    line, decided = result.stderr.splitlines()
    assert line.startswith("warning  the decisions in its metadata are damaged")
    assert line.endswith("what follows is a new analysis")
    assert decided.startswith("note ")
    assert result.stdout.splitlines()[0] == "Sqrt 'root'"


@pytest.mark.parametrize(
    ("operator", "said"), [("MatMul", "fault of amp-rewrite's own"), ("MatMule", "is not a valid model")]
)
def test_who_is_blamed(tmp_path, monkeypatch, operator, said):
    """What fails in no way of ours is blamed on the model where onnx's checker refuses that as well."""

    def fails(*_):
        raise TypeError

    path = tmp_path / "model.onnx"
    onnx.save(text.unchecked(MODEL.replace("= MatMul (x", f"= {operator} (x")), path)
    monkeypatch.setattr("amp_rewrite.reporting.explanations.advise", fails)
    result = run("explain", path, "--show=advice")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.slow
def test_a_long_chain_is_explained_in_linear_time_and_space(tmp_path):
    """What holds back thousands of nodes is found, and a chain is told by its ends."""
    count = 2_000
    body = "".join(f"[n{i}] v{i + 1} = Sqrt(v{i})  " for i in range(count))
    path = tmp_path / "model.onnx"
    onnx.save(text.model(f"g (float[4] x) => (float[4] v{count}) {{ [e] v0 = Exp(x)  {body} }}"), path)
    assert told(path)[0] == f"{count + 1:,} nodes, 100% of FLOPs: downstream of Exp 'e'"
    lines = told(path, f"n{count - 1}")
    assert len(lines) < 30
    assert "more, down to" in lines[-4]
    assert "Exp 'e'" in lines[-3]
    assert lines[-2].startswith("  no flag frees any (tried: ")
    assert lines[-1] == f"  this node in float16 (not compared): --force-half n{count - 1}"


def test_origins():
    """The end of every chain is found at once, as `why` finds it one by one."""
    source = """g (float[4, 4] x) => (float[4, 4] y) {
      a = MatMul(x, x) b = Exp(a) c = Sqrt(b) d = Abs(c) f = Log(d) h = MatMul(f, x) y = Softmax(h) }"""
    found = analyze(text.model(source)).decisions()
    assert found.origins() == tuple(found.why(unit)[-1] for unit in range(len(found.all)))


# ---- evidence is data: the order of authority stands once, and words are made in one place


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


# ---- advice on Tensor Cores: dimensions that are not multiples of 8, and a device's gain


def advised(source, dims=None, options=None):
    """The advice on a model."""
    made = analyze(text.model(f"g {source}"), options)
    counted = flop_count.count(made.loaded.model, made.graph.types, dims or {})
    return advise(counted, made.decisions(), "float16", H200)


def test_products_in_float32_are_left_alone():
    """There is advice only for nodes in half, whichever tool converted them."""
    kept = Options(lists=Options().operator_lists().override(Kind.DENY, ["MatMul"]))
    source = "(float[12,12] x) => (float[12,12] y) { y = MatMul (x, x) }"
    assert [len(advised(source, options=each).paddings) for each in (None, kept)] == [1, 0]
    halved = text.model("g (float16[16,12] x, float16[12,16] w) => (float16[16,16] y) { y = MatMul (x, w) }")
    model = loading.load(halved).model
    counted = flop_count.count(model, element_types.infer(model), {})
    (found,) = advise(counted, Decisions(()), "float16", H200).paddings
    assert found.sizes == (12,)


def test_most_flops_first():
    """The first products are printed, with their share of FLOPs."""
    given = advised(
        """(float[16,12] x, float[16,8] u) => (float[16,12] y, float[16,10] z)
        <float[8,10] w, float[12,12] v> { z = MatMul (u, w) y = MatMul (x, v) }"""
    )
    flops = 2 * 16 * 12 * 12, 2 * 16 * 8 * 10
    assert [found.flop_share for found in given.paddings] == [part / sum(flops) for part in flops]
    assert list(given.lines())[1:] == [
        "MatMul 'y' has 12 -> 16 (64% of FLOPs)",
        "MatMul 'z' has 10 -> 16 (36% of FLOPs)",
    ]


@pytest.fixture
def path(tmp_path):
    """A model in a folder."""
    source = "g (float[16,12] x) => (float[16,16] y) <float[12,16] w> { [p] y = MatMul (x, w) }"
    onnx.save(text.model(source), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def advice_on(path, *flags):
    """What `explain --show advice` prints; it must succeed."""
    result = commands.run("explain", path, "--show=advice", *flags)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_explain_gives_advice(path, tmp_path):
    """It is printed, and written as JSON, for a model and for its result alike, and only advises."""
    before = path.read_bytes()
    lines = advice_on(path, "--json", tmp_path / "told.json")
    assert lines[1] == "MatMul 'p' has 12 -> 16 (100% of FLOPs)"
    assert path.read_bytes() == before
    data = json.loads((tmp_path / "told.json").read_text())["advice"]
    assert (data["half"], data["device"], data["has_tensor_cores"]) == ("float16", "h200", True)
    assert data["paddings"] == [{"node": "p", "operator": "MatMul", "sizes": [12], "flop_share": 1.0}]
    assert advice_on(rewrite(path).model) == lines


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--device", "old,10/10,0.3"), "old has no Tensor Cores for float16"),
        (("--device", "t4", "--to", "bfloat16"), "t4 has no Tensor Cores for bfloat16"),
    ],
)
def test_a_device_that_gains_nothing(path, flags, said):
    """Nothing is padded for such a device, and the exit code is still 0."""
    (line,) = advice_on(path, *flags)
    assert line.startswith(said)
