"""The output of `bench` in a terminal."""

import io

from amp_rewrite.console import Console
from amp_rewrite.reporting import terminal
from amp_rewrite.running.sessions import Device
from tests.benches import bench, latency


def printed(made):
    """What a terminal of 80 columns shows."""
    out = io.StringIO()
    terminal.print_bench(Console(file=out, width=80), made)
    return out.getvalue()


def test_the_table_has_a_column_for_each_model():
    """Figures are below the model's letter; TF32 is reported."""
    shown = printed(bench(latency("a.onnx", 4.0, tf32=True), latency("b.onnx", 2.0, speed=2.0)))
    assert "on CUDA, onnxruntime 1.31.1, 40 rounds" in shown
    assert "A  a.onnx (TF32 on)" in shown
    assert "B  b.onnx (TF32 off)" in shown
    rows = {line[:20].strip(): line[20:].split("  ") for line in shown.splitlines()}
    cells = {name: [cell.strip() for cell in row if cell.strip()] for name, row in rows.items()}
    assert cells["p50 ms"] == ["4.000", "2.000"]
    assert cells["speed against A"] == ["1.00x", "2.00x"]
    assert cells["with 90 % between"] == ["1.80 to 2.20"]


def test_on_the_cpu_there_is_no_tf32():
    """A name is printed as it is."""
    shown = printed(bench(latency("[bold]a", 1.0), device=Device.CPU))
    assert "[bold]a" in shown
    assert "TF32" not in shown


def test_letters_go_on_after_z():
    """Columns are named as in a spreadsheet."""
    names = terminal.letters(30)
    assert names[0] == "A"
    assert names[25:29] == ["Z", "AA", "AB", "AC"]
