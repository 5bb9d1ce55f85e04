"""The benchmarks of a folder of models, tried on small folders that are made here."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from amp_rewrite.demo import feeds, network
from amp_rewrite.placement.placement import CpuReason, OnCpu, Placement
from tests import text

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]


def run(script, *arguments, check=True, path=()):
    """Runs a benchmark of this checkout as a process."""
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *map(str, arguments)],
        env={"PYTHONPATH": ":".join(map(str, (ROOT, *path))), "PATH": ""},
        check=check,
        capture_output=True,
        text=True,
    )


def cells_of(rows):
    """The cells of every model's row of a Markdown table, by its name."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return {name: rest for name, *rest in cells}


@pytest.mark.parametrize("name", ["accuracy", "coverage"])
def test_the_document_has_the_heading_of_the_script(name):
    """A page is what its script writes, but for its numbers."""
    document = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
    script = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    heading = script.partition('HEADING = """')[2].partition('"""')[0]
    fixed = [line for line in heading.splitlines() if "{" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in document] == []


# ---- accuracy

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 4] x) => (float[4, 4] y) {
    [first] a = MatMul (x, x) [second] y = MatMul (a, x) }"""
GREATEST = {"close": 1, "deep/too_large": 1000, "too_small": 1e-5}
"""The greatest number of the sample beside each model that has a good one."""

ABORTS = "import os, sys\nif '--one' in sys.argv and 'killed' in sys.argv:\n    os.abort()\n"
"""A sitecustomize with which the process of one model dies as of a crash."""


@pytest.mark.slow
def test_accuracy_has_a_row_for_every_model(tmp_path):
    """What has inputs is measured and names its worst node; what fails says why; the rest is left out."""
    for name in (*GREATEST, "odd|", "killed", "left_out", "alone/model"):
        path = tmp_path / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        onnx.save(parser.parse_model(MODEL), path)
        if name != "left_out":
            sample = np.linspace(0, GREATEST.get(name, 1), 16, dtype=np.float32).reshape(4, 4)
            np.savez(path.with_suffix(".npz"), **{"x" if name != "odd|" else "z": sample})
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ABORTS)
    run("accuracy.py", tmp_path, "--markdown", tmp_path / "table.md", path=[tmp_path / "site"])
    heading, _, table = (tmp_path / "table.md").read_text().partition("|--:|---|\n")
    rows = cells_of(table)
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


# ---- coverage

NETWORK = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y) {
    [turn] t = Transpose (x) [first] a = MatMul (x, t) [second] y = MatMul (a, x) }"""
DENIED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[1, 2, 4, 4] x, float[2, 2, 3, 3] w) => (float[1, 2, 2, 2] y) {
    [conv] y = com.microsoft.FusedConv <activation = "Softplus"> (x, w) }"""
EXP = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Exp (x) }"""


@pytest.mark.slow
def test_coverage_names_what_holds_a_model_back(tmp_path):
    """Models are counted at the size of their inputs, or at one; networks below the bound stand below the
    table, and a model without products is none, whatever its share.
    """
    for name, source in {"network": NETWORK, "still": NETWORK, "denied": DENIED, "exp": EXP}.items():
        onnx.save(parser.parse_model(source), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "network.npz", x=np.zeros((3, 4), np.float32))
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    run("coverage.py", tmp_path, "--markdown", tmp_path / "table.md")
    page = (tmp_path / "table.md").read_text()
    _, _, table = page.partition("|---|--:|--:|--:|--:|--:|---|\n")
    rows = cells_of(table.partition("\n\n")[0])
    assert rows["network"][:5] == ["100 %", "144", "100 %", "n/a", "2"]
    assert rows["still"][1] == "65.5 k"
    assert rows["denied"][-1] == (
        "100 % of FLOPs, 1 node: com.microsoft:FusedConv: "
        "stays float32: onnxruntime-cuda has no float16 kernel (target)"
    )
    assert "FOLDER/broken.onnx: " in rows["broken"][-1]
    assert "3 of the 5 models are networks" in page
    assert " 2 of these have at least 90 %" in page.replace("\n", " ")
    _, _, below = page.partition("## Networks below 90 % of FLOPs in half\n")
    assert [line.split("**")[1] for line in below.splitlines() if line.startswith("- ")] == ["denied"]


# ---- emulation, calibration, tuning, comparison


@pytest.fixture
def zoo(tmp_path):
    """A folder with a network and its inputs, and one without inputs, which is left out."""
    (tmp_path / "demo").mkdir()
    onnx.save(network(), tmp_path / "demo" / "model.onnx")
    np.savez(tmp_path / "demo" / "model.npz", **feeds())
    onnx.save(network(seed=1), tmp_path / "without.onnx")
    return tmp_path


@pytest.mark.slow
def test_emulation_and_calibration_have_a_row_for_each_model_with_inputs(zoo):
    """With times and ratios; a bound that nothing reaches is an error, and so is a folder without models."""
    out = zoo / "out.json"
    for script, more, key in (("emulation", (), "ratio"), ("calibration", ("--samples", 3), "observed_mb")):
        run(f"{script}.py", zoo, *more, "--shortest", 0, "--json", out)
        (row,) = json.loads(out.read_text())["rows"]
        assert row["model"] == "demo"
        assert row[key] > 0
    refused = run("emulation.py", zoo, "--shortest", 1000, check=False)
    assert refused.returncode == 2
    assert "lower --shortest" in refused.stderr
    refused = run("coverage.py", zoo / "demo" / "none", check=False)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"{zoo / 'demo' / 'none'}: holds no .onnx file"


@pytest.mark.slow
def test_tuning_has_a_row_for_the_model(zoo):
    """The table names the command that made it."""
    run("tuning.py", zoo, "--markdown", zoo / "out.md", "--max-error", "1e-3", "demo")
    page = (zoo / "out.md").read_text()
    assert "`python benchmarks/tuning.py FOLDER --max-error 0.001 --prefer flops demo`" in page
    assert "\n| demo | " in page


@pytest.mark.slow
def test_comparison_has_a_row_for_each_tool_that_is_there(zoo):
    """Without other environments these are ours and onnxruntime's; each has totals and an error."""
    run("comparison.py", zoo, "--markdown", zoo / "out.md")
    page = (zoo / "out.md").read_text()
    assert "1 models of at most 20 MB" in page.replace("\n", " ")
    totals, _, errors = page.partition("## Errors, model by model")
    assert "| the model itself | 1 | 1 | 1 | 1 | 0 | 1 |" in totals
    assert "| amp-rewrite | 1 | 1 | 1 | 1 | 1 | 1 |" in totals
    assert "| amp-rewrite, the command, for TensorRT | 1 | 1 | 1 | 1 | 1 | 1 |" in totals
    assert "\n| onnxruntime | " in totals
    (row,) = [line for line in errors.splitlines() if line.startswith("| demo |")]
    assert float(row.split("|")[2]) < 1e-3


# ---- placement


@pytest.fixture
def benchmark(monkeypatch):
    """The script as a module, on a machine with versions of everything."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("placement")
    monkeypatch.delitem(sys.modules, "placement")
    monkeypatch.setattr(module, "version", lambda name: f"of {name}")
    return module


def test_the_page_has_totals_ratios_and_what_does_not_load(benchmark):
    """Totals are of models that load as they are; a result that does not load is marked."""
    full = {"MatMul": 6, "Det": 1, "com.microsoft:BiasGelu": 3}
    plain = Placement(
        operators={"MatMul": 10}, full=full, on_cpu=(OnCpu("MatMul", "float32", CpuReason.PREFERRED, 2),)
    )
    worse = Placement(operators={"MatMul": 9, "MemcpyToHost": 2}, half={"MatMul": 9})
    refused = Placement(refused="no kernel for <Cast>")
    rows = [
        benchmark.Row("good", plain, {"float16": worse, "bfloat16": refused}),
        benchmark.Row("bad", refused, {"float16": plain, "bfloat16": plain}),
    ]
    page = benchmark.markdown(rows, stubs=True)
    assert "stub CUDA libraries" in page
    assert "| float32 | 1 of 1 | 10 | 10 | 0 | 10 | 7 | 0 | 0 | 0 | 2 |" in page
    assert "| float16 | 1 of 1 | 11 | 10 | 9 | 0 | 0 | 0 | 0 | 2 | 0 |" in page
    assert "| float16 | 1.10 | 1.10 | 100% | good 1.10 |" in page
    assert "| bfloat16 | | | | |" in page
    assert "| good | 10 | 11 | 9 | 0 | 0 | copies 0 -> 2 | **does not load** |" in page
    assert "- **good** (bfloat16): no kernel for &lt;Cast>" in page
    assert "- **bad** (float32)" in page
    page = benchmark.markdown([rows[0]], stubs=False, halves=("bfloat16",))
    assert "float16 |" not in page.replace("bfloat16 |", "")
    assert "| good | 10 | " in page


def test_a_model_is_placed_as_it_is_and_in_each_half(benchmark, tmp_path):
    """A result that cannot be made has a reason, too."""
    seen = []

    def place(path, _feeds):
        seen.append(onnx.load(path).graph.initializer[0].data_type)
        return Placement()

    path = tmp_path / "m.onnx"
    onnx.save(text.model("g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> { y = MatMul (x, w) }"), path)
    assert benchmark.placed("m", path, place).results == {"float16": Placement(), "bfloat16": Placement()}
    assert seen == [1, 10, 16]
    path.write_bytes(b"no model")
    row = benchmark.placed("m", path, lambda *_: Placement())
    assert row.results["float16"].refused.startswith("not rewritten: ")
