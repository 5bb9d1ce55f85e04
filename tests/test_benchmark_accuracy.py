"""The benchmark of accuracy, tried on a folder of models that is made here."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 4] x) => (float[4, 4] y) {
    [first] a = MatMul (x, x) [second] y = MatMul (a, x) }"""
GREATEST = {"close": 1, "deep/too_large": 1000, "too_small": 1e-5}
"""The greatest number of the sample beside each model that has a good one."""

ABORTS = "import os, sys\nif '--one' in sys.argv and 'killed' in sys.argv:\n    os.abort()\n"
"""A sitecustomize with which the process of one model dies as of a crash."""


@pytest.fixture
def table(tmp_path):
    """The cells of every model's row, by its name, and the text that stands above."""
    for name in (*GREATEST, "odd|", "killed", "left_out", "alone/model"):
        path = tmp_path / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        onnx.save(parser.parse_model(MODEL), path)
        if name != "left_out":
            sample = np.linspace(0, GREATEST.get(name, 1), 16, dtype=np.float32).reshape(4, 4)
            np.savez(path.with_suffix(".npz"), **{"x" if name != "odd|" else "z": sample})
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ABORTS)
    script = ROOT / "benchmarks" / "accuracy.py"
    subprocess.run(
        [sys.executable, script, tmp_path, "--markdown", tmp_path / "table.md"],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path / 'site'}", "PATH": ""},
        check=True,
        capture_output=True,
    )
    heading, _, rows = (tmp_path / "table.md").read_text().partition("|--:|---|\n")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return heading, {name: rest for name, *rest in cells}


@pytest.mark.slow
def test_every_model_has_a_row(table):
    """What has inputs is measured and names its worst node; what fails says why; the rest is left out."""
    heading, rows = table
    assert "3 of 6" in heading  # half makes zeros of all that too_small computes: inconclusive
    assert set(rows) == {*GREATEST, "alone", "odd/", "killed"}
    assert rows["close"][0] == "2 of 2"
    assert rows["close"][-1] in ("MatMul `first`", "MatMul `second`")
    assert rows["close"][2] == ""
    assert rows["deep/too_large"][:4] == ["0 of 2", "0", "2", "0.0e+00"]
    assert float(rows["too_small"][3].strip("*")) < 1e-2  # beside float16's smallest normal number
    assert rows["too_small"][-1] == "MatMul `first`"
    assert "the model has no input 'z'" in rows["odd/"][-1]
    assert rows["killed"][-1] == "the process crashed"


def test_the_document_has_the_heading_of_the_script():
    """docs/accuracy.md is what the script writes, but for its numbers."""
    document = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    script = (ROOT / "benchmarks" / "accuracy.py").read_text(encoding="utf-8")
    heading = script.partition('HEADING = """')[2].partition('"""')[0]
    fixed = [line for line in heading.splitlines() if "{" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in document] == []
