"""The scripts in examples/pipelines, each on its small model; slow, skipped without packages."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite import measure_coverage, verify

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "pipelines"
TORCH = ("torch", "onnxscript")
NEEDS = {
    "browser": TORCH,
    "decoder": (*TORCH, "transformers"),
    "detector": TORCH,
    "olive_pass": ("olive",),
    "ort_optimizer": (*TORCH, "transformers", "sympy", "coloredlogs", "psutil"),
    "torch_export": TORCH,
}
SAID = {
    "browser": "image: tensor(float) [1, 3, 64, 64]",
    "detector": "10 boxes of 10 are chosen from both",
    "ort_optimizer": "'SkipLayerNormalization': 4",
}


def test_every_script_is_listed_and_documented():
    """The table of packages has every script, and so have the page and the folder's README."""
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == set(NEEDS)
    for text in ((ROOT / "docs" / "python.md").read_text(), (FOLDER / "README.md").read_text()):
        assert all(f"`{name}.py`" in text for name in scripts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_script_makes_a_half_model(name, tmp_path):
    """What it writes loads, is valid, computes in half, has half weights, and passes the comparison."""
    for package in (*NEEDS[name], "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is missing")
    made = subprocess.run(
        [sys.executable, "-W", "ignore", str(FOLDER / f"{name}.py"), str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert made.returncode == 0, made.stderr
    assert SAID.get(name, "PASS") in made.stdout
    original, half = tmp_path / "model.onnx", tmp_path / "model_fp16.onnx"
    onnx.checker.check_model(half)
    assert measure_coverage(original).nodes.half == 0
    assert measure_coverage(half).nodes.half > 0
    io = "half" if name == "decoder" else "keep"
    with np.load(tmp_path / "inputs.npz") as sample:
        verdict = verify(original, half, dict(sample), io=io)
    assert verdict.ok, verdict.faults
