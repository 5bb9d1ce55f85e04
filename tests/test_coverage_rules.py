"""Coverage rules: which are broken, and by which nodes."""

import json

import pytest

from amp_rewrite.coverage import coverage_rules as coverage_rules
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import CoverageRules, check, percent
from amp_rewrite.errors import AmpRewriteError, ListError, OptionError
from tests import text
from tests.edits import edits

SOURCE = """g (float16[2, 8] x) => (float[2, 4] y) <float16[8, 16] w1, float[16, 4] w2> {
  [first] h = MatMul (x, w1)
  [up] f = Cast <to = 1> (h)
  [exp] e = Exp (f)
  [second] y = MatMul (e, w2)
}"""
# FLOPs: 512 in half, 32 and 256 in float32: 64 % in half. Nodes: one of three. Weights: 256 of 512 bytes.


@pytest.fixture(scope="module")
def coverage():
    """The coverage of the model above."""
    return measure(text.model(SOURCE))


def only(coverage, **rules):
    """The result of a single rule."""
    (found,) = check(coverage, CoverageRules(**rules))
    return found


@pytest.mark.parametrize(
    ("rule", "kept", "broken", "nodes"),
    [
        ("min_flops", 0.64, 0.65, ("second", "exp")),
        ("min_nodes", 1 / 3, 0.34, ("second", "exp")),
        ("min_weights", 0.5, 0.51, ("w2",)),
        ("max_casts", 1, 0, ("up",)),
        ("require", {"MatMul": 0.5}, {"MatMul": 0.51}, ("second",)),
        ("forbid_half", ("Exp",), ("MatMul",), ("first",)),
    ],
)
def test_a_rule_holds_up_to_its_bound_and_names_what_breaks_it(coverage, rule, kept, broken, nodes):
    """A rule holds exactly at its bound; beyond it, the nodes that break it are listed, most FLOPs first."""
    assert only(coverage, **{rule: kept}).ok
    found = only(coverage, **{rule: broken})
    assert (found.ok, found.nodes) == (False, nodes)


def test_a_check_says_what_was_found(coverage):
    """The text of a share."""
    assert only(coverage, min_flops=0.7).found == "64.0 % of FLOPs in half"
    assert only(coverage, require={"MatMul": 1.0}).found == "50.0 % of 2 MatMul nodes in half"
    assert only(coverage, max_casts=0).found == "1 Cast between half and float32"


def test_a_rule_on_what_is_not_there_is_kept(coverage):
    """That an absent operator is not in half, and what a model without floats has, hold."""
    assert only(coverage, forbid_half=("com.microsoft:FusedMatMul",)).ok
    integers = measure(text.model("g (int64[2] x) => (int64[2] y) { y = Add (x, x) }"))
    assert only(integers, min_flops=1.0).ok


def test_what_is_required_has_to_be_there(coverage):
    """Unless it is wanted only where it is present; arithmetic without floats is none to have in half."""
    absent = only(coverage, require={"Conv": 1.0})
    assert (absent.ok, absent.found) == (False, "the model has no Conv node; if-present accepts that")
    assert check(coverage, CoverageRules(require={"Conv": 1.0}, if_present=True))[0].ok
    integers = measure(text.model("g (int64[2] x) => (int64[2] y) { y = Add (x, x) }"))
    assert only(integers, require={"Add": 1.0}).found.startswith("no Add node has floats")


@pytest.mark.parametrize("operator", ["FusedConv", "NhwcFusedConv"])
def test_fused_forms_count(operator):
    """A rule on Conv is one on what onnxruntime fuses a Conv into; both are named."""
    domain = "com.microsoft"
    source = f"""<ir_version: 8, opset_import: ["" : 17, "{domain}" : 1]>
    g (float16[1,1,4,4] x, float[1,1,4,4] z) => (float16[1,1,4,4] y, float[1,1,4,4] v)
    <float[1,1,1,1] u = {{1.0}}> {{
        w = Cast <to = 10> (u)
        y = Conv (x, w)
        [fused] v = {domain}.{operator} (z, u) }}"""
    found = measure(text.unchecked(source))
    required = only(found, require={"Conv": 1.0})
    assert (required.ok, required.nodes) == (False, ("fused",))
    assert required.found == f"50.0 % of 2 Conv and {domain}:{operator} nodes in half"
    assert only(found, forbid_half=("Conv",)).nodes == ("y",)
    assert not only(found, require={f"{domain}:{operator}": 1.0}).ok


def test_what_is_not_known_is_not_kept():
    """A product of unknown shape has FLOPs, none of which count as half."""
    source = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { a = mine.Magic (x) y = MatMul (a, w) }"""
    unknown = measure(text.unchecked(source))
    found = only(unknown, min_flops=0.1)
    assert not found.ok
    assert found.found.endswith("not counting 2 nodes with unknown FLOPs")


@pytest.mark.parametrize(
    "rules", [CoverageRules(require={"MatMull": 1.0}), CoverageRules(forbid_half=("MatMull",))]
)
def test_a_misspelt_operator_is_refused(coverage, rules):
    """A rule that nothing can break is an error."""
    with pytest.raises(OptionError, match=r"no operator is called MatMull; did you mean MatMul\?"):
        check(coverage, rules)


def test_percent_never_rounds_up_to_all():
    """A share just below 1 is not printed as 100 %."""
    shares = (None, 0.0, 0.00001, 0.99999, 1.0, 0.64)
    assert [percent(share) for share in shares] == [
        "n/a",
        "0 %",
        "below 0.1 %",
        "99.9 %",
        "100 %",
        "64.0 %",
    ]


@pytest.fixture
def baseline(coverage, tmp_path):
    """A file with the model's coverage."""
    path = tmp_path / "coverage.json"
    coverage_rules.save_baseline(coverage, path)
    return path


def against(found, path, **rules):
    """The rules that a baseline file breaks."""
    held = check(found, CoverageRules(baseline=str(path), **rules))
    return {check.rule: check for check in held if not check.ok}


def test_a_model_keeps_its_own_baseline(coverage, baseline):
    """A model does not fall below its own baseline."""
    assert against(coverage, baseline, tolerance=0.0) == {}


WORSE = SOURCE.replace(
    "[first] h = MatMul (x, w1)", "[down] x2 = Cast <to = 1> (x) [first] h = MatMul (x2, w1)"
)
WORSE = (
    WORSE.replace("[up] f = Cast <to = 1> (h)", "")
    .replace("(f)", "(h)")
    .replace("float16[8, 16]", "float[8, 16]")
)


def test_a_fall_is_named_with_its_nodes(baseline):
    """FLOPs, nodes, weights, and the operator that fell."""
    broken = against(measure(text.model(WORSE)), baseline)
    assert list(broken) == ["baseline flops", "baseline nodes", "baseline weights", "baseline MatMul"]
    assert broken["baseline MatMul"].nodes == ("first", "second")
    assert broken["baseline MatMul"].found == "0 % of 2 MatMul nodes in half, 50.0 % before"


def test_a_fall_within_the_tolerance_is_none(baseline):
    """A share may fall as far as that; a better one is never broken."""
    worse = measure(text.model(WORSE))
    assert against(worse, baseline, tolerance=0.65) == {}
    assert list(against(worse, baseline, tolerance=0.6)) == ["baseline flops"]


def test_a_baseline_of_other_dimensions_is_refused(tmp_path):
    """FLOPs of two batch sizes cannot be compared."""
    source = "g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { y = MatMul (x, w) }"
    path = tmp_path / "coverage.json"
    coverage_rules.save_baseline(measure(text.model(source), {"n": 2}), path)
    with pytest.raises(OptionError, match=r"other dimensions \(n=2\) than now \(none given\)"):
        against(measure(text.model(source)), path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"flops": 3}', '{"flops": {"share": "a"}}'])
def test_what_is_no_baseline_is_refused(content, tmp_path):
    """The error is one line that names the file and the remedy."""
    path = tmp_path / "coverage.json"
    path.write_text(content)
    with pytest.raises(OptionError) as caught:
        coverage_rules.load_baseline(path)
    assert str(path) in str(caught.value)
    assert "coverage_rules.save_baseline`" in str(caught.value)


def test_a_missing_baseline_says_how_to_make_one(tmp_path):
    """The first run of a CI."""
    with pytest.raises(
        OptionError, match=r"no such baseline; write it with `.*coverage_rules.save_baseline`"
    ):
        coverage_rules.load_baseline(tmp_path / "none.json")


FILE = """
min-flops: 0.95
min-nodes: 0.5
min-weights: 1
require:
  MatMul: 1.0
  com.microsoft:FusedMatMul: 0.5
if-present: true
forbid-half: [Softmax, Exp]
max-casts: 12
baseline: numbers/coverage.json
tolerance: 0.02
dims:
  batch: 4
"""


def rules(tmp_path, content):
    """The rules of a file with that content."""
    path = tmp_path / "rules.yaml"
    path.write_text(content)
    return coverage_rules.load(path)


def test_a_file_says_all_that_flags_can(tmp_path):
    """Every key is read; the baseline path is relative to the file."""
    assert rules(tmp_path, FILE) == CoverageRules(
        min_flops=0.95,
        min_nodes=0.5,
        min_weights=1.0,
        require={"MatMul": 1.0, "com.microsoft:FusedMatMul": 0.5},
        if_present=True,
        forbid_half=("Softmax", "Exp"),
        max_casts=12,
        baseline=str(tmp_path / "numbers" / "coverage.json"),
        tolerance=0.02,
        dims={"batch": 4},
    )


def test_the_docstring_shows_a_file_that_works(tmp_path):
    """The example in the module can be copied."""
    example = coverage_rules.__doc__.split("\n\n")[1]
    assert rules(tmp_path, example).require == {"MatMul": 1.0}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("min-flops: 95", r"yaml: min-flops 95 is not a share; write a share from 0 to 1"),
        ("min-flops: nan", r"yaml: min-flops nan is not a share; write a share"),
        ("min-flops: much", r"yaml: min-flops: expected float, got str; write a share"),
        ("a: 1\nmin-flops: 1", r":1: an unknown key; it can be min-flops,"),
        ("min-flop: 1", r":1: unknown key min-flop; did you mean min-flops\?"),
        ("require: MatMul", r"yaml: require: expected object, got str"),
        ("if-present: yes!", r"yaml: if-present: expected bool, got str"),
        ("require:\n  MatMul: 2", r"yaml: MatMul 2 is not a share"),
        ("forbid-half: {a: 1}", r"yaml: forbid-half: expected array, got object"),
        ("max-casts: -1", r"yaml: max-casts: expected int >= 0"),
        ("max-casts: 1.5", r"yaml: max-casts: expected int, got str"),
        ("- a", "the top level is not a mapping"),
        ("min-flops: 1\nmin-flops: 1", "min-flops is here and on line 1"),
        ("a: [", "is not YAML"),
        ("min-flops: &a 1\nmin-nodes: *a", ":1: has an anchor or an alias"),
        ("? &a [x]\n: 1\n? [*a, *a]\n: 2", ":1: has an anchor or an alias"),
        ("{require: " * 5000, "is nested too deeply"),
        ("#" * 300_000, "is larger than 262,144 bytes"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, problem):
    """A bad file is an error with the key, or the line; no rule is dropped silently."""
    with pytest.raises(ListError, match=problem):
        rules(tmp_path, content)


def test_a_missing_file_is_an_error_of_ours(tmp_path):
    """With its name."""
    with pytest.raises(AmpRewriteError, match="cannot be read"):
        coverage_rules.load(tmp_path / "none.yaml")


def test_a_baseline_is_plain_json(baseline, coverage):
    """It is readable: shares beside counts, and no single nodes."""
    content = json.loads(baseline.read_text())
    assert content["flops"] == {"half": 512, "full": 288, "mixed": 0, "other": 0, "share": 0.64}
    assert content["casts"] == {"count": 1, "bytes": coverage.cast_bytes}
    assert "node_list" not in content


def test_whatever_stands_in_a_baseline(tmp_path):
    """It is read, or rejected with the path of the invalid entry."""
    path, said = tmp_path / "baseline.json", []
    source = "g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) { y = MatMul (x, w) }"
    coverage_rules.save_baseline(measure(text.model(source), {}), path)
    for edited in edits(json.loads(path.read_text())):
        path.write_text(json.dumps(edited))
        try:
            coverage_rules.load_baseline(path)
        except OptionError as error:
            said.append(str(error))
    for problem in (
        "operators[...].nodes.share: expected",
        "flops: object missing required field share",
        "nodes.share: expected float <= 1.0",
    ):
        assert any(f"is not a coverage baseline ({problem}" in one for one in said), (problem, set(said))


def test_a_number_of_too_many_digits(tmp_path):
    """Python itself refuses to read more than 4,300 of them."""
    path = tmp_path / "rules.yaml"
    path.write_text(f"max-casts: {'9' * 5000}")
    with pytest.raises(ListError, match="max-casts: integer value out of range"):
        coverage_rules.load(path)
