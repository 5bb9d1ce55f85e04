"""What is known of half units: proven, observed, unknown; the flag that declares inputs."""

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import Pins, Tolerances, analyze, rewrite
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.bounds import bounding
from amp_rewrite.bounds.unit_ranges import Knowledge
from amp_rewrite.options import Options
from tests.commands import run
from tests.text import model

TWO = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4,4] v> {
    [first] a = MatMul (x, w) [squash] b = Tanh (a) [last] y = MatMul (b, v) }"""


MASKED = """g (float[4,4] x, bool[4,4] m) => (float[4,4] y)
    <float[4,4] w, float lowest = {-3.4e38}, float no = {0.0}> {
    [product] a = MatMul (x, w) [mask] f = Where (m, no, lowest) [add] s = Add (a, f)
    [softmax] p = Softmax (s) [last] y = MatMul (p, w) }"""


def seen(names):
    """Values that reached 30."""
    return {name: Extremes(0.1, 30.0) for name in names}


@pytest.mark.parametrize(
    ("text", "options", "observed", "known"),
    [
        # an input without a range bounds nothing, and a Tanh whatever follows it
        (TWO, {}, "", "unknown unknown proven"),
        (TWO, {"ranges": {"x": (-1, 1)}}, "", "proven proven proven"),
        # observed values fill in, unless they are too large for half with a factor of 2
        (TWO, {}, "xaby", "observed observed proven"),
        (TWO, {}, "a", "unknown observed proven"),
        # a factor of 2 is left: a product of 30,000 is not proven to fit into float16; bfloat16 holds it
        (TWO, {"ranges": {"x": (-30_000, 1)}}, "", "unknown unknown proven"),
        (
            TWO,
            {"ranges": {"x": (-30_000, 1)}, "half": "bfloat16"},
            "",
            "proven proven proven",
        ),
        # a mask of -3.4e38 is clamped: its sum with a bounded score fits into half
        (MASKED, {"ranges": {"x": (-1, 1)}}, "", "proven proven proven proven proven"),
    ],
)
def test_what_is_known_of_half_units(text, options, observed, known):
    """In the order of the model; what is proven has a bound."""
    found = analyze(model(text), Options(**options), observed=seen(observed)).ranges().units.values()
    assert " ".join(each.knowledge.value for each in found) == known
    assert all(each.bound > 0 for each in found if each.knowledge is Knowledge.PROVEN)


def test_the_report_has_the_numbers():
    """With declared ranges, as data and as JSON, with the ranges that they rest on."""
    report = rewrite(model(TWO), Options(ranges={"x": (-1, math.inf)})).report
    assert report.ranges is not None
    plain = report.to_json()["ranges"]
    names = ("half_units", "proven", "observed", "unknown")
    assert [plain[name] for name in names] == [3, 1, 0, 2]
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
    asked = rewrite(model(TWO), on_plan=lambda analysis: analysis.ranges())
    assert asked.report.ranges is not None
    assert rewrite(model(TWO), Options(ranges={"x": (0, 1)})).report.ranges is not None


# ---- A large offset in the models of users: `ranges.cases` has the small ones

SHARED_CASES = Path(__file__).parents[1].parent / "shared" / "cases"


@pytest.mark.parametrize("name", ["62_two", "62_mixed"])
@pytest.mark.skipif(not SHARED_CASES.is_dir(), reason="needs ../shared")
def test_a_weather_model_keeps_what_varies(name):
    """Its de-normalisation is float32 alone, and forced into half the verdict and the search fail for it."""
    pytest.importorskip("onnxruntime")
    from amp_rewrite.tuning.tune import tune  # noqa: PLC0415

    proto, feeds = onnx.load(SHARED_CASES / f"{name}.onnx"), dict(np.load(SHARED_CASES / f"{name}.npz"))
    result = amp_rewrite.rewrite(proto)
    assert result.report.nodes.half == 5
    assert amp_rewrite.verify(proto, result.model, feeds, Tolerances(error=1e-3), device="cpu").ok
    forced = Options(pins=Pins(force_half="/Add"))
    verdict = amp_rewrite.verify(proto, amp_rewrite.rewrite(proto, forced).model, feeds, device="cpu")
    assert verdict.is_far
    assert verdict.error > 0.1 > 1e-3 > verdict.outputs[0].metrics.relative_l2
    assert not tune(proto, feeds, forced, max_error=1e-3, device="cpu").is_met
