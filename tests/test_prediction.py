"""Predicted times: of devices, of kernels, of whole models; the warning, and the gate."""

import json
from dataclasses import replace

import pytest

from amp_rewrite.colouring import pruning
from amp_rewrite.costs import model_costs
from amp_rewrite.costs.model_costs import AS_GIVEN
from amp_rewrite.pipeline import analyze, rewrite
from amp_rewrite.policy import devices
from amp_rewrite.policy.devices import H200, T4, Device
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing import value_shapes
from amp_rewrite.reporting import summary
from amp_rewrite.rewriting import plan_files
from tests import real_models, text

SMALL = "g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> { y = MatMul(x, w) }"
OPENED = SMALL.replace("float[4, 4] x) => (float[4, 4]", "float[N, 4] x) => (float[N, 4]")
LARGE = """g (float[4096, 1024] x) => (float[4096, 1024] y) <float[1024, 1024] w> {
  a = MatMul(x, w) y = MatMul(a, w) }"""
COMPUTED = """g (float[N, S, 8] x) => (float y) <float[8, 8] w, int64[2] t = {-1, 8}> {
  p = MatMul(x, w) q = Reshape(p, t) r = Transpose<perm = [1, 0]>(q) z = MatMul(q, r)
  y = ReduceMax<keepdims = 0>(z) }"""
"""What is behind the Reshape has sizes that follow from others alone."""
EXACT = Device("exact", float32=1e12, float16=4e12, bfloat16=1e12, bandwidth=1e9, launch=1e-3)
"""A device whose times can be computed by hand."""


def predicted(source, **asked):
    """The prediction for a model."""
    return rewrite(text.model(source), Options(**asked)).report.prediction


# ---- devices


@pytest.mark.parametrize("device", devices.BY_NAME.values(), ids=lambda device: device.name)
def test_devices(device):
    """Every device has its source, rates in a sensible order, and is known by its name."""
    assert device.source.startswith("NVIDIA")
    assert device.bandwidth < device.float32 <= device.bfloat16 <= device.float16
    assert Options(device=device.name.upper()).device is device
    assert Options().device is H200
    assert (T4.is_fast("float16"), T4.is_fast("bfloat16")) == (True, False)


# ---- times


def test_times_by_hand():
    """A kernel takes the longer of its bytes and its FLOPs, and a launch; so does a Cast."""
    found = predicted(SMALL, device=EXACT)
    assert found.float32.seconds == pytest.approx(1e-3 + 4 * 48 / 1e9)
    assert found.result.seconds == pytest.approx(1e-3 + 2 * 48 / 1e9 + 2 * (1e-3 + 6 * 16 / 1e9))
    assert found.speedup == pytest.approx(found.float32.seconds / found.result.seconds)
    slow = replace(EXACT, bandwidth=1e15)
    work = 2 * 2 * 4096 * 1024 * 1024
    found = predicted(LARGE, device=slow)
    assert found.float32.seconds == pytest.approx(2e-3 + work / 1e12, rel=1e-4)
    assert found.result.seconds == pytest.approx(4e-3 + work / 4e12, rel=1e-4)


@pytest.mark.parametrize("dims", [{"N": 5, "S": 40}, {"N": 2, "x:1": 16}, {"x:0": 3, "x:1": 2}])
def test_sizes_that_are_given_count_as_if_the_model_had_them(dims):
    """By symbol or by axis: times are those of the model with these sizes written in; no other is open."""
    written = COMPUTED.replace("N, S", ", ".join(map(str, dims.values())))
    assert replace(predicted(COMPUTED, dims=dims), sizes_from="") == predicted(written)


def test_a_larger_batch_takes_no_less_time():
    """Sizes that nothing names follow from the elements of what is read, not from a fixed number."""
    path = real_models.path("bert_tiny_qa.legacy")
    runs = [analyze(path, Options(dims={"batch": batch, "seq": 384})) for batch in (1, 2, 8, 64)]
    times = [run.report().prediction.float32.seconds for run in runs]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_a_small_model_counts_as_large_where_it_is_pruned():
    """What is decided does not go by the sizes of a demonstration; what is reported does."""
    analysis = analyze(text.model(SMALL))
    found = model_costs.measure_prices(analysis.graph, analysis.options)
    assert found.predict([True], AS_GIVEN).speedup < 1 < found.predict([True], found.costs.large).speedup


@pytest.mark.parametrize(("most", "gate", "is_told"), [(0, False, False), (0, True, True), (3, False, True)])
def test_a_very_large_model_without_shapes(monkeypatch, most, gate, is_told):
    """Where sizes would be guesses and there are many, nothing is predicted but for the gate."""
    monkeypatch.setattr(value_shapes, "MOST_NODES", 0)
    monkeypatch.setattr(pruning, "MOST_GUESSED", most)
    source = OPENED.replace("y = MatMul(x, w)", "h = MatMul (x, w) k = Relu (h) y = Neg (k)")
    assert (predicted(source, gate=gate) is not None) is is_told


# ---- the warning and the gate


def test_the_gate_lets_through_what_pays(tmp_path):
    """Where half is predicted to be faster, the gate changes nothing; sizes that are given count.

    A plan is carried out whatever is predicted of it; of what has nothing half nothing is predicted.
    """
    model = text.model(LARGE)
    assert rewrite(model, Options(gate=True)).model == rewrite(model).model
    opened = text.model(LARGE.replace("4096, 1024", "N, 1024"))
    for batch, half in ((65536, 2), (1, 0)):
        assert rewrite(opened, Options(gate=True, dims={"N": batch})).report.nodes.half == half
    (tmp_path / "plan.json").write_text(plan_files.dump(analyze(text.model(SMALL)).saved_plan()))
    plan = plan_files.load(tmp_path / "plan.json")
    report = rewrite(text.model(SMALL), Options(gate=True), replay=plan).report
    assert (report.changed, report.prediction.is_slower) == (True, True)
    report = rewrite(text.model("g (float[4] x) => (float[4] y) { y = Exp(x) }")).report
    assert report.prediction is json.loads(json.dumps(report.to_json()))["prediction"] is None


def test_what_did_not_change_has_no_other_form():
    """Nothing of what was prepared is in the result: neither the report nor its summary speaks of it."""
    folded = text.model(SMALL.replace("y = MatMul(x, w)", "v = Neg(w) y = MatMul(x, v)"))
    changed, same = (rewrite(folded, Options(gate=gate)).report for gate in (False, True))
    assert (same.gated, same.form_changes) == (True, ())
    planned = analyze(folded, Options(gate=True)).report()
    forms = [sum(line.name == "form" for line in summary.lines(each)) for each in (changed, same, planned)]
    assert forms == [1, 0, 0]
