"""The plots of a report: errors along the graph, magnitudes against the limits of half."""

import math

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.reporting import charts
from amp_rewrite.reporting.charts import Point
from amp_rewrite.reporting.pictures import Dot, Line, Rect, Text, Tone
from tests.text import model


def of_kind(picture, kind):
    """The shapes of one kind."""
    return [shape for shape in picture.shapes if isinstance(shape, kind)]


def test_errors_go_from_left_to_right_and_up():
    """A dot for each node: later nodes to the right, larger errors above, and its name to be read."""
    picture = charts.errors([Point(0.0, 1e-5, False, "Conv a"), Point(1.0, 1e-2, False, "Add b")])
    first, second = of_kind(picture, Dot)
    assert first.x < second.x <= picture.width
    assert first.y > second.y
    assert (first.title, second.title) == ("Conv a: 1.0e-05", "Add b: 1.0e-02")


def test_what_is_not_finite_stands_out():
    """It is at the top, in another colour, whatever its error."""
    (dot,) = of_kind(charts.errors([Point(0.5, 0.0, True, "Pow p")]), Dot)
    assert (dot.y, dot.tone, dot.title) == (0.0, Tone.BAD, "Pow p: not finite")


def test_errors_beyond_the_scale_stand_at_its_edge():
    """No dot leaves the picture: neither no error, nor an infinite one."""
    points = [Point(0.2, 0.0, False, "a"), Point(0.6, math.inf, False, "b")]
    low, high = of_kind(charts.errors(points), Dot)
    lines = [line.y1 for line in of_kind(charts.errors(points), Line)]
    assert (high.y, low.y) == (0.0, max(lines))


def test_of_many_nodes_the_worst_are_drawn():
    """Where dots would overlap, the worst of them is drawn."""
    points = [Point(i / 9999, 1e-6, False, "") for i in range(10000)]
    points[5000] = Point(5000 / 9999, 1e-1, False, "the one")
    dots = of_kind(charts.errors(points), Dot)
    assert len(dots) < 300
    assert "the one: 1.0e-01" in {dot.title for dot in dots}


def test_stored_numbers_are_counted_by_binade():
    """Each number counts in its binade; zeros and infinities do not count."""
    array = np.array([1.0, 1.5, -2.0, 0.0, np.inf, np.nan, 2.0**-30, 7e4], np.float32)
    proto = model("g (float[8] x) => (float[8] y) <float[8] w> { y = Add (x, w) }", {"w": array})
    held = constants.find(ir.from_proto(proto)).values()
    assert charts.binades_of_stored(held) == {0: 2, 1: 1, -30: 1, 16: 1}


@pytest.mark.parametrize("number", [1.0, 1.99, 2.0, 65504.0, 2.0**-24, 1e-30])
def test_what_a_run_showed_is_counted_by_its_largest_number(number):
    """A value counts once, in the binade of its largest number."""
    assert charts.binades_of_values({"v": Extremes(1e-31, number)}) == {math.floor(math.log2(number)): 1}


def bars_and_limits(half, stored_numbers):
    """The bars of a histogram by tone, and the places of its limits."""
    picture = charts.ranges(stored_numbers, {}, half)
    bars = [rect for rect in of_kind(picture, Rect) if rect.tone is not Tone.LIGHT]
    limits = [line.x1 for line in of_kind(picture, Line) if line.dash]
    return bars, limits


@pytest.mark.parametrize(
    ("power", "tone"),
    [(-25, Tone.BAD), (-24, Tone.HALF), (0, Tone.HALF), (15, Tone.HALF), (16, Tone.BAD), (120, Tone.BAD)],
)
def test_what_float16_cannot_hold_is_marked(power, tone):
    """Numbers below 2**-24 become zero, from 2**16 on infinite; far outliers are at the edge."""
    (bar,), _ = bars_and_limits(FLOAT16, {power: 3})
    assert bar.tone is tone
    assert 0 <= bar.x < bar.x + bar.w <= charts.WIDTH


def test_the_limits_are_those_of_the_half_type():
    """Smallest, smallest with all bits, largest: their order and the bars' places agree."""
    bars, limits = bars_and_limits(FLOAT16, {-25: 1, -15: 1, -14: 1, 15: 1})
    below, coarse, fine, top = bars
    zero, subnormal, infinite = limits
    assert below.x < zero < coarse.x < subnormal < fine.x
    assert top.x < infinite


def test_bfloat16_has_its_own_limits():
    """bfloat16 represents what float16 cannot."""
    (bar,), limits = bars_and_limits(BFLOAT16, {100: 1})
    assert bar.tone is Tone.HALF
    assert limits == sorted(limits)


def test_a_panel_for_what_is_known():
    """Stored numbers, and node outputs where there was a run; nothing without either."""
    titles = [t.text for t in of_kind(charts.ranges({0: 1}, {1: 1}, FLOAT16), Text) if t.bold]
    assert len(titles) == 2
    assert charts.ranges({}, {}, FLOAT16).shapes == ()
