"""Coverage rules: which are broken, and by which nodes."""

import json

from amp_rewrite.coverage import coverage_rules as coverage_rules
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import CoverageRules, percent
from amp_rewrite.errors import OptionError
from tests import text
from tests.edits import edits


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
