"""The benchmark of accuracy, tried on a folder of models that is made here."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 4] x) => (float[4, 4] y) {
    [first] a = MatMul (x, x) [second] y = MatMul (a, x) }"""
FEEDS = """
import os, sys
import numpy as np
def feeds(entry, folder):
    if entry["name"] == "killed":
        os.abort()
    if entry["name"] == "odd":
        raise ValueError("nothing | fits")
    return {"x": np.linspace(0, entry["to"], 16, dtype=np.float32).reshape(4, 4)}
"""
MODELS = {
    "close": {"to": 1},
    "too_large": {"to": 1000},
    "too_small": {"to": 1e-5},
    "odd": {},
    "killed": {},
    "left_out": {"runs": False},
}


@pytest.fixture
def table(tmp_path):
    """The cells of every model's row, by its name, and the text that stands above."""
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    index = [{"name": name, "file": "model.onnx", "runs": True, **more} for name, more in MODELS.items()]
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "model_feeds.py").write_text(FEEDS)
    script = ROOT / "benchmarks" / "accuracy.py"
    subprocess.run(
        [sys.executable, script, tmp_path, tmp_path, "--markdown", tmp_path / "table.md"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        capture_output=True,
    )
    heading, _, rows = (tmp_path / "table.md").read_text().partition("|--:|---|\n")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return heading, {name: rest for name, *rest in cells}


@pytest.mark.slow
def test_every_model_has_a_row(table):
    """What runs is measured and names its worst node; what fails says why; what does not run is left out."""
    heading, rows = table
    assert "3 of 5" in heading
    assert set(rows) == set(MODELS) - {"left_out"}
    assert rows["close"][0] == "2 of 2"
    assert rows["close"][-1] in ("MatMul `first`", "MatMul `second`")
    assert rows["close"][2] == ""
    assert rows["too_large"][:4] == ["0 of 2", "0", "2", "0.0e+00"]
    assert float(rows["too_small"][3]) < 1e-2  # beside float16's smallest normal number
    assert rows["too_small"][-1] == "MatMul `first`"
    assert rows["odd"][-1] == "ValueError: nothing / fits"
    assert rows["killed"][-1] == "the process crashed"


def test_the_document_has_the_heading_of_the_script():
    """docs/accuracy.md is what the script writes, but for its numbers."""
    document = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    script = (ROOT / "benchmarks" / "accuracy.py").read_text(encoding="utf-8")
    heading = script.partition('HEADING = """')[2].partition('"""')[0]
    fixed = [line for line in heading.splitlines() if "{" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in document] == []
