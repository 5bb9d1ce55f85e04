"""The benchmarks of a folder of models that have no test of their own, tried on a small one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite.demo import feeds, network

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture
def zoo(tmp_path):
    """A folder with a network and its inputs, and one without inputs, which is left out."""
    (tmp_path / "demo").mkdir()
    onnx.save(network(), tmp_path / "demo" / "model.onnx")
    np.savez(tmp_path / "demo" / "model.npz", **feeds())
    onnx.save(network(seed=1), tmp_path / "without.onnx")
    return tmp_path


def run(script, *arguments, check=True):
    """Runs a benchmark of this checkout as a process."""
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *map(str, arguments)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=check,
        capture_output=True,
        text=True,
    )


def test_emulation_compares_the_models_that_have_inputs(zoo):
    """One row, with the time of float32 and the ratio; a bound that nothing reaches is an error."""
    run("emulation.py", zoo, "--shortest", 0, "--json", zoo / "out.json")
    (row,) = json.loads((zoo / "out.json").read_text())["rows"]
    assert row["model"] == "demo"
    assert row["ratio"] > 0
    refused = run("emulation.py", zoo, "--shortest", 1000, check=False)
    assert refused.returncode == 2
    assert "lower --shortest" in refused.stderr


def test_calibration_repeats_the_sample(zoo):
    """Plain and observed runs of as many samples as were asked for."""
    run("calibration.py", zoo, "--samples", 3, "--shortest", 0, "--json", zoo / "out.json")
    (row,) = json.loads((zoo / "out.json").read_text())["rows"]
    assert row["model"] == "demo"
    assert row["observed_mb"] > 0


def test_tuning_has_a_row_for_the_model(zoo):
    """The table names the command that made it."""
    run("tuning.py", zoo, "--markdown", zoo / "out.md", "--max-error", "1e-3", "demo")
    page = (zoo / "out.md").read_text()
    assert "`python benchmarks/tuning.py FOLDER --max-error 0.001 --prefer flops demo`" in page
    assert "\n| demo | " in page


def test_comparison_has_a_row_for_each_tool_that_is_there(zoo):
    """Without other environments these are ours and onnxruntime's; each has totals and an error."""
    run("comparison.py", zoo, "--markdown", zoo / "out.md")
    page = (zoo / "out.md").read_text()
    assert "1 models of at most 20 MB" in page.replace("\n", " ")
    totals, _, errors = page.partition("## Errors, model by model")
    assert "| amp-rewrite | 1 | 1 | 1 | 1 | 1 | 1 |" in totals
    assert "\n| onnxruntime | " in totals
    (row,) = [line for line in errors.splitlines() if line.startswith("| demo |")]
    assert float(row.split("|")[2]) < 1e-3


def test_a_folder_without_models_is_said(tmp_path):
    """In one line, not as a traceback."""
    refused = run("coverage.py", tmp_path, check=False)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"{tmp_path}: holds no .onnx file"
