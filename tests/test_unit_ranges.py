"""What is known of half units: proven, observed, unknown; the flag that declares inputs."""

import json
import math

import onnx
import pytest

from amp_rewrite import analyze, rewrite
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.bounds import bounding
from amp_rewrite.bounds.unit_ranges import Knowledge
from amp_rewrite.errors import OptionError
from amp_rewrite.options import Options
from amp_rewrite.pipeline import rewrite as written
from tests.commands import run
from tests.text import model

TWO = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4,4] v> {
    [first] a = MatMul (x, w)
    [squash] b = Tanh (a)
    [last] y = MatMul (b, v)
}"""


def known(proto, options=None, seen=None):
    """What is known of each half unit, by node."""
    analysis = analyze(proto, options, observed=seen)
    return {analysis.graph.units[unit].node.name: each for unit, each in analysis.ranges().units.items()}


def words(found):
    """The knowledge of each node, as a line."""
    return " ".join(f"{name}:{each.knowledge.value}" for name, each in found.items())


def test_without_a_range_what_saturates_is_proven():
    """An input without a range bounds nothing, and a Tanh whatever follows it."""
    assert words(known(model(TWO))) == "first:unknown squash:unknown last:proven"


def test_a_range_proves_the_rest():
    """With a declared range, also from Python, all is proven, and each bound is a number."""
    found = known(model(TWO), Options(ranges={"x": (-1, 1)}))
    assert words(found) == "first:proven squash:proven last:proven"
    assert all(0 < each.bound < 100 for each in found.values())


def test_what_was_observed_counts_where_nothing_is_proven():
    """Observed values fill in, unless they are too large for half with a factor of 2."""
    seen = {name: Extremes(0.1, 30.0) for name in "xaby"}
    assert words(known(model(TWO), seen=seen)) == "first:observed squash:observed last:proven"
    found = known(model(TWO), seen={name: Extremes(0.1, 30.0) for name in "a"})
    assert found["first"].knowledge is Knowledge.UNKNOWN


def test_a_bound_beyond_half_proves_nothing():
    """A factor of 2 is left: a product of 30,000 is not proven to fit into float16; bfloat16 holds it."""
    wide = Options(ranges={"x": (-30_000, 1)})
    assert known(model(TWO), wide)["first"].knowledge is Knowledge.UNKNOWN
    half = Options(ranges={"x": (-30_000, 1)}, half="bfloat16")
    assert {each.knowledge for each in known(model(TWO), half).values()} <= {Knowledge.PROVEN}


MASKED = """g (float[4,4] x, bool[4,4] m) => (float[4,4] y) <
    float[4,4] w, float lowest = {-3.4e38}, float no = {0.0}
> {
    [product] a = MatMul (x, w)
    [mask] f = Where (m, no, lowest)
    [add] s = Add (a, f)
    [softmax] p = Softmax (s)
    [last] y = MatMul (p, w)
}"""


def test_masks_count_as_they_are_clamped():
    """A mask of -3.4e38 is clamped: its sum with a bounded score fits into half."""
    found = known(model(MASKED), Options(ranges={"x": (-1, 1)}))
    assert {each.knowledge for each in found.values()} == {Knowledge.PROVEN}
    assert "add" in found


def test_the_report_has_the_numbers():
    """With declared ranges, as data and as JSON, with the ranges that they rest on."""
    report = rewrite(model(TWO), Options(ranges={"x": (-1, math.inf)})).report
    assert report.ranges is not None
    plain = report.to_json()["ranges"]
    assert {name: plain[name] for name in ("half_units", "proven", "observed", "unknown")} == {
        "half_units": 3,
        "proven": 1,
        "observed": 0,
        "unknown": 2,
    }
    assert plain["inputs"] == [{"name": "x", "low": -1.0, "high": None, "source": "declared"}]


def test_of_a_large_model_a_summary_has_them_on_request_only(tmp_path, monkeypatch):
    """Where bounds would take long the command line leaves them out, unless they are asked for."""
    onnx.save(model(TWO), tmp_path / "m.onnx")
    plain = tmp_path / "m.onnx", "--skip=verify", "-v"
    assert "half parts" in run(*plain).stdout
    monkeypatch.setattr(bounding, "MOST_NODES", 2)
    assert "half parts" not in run(*plain).stdout
    run(*plain, "--json", tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["ranges"]["half_units"] == 3


def test_nothing_is_bounded_that_nobody_asked_for():
    """Bounds are computed for who asks before the edit, or declares a range."""
    assert rewrite(model(TWO)).report.ranges is None
    asked = written(model(TWO), on_plan=lambda analysis: analysis.ranges())
    assert asked.report.ranges is not None
    assert rewrite(model(TWO), Options(ranges={"x": (0, 1)})).report.ranges is not None


@pytest.mark.parametrize(
    "given", [{"x": 1}, {"x": (1, 0)}, {"x": (math.nan, 0)}, {1: (0, 1)}, {"x": "01"}, 3]
)
def test_a_wrong_field_is_refused(given):
    """The error names the field."""
    with pytest.raises(OptionError, match=r"Options\.ranges"):
        Options(ranges=given)


def test_a_range_of_text_is_refused():
    """Only numbers have one."""
    made = model("g (string[1] s, float[4] x) => (float[4] y) { y = Relu (x) }")
    with pytest.raises(OptionError, match="does not hold numbers"):
        analyze(made, Options(ranges={"s": (0, 1)}))
