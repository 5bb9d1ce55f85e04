"""`convert` does from Python what the command does: rewrite, compare, repair."""

import json
import math

import numpy as np
import onnx
import pytest

from amp_rewrite import Tolerances, convert, observe, tune
from amp_rewrite.demo import feeds, network
from tests import text
from tests.commands import run

pytest.importorskip("onnxruntime")

OVERFLOWS = """g (float[1,64] x) => (float[1,64] y) <float[64,64] w, float[1] big = {60000.0}> {
    h = MatMul(x, w)  s = Mul(h, big)  r = Relu(s)  d = Div(r, big)  y = MatMul(d, w) }"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model and inputs of it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "m.onnx")
    np.savez("in.npz", **feeds())
    return tmp_path


def overflowing():
    """A model whose second product passes the largest float16 on its input."""
    return text.model(OVERFLOWS), {"x": np.full((1, 64), 9, np.float32)}


def test_what_overflows_is_repaired():
    """The first attempt loses values; the outcome has it, and passes on the sample."""
    model, sample = overflowing()
    outcome = convert(model, data=sample)
    assert outcome.passes
    assert outcome.first.loses_values
    kept = convert(model, data=sample, repair=False)
    assert (kept.passes, kept.first) == (False, None)
    assert repr(outcome).startswith("Outcome(PASS, ")
    assert repr(outcome).endswith(" nodes in float16, repaired)")


def test_it_is_what_the_command_does(folder):
    """The same bytes, and the same report."""
    done = run("m.onnx", "-o", "a.onnx", "--data", "in.npz", "--json", "a.json")
    assert done.exit_code == 0
    outcome = convert("m.onnx", data="in.npz", output="b.onnx")
    assert (folder / "a.onnx").read_bytes() == (folder / "b.onnx").read_bytes()
    told, ours = json.loads((folder / "a.json").read_text()), json.loads(json.dumps(outcome.to_json()))
    assert told.keys() == ours.keys()
    differs = {key for key, value in ours.items() if told[key] != value}
    assert differs <= {"seconds", "ranges"}  # which are counted for a report in a file


def test_metrics_bounds_and_progress():
    """A metric of the user's fails the verdict; stages are told in order."""
    told = []

    def largest(_, rewritten, __):
        """The largest value of the output."""
        return max(float(step["probabilities"].max()) for step in rewritten)

    bounds = Tolerances(error=0.5)
    outcome = convert(network(), data=feeds(), metrics=largest, bounds=bounds, progress=told.append)
    assert outcome.verdict.metrics[0].name == "largest"
    assert math.isfinite(outcome.verdict.metrics[0].value)
    assert told.index("load") < told.index("write") < told.index("verify")


def test_plans_and_observations_decide():
    """A saved plan is carried out as it is; observed ranges decide before the first attempt."""
    model, sample = overflowing()
    tuned = tune(model, sample)
    assert convert(model, data=sample, plan=tuned.plan).passes
    outcome = convert(model, data=sample, observed=observe(model, sample), repair=False)
    assert outcome.result.report.observed or outcome.result.report.rescaled
