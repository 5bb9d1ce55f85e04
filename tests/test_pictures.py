"""Pictures, drawn as SVG."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from amp_rewrite.errors import OptionError
from amp_rewrite.reporting import charts, pictures
from amp_rewrite.reporting.pictures import Anchor, Dot, Line, Picture, Rect, Text, Tone
from amp_rewrite.running.sessions import Device
from tests.benches import bench, latency

SVG = "{http://www.w3.org/2000/svg}"
EACH = Picture(
    "one of each",
    100,
    50,
    (
        Rect(0, 0, 10, 20, Tone.HALF),
        Line(0, 0, 5, 5, Tone.MUTED, dash=True),
        Dot(7, 8, 2, Tone.BAD, "a dot"),
        Text(1, 2, "$words$", Anchor.END, 11, bold=True),
    ),
)


def texts(drawn):
    """All text of an SVG, in order."""
    return [element.text for element in ET.fromstring(drawn).iter(f"{SVG}text")]


def bars(drawn):
    """The lengths of the bars of an SVG."""
    rectangles = ET.fromstring(drawn).iter(f"{SVG}rect")
    return [float(r.get("width")) for r in rectangles if r.get("width") != "100%"]


def test_bars_are_as_long_as_the_medians():
    """The SVG has a bar for each model, in proportion, with its name and figures."""
    drawn = pictures.svg(charts.latencies(bench(latency("a.onnx", 4.0), latency("b.onnx", 1.0, speed=4.0))))
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
    drawn = pictures.svg(charts.latencies(bench(latency("a", 100.0), latency("b", 0.01))))
    tree = ET.fromstring(drawn)
    ends = [float(line.get("x2")) for line in tree.iter(f"{SVG}line")]
    starts = [float(text.get("x")) for text in tree.iter(f"{SVG}text")]
    assert max(*ends, *starts) < charts.WIDTH - 100


def test_names_cannot_break_the_picture():
    """Markup in a name stays text; characters that XML forbids are replaced."""
    name = """<script>alert("&'")</script>{x}%s"""
    drawn = pictures.svg(charts.latencies(bench(latency(name, 1.0), device=Device.CPU)))
    assert name in texts(drawn)
    assert not list(ET.fromstring(drawn).iter(f"{SVG}script"))
    odd = pictures.svg(Picture("t", 9, 9, (Text(0, 0, "a\x00\ud800\u2028b"),)))
    assert texts(odd)[-1] == "a\ufffd\ufffd\ufffdb"


def test_a_chart_of_nothing_is_a_picture():
    """A chart without bars, and one with bars of no length, can be drawn."""
    assert bars(pictures.svg(charts.latencies(bench()))) == []
    zero = replace(latency("zero", 1.0), p50=0.0, p90=0.0)
    assert bars(pictures.svg(charts.latencies(bench(zero)))) == [0.0]


def test_svg_has_every_shape():
    """Each shape is one element, at its position and in its colour."""
    (group,) = ET.fromstring(pictures.svg(EACH)).iter(f"{SVG}g")
    rect, line, dot, text = group
    assert (rect.get("width"), rect.get("height"), rect.get("fill")) == ("10.0", "20.0", Tone.HALF.value)
    assert (line.get("x2"), line.get("stroke-dasharray")) == ("5.0", "4 3")
    assert (dot.get("r"), dot.find(f"{SVG}title").text) == ("2.0", "a dot")
    assert (text.text, text.get("text-anchor"), text.get("font-weight")) == ("$words$", "end", "bold")


def test_the_page_gets_every_shape_as_data():
    """The page's scripts get the same shapes."""
    shapes = pictures.plain(EACH)["shapes"]
    assert [shape["shape"] for shape in shapes] == ["rect", "line", "dot", "text"]
    assert shapes[0] == {"shape": "rect", "x": 0, "y": 0, "w": 10, "h": 20, "tone": "half"}
    assert shapes[3]["anchor"] == "end"


def test_the_name_says_which_picture(tmp_path):
    """An .svg is drawn; any other suffix is rejected before anything is measured."""
    pictures.refuse_other_suffix(Path("a.SVG"))
    for name in ("a.gif", "a.png"):
        with pytest.raises(OptionError, match=r"does not end in \.svg"):
            pictures.refuse_other_suffix(Path(name))
    pictures.write(EACH, tmp_path / "a.svg")
    assert texts((tmp_path / "a.svg").read_bytes()) == ["one of each", "$words$"]
