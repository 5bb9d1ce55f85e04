import sys
import types
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from amp_rewrite.errors import MissingPackageError, OptionError
from amp_rewrite.reporting import charts, timings
from amp_rewrite.reporting.charts import Bar, Chart
from amp_rewrite.running.footprint import Footprint
from amp_rewrite.running.latency import Bench, Latency, Spread
from amp_rewrite.running.profiles import Profile
from amp_rewrite.running.runners import Subject
from amp_rewrite.running.sessions import Device

SVG = "{http://www.w3.org/2000/svg}"


def latency(name, p50, *, speed=1.0, tf32=False, on_cpu=0, memory=2_500_000):
    """A latency of these figures."""
    profile = Profile(9, on_cpu, 4, 2, (("Unique", on_cpu),) if on_cpu else ())
    return Latency(
        subject=Subject(name, Path(name), tf32),
        p50=p50,
        p90=p50 * 1.5,
        p99=p50 * 2,
        throughput=1000 / p50,
        speedup=Spread(speed, speed * 0.9, speed * 1.1),
        size=1200,
        footprint=Footprint(0.25, memory, profile),
    )


def bench(*latencies, device=Device.CUDA):
    """A bench of them."""
    return Bench(latencies, device, 40, "1.31.1")


def texts(drawn):
    """All text of an SVG, in order."""
    return [element.text for element in ET.fromstring(drawn).iter(f"{SVG}text")]


def bars(drawn):
    """The lengths of the bars of an SVG."""
    rectangles = ET.fromstring(drawn).iter(f"{SVG}rect")
    return [float(r.get("width")) for r in rectangles if r.get("width") != "100%"]


def test_bars_are_as_long_as_the_medians():
    """The SVG has a bar for each model, in proportion, with its name and figures."""
    drawn = charts.svg(charts.chart(bench(latency("a.onnx", 4.0), latency("b.onnx", 1.0, speed=4.0))))
    first, second = bars(drawn)
    assert first == pytest.approx(4 * second, rel=0.01)
    assert texts(drawn)[0] == "Latency on CUDA in ms: median, whisker to p90"
    assert texts(drawn)[1:] == [
        "a.onnx (TF32 off)",
        "4 ms, 1.00x",
        "b.onnx (TF32 off)",
        "1 ms, 4.00x",
    ]


def test_everything_stays_inside_the_picture():
    """No bar, whisker or note begins outside the width."""
    drawn = charts.svg(charts.chart(bench(latency("a", 100.0), latency("b", 0.01))))
    tree = ET.fromstring(drawn)
    ends = [float(line.get("x2")) for line in tree.iter(f"{SVG}line")]
    starts = [float(text.get("x")) for text in tree.iter(f"{SVG}text")]
    assert max(*ends, *starts) < charts.WIDTH - 100


def test_names_cannot_break_the_picture():
    """A name with markup in it is text, and stays what it is."""
    name = """<script>alert("&'")</script>{x}%s"""
    drawn = charts.svg(charts.chart(bench(latency(name, 1.0), device=Device.CPU)))
    assert name in texts(drawn)
    assert not list(ET.fromstring(drawn).iter(f"{SVG}script"))


def test_a_chart_of_nothing_is_a_picture():
    """No bars and bars of no length are drawn as well."""
    assert bars(charts.svg(Chart("empty", ()))) == []
    assert bars(charts.svg(Chart("zero", (Bar("a", 0.0, 0.0, ""),)))) == [0.0]


def test_the_name_says_which_picture(tmp_path):
    """.svg and .png are drawn; anything else is refused before anything is measured."""
    assert charts.drawing(Path("a.SVG")) is charts.svg
    with pytest.raises(OptionError, match=r"neither \.svg nor \.png"):
        charts.drawing(Path("a.gif"))
    charts.write(bench(latency("a", 1.0)), tmp_path / "a.svg")
    assert texts((tmp_path / "a.svg").read_bytes())[1] == "a (TF32 off)"


def test_png_needs_matplotlib(monkeypatch):
    """Without it the error names the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="matplotlib") as caught:
        charts.drawing(Path("a.png"))
    assert "amp-rewrite[plots]" in str(caught.value)


class FakeAxes(types.SimpleNamespace):
    """Axes that record what is drawn."""

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, given, named))


def test_png_has_the_same_bars():
    """matplotlib gets the same lengths, and labels in which nothing is a formula."""
    axes = FakeAxes(calls=[])
    charts._draw(axes, "t", (Bar("$a", 2.0, 3.0, "n"), Bar("b", 1.0, 1.0, "m")))
    calls = {name: (given, named) for name, given, named in axes.calls}
    assert calls["barh"][0][1] == [2.0, 1.0]
    assert calls["barh"][1]["xerr"] == [[0.0, 0.0], [1.0, 0.0]]
    assert calls["set_yticks"][0][1] == [r"\$a", "b"]


def test_png_is_drawn_where_matplotlib_is():
    """The file begins as PNG files do."""
    pytest.importorskip("matplotlib")
    drawn = charts.png(charts.chart(bench(latency("a $ b", 1.0), latency("b", 2.0))))
    assert drawn.startswith(b"\x89PNG")


def printed(made):
    """What a terminal of 80 columns shows."""
    console = Console(width=80, highlight=False, soft_wrap=True)
    with console.capture() as capture:
        timings.print_bench(console, made)
    return capture.get()


def test_the_table_has_a_column_for_each_model():
    """Figures stand under the model's letter; TF32 and what fell to the CPU are said."""
    shown = printed(bench(latency("a.onnx", 4.0, tf32=True), latency("b.onnx", 2.0, speed=2.0, on_cpu=3)))
    assert "on CUDA, onnxruntime 1.31.1, 40 rounds" in shown
    assert "A  a.onnx (TF32 on)" in shown
    assert "B  b.onnx (TF32 off)" in shown
    rows = {line[:20].strip(): line[20:].split("  ") for line in shown.splitlines()}
    cells = {name: [cell.strip() for cell in row if cell.strip()] for name, row in rows.items()}
    assert cells["p50 ms"] == ["4.000", "2.000"]
    assert cells["speed against A"] == ["1.00x", "2.00x"]
    assert cells["with 90 % between"] == ["1.80 to 2.20"]
    assert cells["nodes on the CPU"] == ["0 of 9", "3 of 9"]
    assert cells["Casts that ran"] == ["4", "4"]
    assert "B on the CPU: 3 Unique" in shown


def test_what_was_not_measured_is_not_a_number():
    """Memory that could not be read, and the CPU's nodes on the CPU, are n/a."""
    shown = printed(bench(latency("[bold]a", 1.0, memory=None, on_cpu=3), device=Device.CPU))
    assert shown.count("n/a") == 2
    assert "[bold]a" in shown
    assert "TF32" not in shown


def test_letters_go_on_after_z():
    """Columns are named as in a spreadsheet."""
    names = timings.letters(30)
    assert names[0] == "A"
    assert names[25:29] == ["Z", "AA", "AB", "AC"]
