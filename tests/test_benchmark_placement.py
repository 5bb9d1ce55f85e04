"""The benchmark of placement: the page that it writes of placements, and how it makes a result."""

import importlib
import sys
from pathlib import Path

import onnx
import pytest

from amp_rewrite.placement.placement import CpuReason, OnCpu, Placement
from tests import text

ROOT = Path(__file__).parents[1]


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


def test_one_half_type_may_be_asked_for(benchmark):
    """Then the page has its columns alone."""
    row = benchmark.Row("good", Placement(operators={"MatMul": 10}), {"bfloat16": Placement()})
    page = benchmark.markdown([row], stubs=False, halves=("bfloat16",))
    assert "float16 |" not in page.replace("bfloat16 |", "")
    assert "| good | 10 | 0 | 0 | 0 | 0 |  |" in page
