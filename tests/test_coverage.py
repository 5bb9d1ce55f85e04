"""Coverage: its counts, rules, faces and documentation; counts by hand are in counts.transcript."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import onnx
import pytest
import yaml

import amp_rewrite
from amp_rewrite.console import Console
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import CoverageRules, check, percent
from amp_rewrite.coverage.faces import (
    MeasuredModel,
    commands,
    flops,
    junit,
    markdown,
    print_checks,
    print_coverage,
)
from amp_rewrite.demo import network
from amp_rewrite.errors import OptionError
from amp_rewrite.testing import assert_coverage
from tests import real_models, text
from tests.edits import edits


@pytest.mark.parametrize(
    "name",
    ["bert_tiny_qa.legacy", "silero_vad_v6", "yolox_nano", "llama_tiny_ort_fused", "swin2sr_x2.legacy"],
)
def test_a_report_counts_the_nodes_that_coverage_counts(name):
    """Of the result: without Casts, Shapes, empty inputs and ports of a fixed type; bodies included."""
    result = amp_rewrite.rewrite(real_models.path(name).read_bytes())
    reported, counted = result.report.nodes, amp_rewrite.measure_coverage(result.model).nodes
    assert (reported.half, reported.mixed, reported.full) == (counted.half, counted.mixed, counted.full)


# ---- coverage rules: which are broken, and by which nodes


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
    return coverage_rules.collect([path])


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


# ---- terminal, Markdown, JUnit and annotations: the same numbers, with all names escaped

SOURCE = """g (float16[2, 8] x) => (float[2, 4] y) <float16[8, 16] w1, float[16, 4] w2> {
  [first] h = MatMul (x, w1)
  [up] f = Cast <to = 1> (h)
  [second] y = MatMul (f, w2)
}"""
EVIL = "a\n::error::b|<script>alert('x')</script>\x1b[31m\x00%"
RULES = CoverageRules(min_flops=0.9, forbid_half=("MatMul",), max_casts=3)


@pytest.fixture(scope="module")
def evil():
    """The same model with an unknown operator and hostile names."""
    proto = text.unchecked(
        f"""<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        {SOURCE.replace("float[2, 4] y", "float[2, 4] y, u").replace("}", "[odd] u = mine.Odd (y) }")}"""
    )
    for node in proto.graph.node:
        node.name = EVIL + node.name
    return measure(proto)


def terminal(found, checks):
    """What is printed."""
    out = io.StringIO()
    console = Console(file=out, width=40)
    print_coverage(console, found)
    print_checks(console, checks)
    return out.getvalue()


def test_names_from_a_model_are_only_names(evil):
    """No second command in a log, no tag in a page, no broken XML, no colours in a terminal."""
    checks = check(evil, RULES)
    shown = terminal(evil, checks)
    assert not re.search(r"[\x00\x1b]", shown)
    assert not re.search(r"(?m)^::", shown)
    assert "mine:Odd" in evil.assumptions[0]
    for line in commands(MeasuredModel("m.onnx", evil, checks)):
        assert not re.search(r"[\n\r\x00\x1b]", line)
        assert re.match(r"::(error|warning|notice) file=m\.onnx,title=", line)
    page = markdown([MeasuredModel("a```b", evil, checks)]).decode()
    assert page.startswith("```text\n")
    assert page.find("```", 3) == len(page) - len("```\n")
    failures = ET.fromstring(junit([MeasuredModel(EVIL, evil, checks)])).iter("failure")
    assert any("<script>" in failure.text for failure in failures)


def test_flops_are_written_for_people():
    """Powers of a thousand."""
    counts = (0, 999, 1200, 3_400_000, 5_600_000_000, 7 * 10**12)
    assert [flops(c) for c in counts] == ["0", "999", "1.2 k", "3.4 M", "5.6 G", "7.0 T"]


def test_of_many_nodes_the_first_are_named():
    """The terminal lists ten nodes; JUnit lists all."""
    lines = "\n".join(f"  [n{i}] v{i} = Relu (v{i - 1})" for i in range(1, 31))
    found = measure(text.model(f"g (float[2] v0) => (float[2] v30) {{\n{lines}\n}}"))
    checks = check(found, CoverageRules(min_nodes=1.0))
    assert "           and 20 more" in terminal(found, checks)
    (failure,) = ET.fromstring(junit([MeasuredModel("m", found, checks)])).iter("failure")
    assert failure.text.splitlines()[1:] == [f"n{i}" for i in range(1, 31)]


# ---- the coverage documentation: the workflow's commands run, the rules load, the Python blocks run

DOCS = Path(__file__).parents[1] / "docs"
WORKFLOW = yaml.safe_load((DOCS / "coverage-workflow.yml").read_text(encoding="utf-8"))
PAGE = (DOCS / "ci.md").read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path):
    """A repository with a model and rules where the workflow wants them, and the command in PATH."""
    for folder in ("models", ".github", "bin"):
        (tmp_path / folder).mkdir()
    onnx.save(network(), tmp_path / "models" / "model.onnx")
    (tmp_path / ".github" / "coverage-rules.yaml").write_bytes((DOCS / "coverage-rules.yaml").read_bytes())
    command = tmp_path / "bin" / "amp-rewrite"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amp_rewrite "$@"\n')
    command.chmod(0o755)
    return tmp_path


def test_the_steps_of_the_workflow_run(checkout):
    """All steps but the installation run in order, as on a runner; the summary is a page."""
    steps = [step for step in WORKFLOW["jobs"]["coverage"]["steps"] if "run" in step]
    assert [step["name"] for step in steps] == ["Install", "Rewrite", "Precision coverage", "Summary"]
    environment = {
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "GITHUB_STEP_SUMMARY": str(checkout / "summary.md"),
        **WORKFLOW["env"],
    }
    for step in steps[1:]:
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    summary = (checkout / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("```text\nPrecision coverage of model_half.onnx\nkept ")


def test_every_key_of_a_rule_file_is_in_the_page():
    """The table has every key."""
    for name in coverage_rules.NAMES:
        assert f"`{name}: " in PAGE


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_a_python_block_runs(block):
    """Each block runs as it is."""
    exec(compile(block, "block", "exec"), {})


# ---- `assert_coverage`, the twin of `amp-rewrite coverage` for test suites

MIXED = """g (float16[n, 8] x) => (float[n, 4] y) <float16[8, 16] w1, float[16, 4] w2> {
  [first] h = MatMul (x, w1)
  [up] f = Cast <to = 1> (h)
  [second] y = MatMul (f, w2)
}"""


@pytest.fixture
def model(tmp_path):
    """A model with two thirds of its FLOPs in half."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(MIXED), path)
    return path


def test_assert_coverage_returns_what_it_found(model):
    """It takes a path or an object, and returns the coverage."""
    assert assert_coverage(model, min_flops=0.6, dims={"n": 4}).flops.half == 4 * 2 * 8 * 16
    assert assert_coverage(text.model(MIXED), max_casts=1, forbid_half=["Exp"]).nodes.half == 1


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"min_flops": 95}, "is not a share"),
        ({"tolerance": -1}, "is not a share"),
        ({"require": {"MatMul": 1.5}}, "is not a share"),
        ({"tolerance": 0.02}, "tolerance applies to a baseline only; give a baseline, or omit it"),
        ({"baseline": "none.json"}, "none.json"),
    ],
)
def test_assert_coverage_refuses_what_makes_no_sense(model, asked, problem):
    """A percentage in place of a share, or no baseline, is a usage error, not a failed assertion."""
    with pytest.raises(OptionError, match=problem):
        assert_coverage(model, **asked)


def test_assert_coverage_tells_each_broken_rule_with_its_nodes(model):
    """Only broken rules raise AssertionError."""
    with pytest.raises(AssertionError) as caught:
        assert_coverage(model, min_flops=0.9, require={"MatMul": 1.0}, max_casts=1)
    assert str(caught.value) == (
        "min-flops 0.9: 66.6 % of FLOPs in half\n    second\n"
        "require MatMul=1: 50.0 % of 2 MatMul nodes in half\n    second"
    )
