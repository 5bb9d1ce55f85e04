"""`amp-rewrite coverage`: what it prints, writes and answers; and its twin for test suites."""

import json
from xml.etree import ElementTree as ET

import onnx
import pytest

from amp_rewrite.errors import OptionError
from amp_rewrite.testing import assert_coverage
from tests import text
from tests.commands import failure, rows, run

SOURCE = """g (float16[n, 8] x) => (float[n, 4] y) <float16[8, 16] w1, float[16, 4] w2> {
  [first] h = MatMul (x, w1)
  [up] f = Cast <to = 1> (h)
  [second] y = MatMul (f, w2)
}"""


@pytest.fixture
def model(tmp_path):
    """A model with two thirds of its FLOPs in half."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(SOURCE), path)
    return path


RUNS = """
                                               | 0 | 66.6 % & open dimensions count as 64 (n)
--rules min-flops=0.9 --rules max-casts=5
    | 1 | BROKEN min-flops 0.9: 66.6 % of FLOPs in half second
--rules require=Conv=1 -q                            | 1 | BROKEN require Conv=1: the model has no Conv node
--rules require=Conv=1 --rules if-present                  | 0 | kept
--rules min-flops=0.6 --rules min-nodes=0.5 --rules min-weights=0.5
    | 0 | kept min-flops & kept min-nodes & kept min-weights
--rules require=MatMul=0.5 --rules forbid-half=Exp --rules max-casts=1
    | 0 | kept require MatMul=0.5 & kept forbid-half Exp & kept max-casts 1
"""


@pytest.mark.parametrize(("flags", "exit_code", "phrases"), rows(RUNS))
def test_a_rule_is_kept_or_broken(model, flags, exit_code, phrases):
    """1 where one is broken, with its nodes, also with -q; one that nothing can break is a fault."""
    result = run("coverage", model, *flags.split())
    assert result.exit_code == int(exit_code)
    words = " ".join(result.stdout.split())
    assert all(phrase in words for phrase in phrases.split(" & "))


def test_quiet_prints_broken_rules_alone(model):
    """With the nodes that break them."""
    result = run("coverage", model, "--rules", "min-flops=0.9", "--rules", "max-casts=5", "-q")
    assert result.exit_code == 1
    assert result.stdout == "BROKEN   min-flops 0.9: 66.6 % of FLOPs in half\n           second\n"


def test_dimensions_have_the_sizes_that_are_given(model, tmp_path):
    """FLOPs of a batch of four."""
    run("coverage", model, "--dim", "n=4", "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["flops"]["half"] == 4 * 2 * 8 * 16
    assert (found["dims"], found["assumed"], found["ok"]) == ({"n": 4}, [], True)


def test_files_are_written_also_when_a_rule_is_broken(model, tmp_path):
    """They are written, since CI shows them."""
    paths = [tmp_path / name for name in ("found.json", "page.md", "junit.xml")]
    found, page, suite = paths
    flags = ("--json", found, "--report", f"markdown={page}", "--report", f"junit={suite}")
    result = run("coverage", model, "--rules", "min-nodes=1", *flags, "--report", "github")
    assert result.exit_code == 1
    assert json.loads(paths[0].read_text())["rules"][0]["nodes"] == ["second"]
    assert "BROKEN   min-nodes 1" in paths[1].read_text(encoding="utf-8")
    assert ET.parse(paths[2]).getroot().get("failures") == "1"
    assert "::error file=" in result.stdout


def test_a_file_of_rules_counts_and_flags_count_before_it(model, tmp_path):
    """A flag overrides the file; requirements add up."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("min-flops: 0.9\nrequire: {MatMul: 1.0}\ndims: {n: 2}\n")
    assert run("coverage", model, "--rules", rules, "-q").stdout.count("BROKEN") == 2
    eased = run(
        "coverage", model, "--rules", rules, "--rules", "min-flops=0.5", "--rules", "require=MatMul=0.5"
    )
    assert eased.exit_code == 0
    assert "open dimensions" not in eased.stdout


def test_a_baseline_is_written_and_then_held(model, tmp_path):
    """A report of that format, which the next run holds to, and a worse model breaks."""
    written = ("--report", f"baseline={tmp_path / 'coverage.json'}")
    held = ("--rules", f"baseline={tmp_path / 'coverage.json'}")
    assert run("coverage", model, *written).exit_code == 0
    assert run("coverage", model, *held, "--rules", "tolerance=0").exit_code == 0
    assert "--report baseline and --rules both name" in failure("coverage", model, *held, *written)
    worse = SOURCE.replace("float16[n, 8] x", "float[n, 8] x").replace("float16[8, 16]", "float[8, 16]")
    worse = worse.replace("[up] f = Cast <to = 1> (h)", "").replace("(f, w2)", "(h, w2)")
    onnx.save(text.model(worse), model)
    result = run("coverage", model, *held, "-q")
    assert result.exit_code == 1
    assert "BROKEN   baseline flops: 0 % of FLOPs in half, 66.6 % before" in result.stdout
    assert run("coverage", model, *written).exit_code == 0
    assert run("coverage", model, *held).exit_code == 0


MISTAKES = """
--rules min-flops=95
    | amp-rewrite: rule min-flops=95: min-flops 95 is not a share; write a share from 0 to 1, as in 0.95
--rules min-flops=nan       | rule min-flops=nan: min-flops nan is not a share
--rules min-flops=much      | rule min-flops=much: min-flops: expected float, got str; write a share
--rules min-flops=95%       | rule min-flops=95%: min-flops: expected float, got str; write a share
--rules tolerance=-1        | tolerance -1 is not a share
--rules require=MatMul | rule require=MatMul is not require=NAME=NUMBER; write it as in require=MatMul=0.95
--rules require=MatMul=x    | rule require=MatMul=x: require[...]: expected float, got str
--rules max-casts=x         | max-casts: expected int
--rules minflops=1          | there is no rule minflops; did you mean min-flops?
--report markdown=a.txt --report junit=a.txt | --report markdown and --report junit both name a.txt
--report x | --report x is not a report; write markdown=FILE, junit=FILE, baseline=FILE or github
--report markdown=          | --report markdown= is not a report
--rules forbid-half=Sofmax  | no operator is called Sofmax; did you mean Softmax?
--dim n               | --dim n is not NAME=SIZE
--dim m=3             | no open dimension 'm'; it leaves open n
--rules baseline=none.json  | there is no such baseline; write it with --report baseline=FILE
--rules none.yaml     | cannot be read
"""


@pytest.mark.parametrize(("flags", "message"), rows(MISTAKES))
def test_a_bad_request_is_one_line(model, flags, message):
    """Exit code 2, with a remedy."""
    line = failure("coverage", model, *flags.split())
    assert line == message if message.startswith("amp-rewrite: ") else message in line


def test_a_baseline_of_brackets_without_end(model, tmp_path):
    """A file that is nested too deeply is not a baseline; the error names the file."""
    (tmp_path / "deep.json").write_text("[" * 200_000)
    assert "deep.json: is not a coverage baseline" in failure(
        "coverage", model, "--rules", f"baseline={tmp_path / 'deep.json'}"
    )


def test_a_bad_model_is_one_line(tmp_path):
    """A missing file, and an invalid one."""
    assert "there is no such file" in failure("coverage", tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    assert "is not an ONNX model" in failure("coverage", tmp_path / "bad.onnx")


def test_assert_coverage_returns_what_it_found(model):
    """It takes a path or an object, and returns the coverage."""
    assert assert_coverage(model, min_flops=0.6, dims={"n": 4}).flops.half == 4 * 2 * 8 * 16
    assert assert_coverage(text.model(SOURCE), max_casts=1, forbid_half=["Exp"]).nodes.half == 1


@pytest.mark.parametrize("asked", [{"min_flops": 95}, {"tolerance": -1}, {"require": {"MatMul": 1.5}}])
def test_assert_coverage_refuses_what_is_no_share(model, asked):
    """A percentage in place of a share is a usage error, not a failed assertion."""
    with pytest.raises(OptionError, match="is not a share"):
        assert_coverage(model, **asked)


def test_assert_coverage_refuses_a_tolerance_of_nothing(model):
    """A tolerance without a baseline is an error, as on the command line."""
    with pytest.raises(
        OptionError, match="tolerance applies to a baseline only; give a baseline, or omit it"
    ):
        assert_coverage(model, tolerance=0.02)


def test_assert_coverage_tells_each_broken_rule_with_its_nodes(model, tmp_path):
    """Only broken rules raise AssertionError."""
    with pytest.raises(AssertionError) as caught:
        assert_coverage(model, min_flops=0.9, require={"MatMul": 1.0}, max_casts=1)
    assert str(caught.value) == (
        "min-flops 0.9: 66.6 % of FLOPs in half\n    second\n"
        "require MatMul=1: 50.0 % of 2 MatMul nodes in half\n    second"
    )
    with pytest.raises(OptionError):
        assert_coverage(model, baseline=tmp_path / "none.json")


def test_a_baseline_of_another_model_is_broken(model, tmp_path):
    """In every report, by each operator that the model lacks, as `require` is; if-present accepts that."""
    base, other = tmp_path / "base.json", tmp_path / "other.onnx"
    onnx.save(text.model("g (float[4] x) => (float[4] y) { a = Exp (x) b = Erf (a) y = Tanh (b) }"), other)
    held = ("--rules", f"baseline={base}")
    assert run("coverage", other, "--report", f"baseline={base}").exit_code == 0
    result = run("coverage", model, *held, "--report", "github")
    assert result.exit_code == 1
    for operator in ("Exp", "Erf", "Tanh"):
        line = f"baseline {operator}: the model has no {operator} node, 0 % before; if-present"
        assert f"BROKEN   {line}" in result.output
        assert f"coverage%3A baseline {operator}::" in result.output
    assert run("coverage", model, *held, "--rules", "if-present").exit_code == 0
    assert run("coverage", other, *held).exit_code == 0


def test_a_broken_model_does_not_stop_the_others(tmp_path):
    """The others are counted and reported, the broken one in every report, and the exit code is 2."""
    onnx.save(text.model(SOURCE), tmp_path / "b.onnx")
    (tmp_path / "a_broken.onnx").write_bytes(b"no model")
    reports = {name: tmp_path / name for name in ("all.json", "page.md", "cases.xml")}
    result = run(
        "coverage", tmp_path, "--rules", "min-nodes=0.1", "--json", reports["all.json"],
        "--report", f"markdown={reports['page.md']}", "--report", f"junit={reports['cases.xml']}",
        "--report", "github",
    )  # fmt: skip
    assert result.exit_code == 2
    assert "BROKEN   readable: " in result.output
    assert "kept     min-nodes 0.1" in result.output
    assert "::error file=" in result.output
    content = json.loads(reports["all.json"].read_text())
    assert [each["ok"] for each in content["models"]] == [False, True]
    assert "BROKEN   readable" in reports["page.md"].read_text()
    assert 'failures="0" errors="1"' in reports["cases.xml"].read_text()


def test_a_rule_of_a_flag_is_that_of_a_file(model, tmp_path, monkeypatch):
    """A baseline is where the command runs, and a truth value overrides that of the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert run("coverage", model, "--report", "baseline=sub/b.json").exit_code == 0
    assert run("coverage", model, "--rules", "baseline=sub/b.json").exit_code == 0
    (tmp_path / "r.yaml").write_text("require: {LSTM: 0.5}\nif-present: true\n")
    assert run("coverage", model, "--rules", "r.yaml").exit_code == 0
    assert run("coverage", model, "--rules", "r.yaml", "--rules", "if-present=false").exit_code == 1
