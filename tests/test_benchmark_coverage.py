"""The benchmark of coverage, tried on a folder of models that is made here."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

ROOT = Path(__file__).parents[1]
NETWORK = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y) {
    [turn] t = Transpose (x) [first] a = MatMul (x, t) [second] y = MatMul (a, x) }"""
DENIED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[1, 2, 4, 4] x, float[2, 2, 3, 3] w) => (float[1, 2, 2, 2] y) {
    [conv] y = com.microsoft.FusedConv <activation = "Softplus"> (x, w) }"""
EXP = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Exp (x) }"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What the script writes for these models."""
    folder = tmp_path_factory.mktemp("models")
    texts = {"network": NETWORK, "still": NETWORK, "denied": DENIED, "exp": EXP}
    for name, text in texts.items():
        onnx.save(parser.parse_model(text), folder / f"{name}.onnx")
    np.savez(folder / "network.npz", x=np.zeros((3, 4), np.float32))
    (folder / "broken.onnx").write_bytes(b"no model")
    script = ROOT / "benchmarks" / "coverage.py"
    subprocess.run(
        [sys.executable, script, folder, "--markdown", folder / "table.md"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        capture_output=True,
    )
    return (folder / "table.md").read_text()


@pytest.fixture(scope="module")
def rows(page):
    """The cells of every model's row, by its name."""
    _, _, table = page.partition("|---|--:|--:|--:|--:|--:|---|\n")
    lines = table.partition("\n\n")[0].splitlines()
    return {
        name: rest
        for name, *rest in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    }


def test_a_network_is_counted_at_the_size_of_its_inputs(rows):
    """Three rows as its input has; one without inputs counts one."""
    assert rows["network"][:5] == ["100 %", "144", "100 %", "n/a", "2"]
    assert rows["still"][1] == "65.5 k"


def test_what_holds_a_model_back_is_named(rows):
    """With its share, and why."""
    assert rows["denied"][-1] == (
        "100 % of FLOPs, 1 node: com.microsoft:FusedConv: "
        "stays float32: onnxruntime-cuda has no float16 kernel (target)"
    )
    assert "FOLDER/broken.onnx: " in rows["broken"][-1]


def test_networks_below_the_bound_stand_below_the_table(page):
    """A model without products is none, whatever its share."""
    assert "3 of the 5 models are networks" in page
    assert " 2 of these have at least 90 %" in page.replace("\n", " ")
    _, _, below = page.partition("## Networks below 90 % of FLOPs in half\n")
    assert [line.split("**")[1] for line in below.splitlines() if line.startswith("- ")] == ["denied"]


def test_the_document_has_the_heading_of_the_script():
    """docs/coverage.md is what the script writes, but for its numbers."""
    document = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    script = (ROOT / "benchmarks" / "coverage.py").read_text(encoding="utf-8")
    heading = script.partition('HEADING = """')[2].partition('"""')[0]
    fixed = [line for line in heading.splitlines() if "{" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in document] == []
