"""Original against rewritten: metrics, bounds, verdicts, and who is to blame."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import parser

import amp_rewrite
from amp_rewrite.errors import FeedError, ModelError, OptionError
from amp_rewrite.half import BFLOAT16
from amp_rewrite.options import Borders, Level, Options
from amp_rewrite.running import metrics

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.sessions import Device

FORCED = Options(level=Level.UNSAFE_FORCE_ALL)
OVERFLOW = """g (float[2] x) => (float[2] y) {
    [shift] s = Add (x, x) [square] a = Mul (s, s) [root] y = Sqrt (a) }"""
UNDERFLOW = """g (float[2] x, float[2] seed) => (float[2] y) {
    [loss] a = Mul (x, seed) [scale] b = Mul (a, big) y = Add (b, b) }"""


def model(body):
    """A model from ONNX text, by its graph."""
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {body}')


def verdict(before, after, feeds, bounds=None, **options):
    """The verdict on one sample, on the CPU."""
    return verification.verify(before, after, [feeds], bounds, device=Device.CPU, **options)


def plain_error(before, after, feeds):
    """The relative L2 error that onnxruntime's CPU provider shows, without emulation."""
    wanted, got = (sessions.run(m, feeds)["y"] for m in (before, after))
    return metrics.measure(wanted, got).relative_l2


# ---- what the emulation is for

MUTANTS = {
    "overflow": (model(OVERFLOW), {"x": np.float32([150, 1])}),
    "underflow": (
        model(UNDERFLOW.replace("=> (float[2] y)", "=> (float[2] y) <float big = {1000.0}>")),
        {"x": np.float32([1e-4, 2e-4]), "seed": np.float32([1e-5, 1e-5])},
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_half_loses_fails_here_and_passes_on_the_plain_cpu_provider(name):
    """300 * 300 overflows and 1e-9 vanishes: the verdict is no; onnxruntime's CPU provider sees neither."""
    before, feeds = MUTANTS[name]
    after = amp_rewrite.rewrite(before, FORCED).model
    assert plain_error(before, after, feeds) < 1e-2
    found = verdict(before, after, feeds)
    assert not found.ok
    assert found.outputs[0].broken


def test_a_good_rewrite_passes():
    """The default rewrite of the same model is close, and the verdict says where it ran."""
    before, feeds = MUTANTS["overflow"]
    found = verdict(before, amp_rewrite.rewrite(before).model, feeds)
    assert found.ok
    assert found.samples == 1
    assert "emulated" in found.how


# ---- blame


def test_the_first_node_to_overflow_is_named_with_what_it_reads():
    """Blame names the square, the range of its inputs, and how many values it loses."""
    before, feeds = MUTANTS["overflow"]
    found = blame(before, amp_rewrite.rewrite(before, FORCED).model, feeds, device=Device.CPU)
    lost = found.first_lost
    assert (lost.node, lost.operator, lost.non_finite) == ("square", "Mul", 1)
    assert (lost.low, lost.high) == (2, 300)
    assert found.worst is lost


def test_the_node_that_adds_most_error_comes_first():
    """Without infinities the nodes are ranked by the error that they add, not by the error they have."""
    before, feeds = MUTANTS["underflow"]
    found = blame(before, amp_rewrite.rewrite(before, FORCED).model, feeds, device=Device.CPU)
    assert found.first_lost is None
    assert found.nodes[0].node == "loss"
    assert found.nodes[0].added == max(error.added for error in found.nodes)


def test_blame_goes_through_a_graph_in_chunks(monkeypatch):
    """Whatever the chunk, every value that both models have is compared once."""
    before, feeds = MUTANTS["overflow"]
    after = amp_rewrite.rewrite(before, FORCED).model
    whole = blame(before, after, feeds, device=Device.CPU)
    monkeypatch.setattr("amp_rewrite.running.inner_values.CHUNK", 1)
    assert blame(before, after, feeds, device=Device.CPU) == whole
    assert len(whole.nodes) == 3


# ---- the signature


def test_a_renamed_output_is_part_of_the_verdict():
    """Other names, types or shapes of inputs and outputs are no."""
    before = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    renamed = model("g (float[2] x) => (float[2] z) { z = Relu (x) }")
    found = verdict(before, renamed, {"x": np.float32([1, 2])})
    assert not found.ok
    assert found.signature == ("the outputs are 'z', and were 'y'",)


def test_half_borders_are_a_fault_unless_they_were_asked_for():
    """With --io half the types of inputs and outputs may differ; else that is a broken signature."""
    before = model("g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }")
    after = amp_rewrite.rewrite(before, Options(borders=Borders.HALF)).model
    feeds = {"x": np.float32([[1, 2], [3, 4]])}
    assert verdict(before, after, feeds, borders=Borders.HALF).ok
    assert "tensor(float16)" in verdict(before, after, feeds).signature[0]


def test_another_shape_is_incomparable():
    """An output of another shape breaks every bound."""
    before = model("g (float[2] x) => (float[n] y) { y = Relu (x) }")
    after = model("g (float[2] x) => (float[n] y) { y = Concat <axis = 0> (x, x) }")
    assert not verdict(before, after, {"x": np.float32([1, 2])}).ok


def test_the_worst_sample_counts():
    """Each metric is that of its worst sample."""
    before, (good, bad) = MUTANTS["overflow"][0], ({"x": np.float32([1, 1])}, {"x": np.float32([150, 1])})
    after = amp_rewrite.rewrite(before, FORCED).model
    found = verification.verify(before, after, [good, bad, good], device=Device.CPU)
    assert found.samples == 3
    assert found.outputs[0].metrics.non_finite == 1


def test_sequences_and_integers_are_compared():
    """A sequence is compared element by element, integers by how many agree."""
    body = """g (float[2,3] x) => (seq(float[2,3]) q, int64[2] k) {{
        a = {} (x) q = SequenceConstruct (x, a) k = ArgMax <axis = 1, keepdims = 0> (a) }}"""
    feeds = {"x": np.float32([[1, 2, 3], [3, 2, 1]])}
    same = verdict(model(body.format("Exp")), model(body.format("Exp")), feeds)
    assert same.ok
    assert [output.name for output in same.outputs] == ["q[0]", "q[1]", "k"]
    other = verdict(model(body.format("Exp")), model(body.format("Neg")), feeds)
    assert [bool(output.broken) for output in other.outputs] == [False, True, True]
    assert other.outputs[2].metrics.agreement == 0


def test_errors_of_a_run_are_ours():
    """An original that onnxruntime refuses, inputs that do not fit and no sample at all are our errors."""
    fine = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    odd = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) { y = own.Op (x) }'
    )
    with pytest.raises(ModelError, match="onnxruntime refuses"):
        verdict(odd, odd, {"x": np.float32([1, 2])})
    with pytest.raises(FeedError, match="the run failed"):
        verdict(fine, fine, {"x": np.float32([1, 2, 3])})
    with pytest.raises(FeedError, match="no sample"):
        verification.verify(fine, fine, [], device=Device.CPU)


# ---- metrics


def test_metrics_by_hand():
    """Every metric on numbers that can be checked by hand."""
    found = metrics.measure(np.float32([[3, 4], [0, 0]]), np.float32([[3, 4], [0, 0.5]]))
    assert found.max_abs == 0.5
    assert found.mean_abs == 0.125
    assert found.relative_l2 == pytest.approx(0.1)
    assert found.snr_db == pytest.approx(20)
    assert found.cosine == pytest.approx(25 / (5 * math.sqrt(25.25)))
    assert found.agreement == 0.5
    assert found.non_finite == 0


@pytest.mark.parametrize(
    ("wanted", "got", "count"),
    [
        ([np.inf, np.nan, 1, 2], [np.inf, np.nan, 1, 2], 0),
        ([np.inf, np.nan, 1, 2], [np.inf, np.nan, np.nan, 2], 1),
        ([np.inf, np.nan, 1, 2], [1, 1, 1, 2], 2),
        ([np.inf, -np.inf, 1, 2], [-np.inf, -np.inf, 1, np.inf], 2),
    ],
)
def test_what_is_not_finite_in_one_alone_is_counted(wanted, got, count):
    """NaN and infinities that both have are no fault; those of one alone are, and of another sign."""
    assert metrics.measure(np.float32(wanted), np.float32(got)).non_finite == count


def test_what_is_lost_is_no_error_besides():
    """A value that is lost counts as zero in the other metrics, so that they stay numbers."""
    found = metrics.measure(np.float32([1, 2]), np.float32([np.nan, 2]))
    assert found.relative_l2 == pytest.approx(1 / math.sqrt(5))


def test_sequences_that_grew_are_no_match():
    """An element that only one of the two has breaks the verdict."""
    body = "g (float[2] x) => (seq(float[2]) q) {{ q = SequenceConstruct ({}) }}"
    feeds = {"x": np.float32([1, 2])}
    assert not verdict(model(body.format("x, x")), model(body.format("x, x, x")), feeds).ok
    assert not verdict(model(body.format("x, x, x")), model(body.format("x, x")), feeds).ok


def test_other_inputs_are_a_bad_verdict_and_no_error():
    """A renamed input, another shape or type: nothing is run, and the verdict says what differs."""
    before = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    feeds = {"x": np.float32([1, 2])}
    for other in (
        "g (float[2] v) => (float[2] y) { y = Relu (v) }",
        "g (float[3] x) => (float[3] y) { y = Relu (x) }",
        "g (double[2] x) => (double[2] y) { y = Relu (x) }",
    ):
        found = verdict(before, model(other), feeds)
        assert found.signature
        assert not found.outputs


def test_a_rewritten_model_that_does_not_run_is_a_bad_verdict():
    """When only the rewritten model is refused or fails, that is the verdict, not an error."""
    before = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    feeds = {"x": np.float32([1, 2])}
    refused = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) { y = own.Op (x) }'
    )
    fails = model(
        """g (float[2] x) => (float[2] y) {
        e = ConstantOfShape <value = int64[1] {9}> (t)
        y = Gather (x, e) }""".replace("=> (float[2] y)", "=> (float[2] y) <int64[1] t = {2}>")
    )
    for other in (refused, fails):
        (fault,) = verdict(before, other, feeds).signature
        assert "does not run" in fault


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_equal_outputs_are_perfect(array):
    """An output compared with itself has no error, and passes any bound."""
    found = metrics.measure(array, array)
    assert (found.max_abs, found.relative_l2, found.non_finite) == (0, 0, 0)
    strict = metrics.tolerances(("relative_l2=0", "max_abs=0", "cosine=0.999999", "snr_db=200"))
    assert not list(metrics.broken(found, strict, is_float=True))


@pytest.mark.parametrize(
    ("text", "field", "bound"),
    [
        ("relative_l2=0.5", "relative_l2", 0.5),
        ("top1=0.9", "top1", 0.9),
        ("non_finite=none", "non_finite", None),
    ],
)
def test_tolerances_are_set_by_name(text, field, bound):
    """A bound is set by its name, or taken away by `none`; the others stay."""
    found = metrics.tolerances((text,))
    assert getattr(found, field) == bound
    assert found.agreement == metrics.Tolerances().agreement


@pytest.mark.parametrize("text", ["l2=1", "relative_l2", "relative_l2=few"])
def test_a_tolerance_that_is_none_is_an_error(text):
    """An unknown name and a bound that is no number say what there is."""
    with pytest.raises(OptionError):
        metrics.tolerances((text,))


def test_a_nan_error_breaks_the_bound():
    """A bound holds only when the comparison does: NaN is never within one."""
    found = metrics.measure(np.float32([1]), np.float32([1]))
    odd = metrics.Metrics(**dict.fromkeys(found.__dataclass_fields__, math.nan))
    assert list(metrics.broken(odd, metrics.Tolerances(), is_float=True))


# ---- without onnxruntime

WITHOUT = """
import sys
sys.modules["onnxruntime"] = None
from amp_rewrite.cli import main
main(sys.argv[1:])
"""


def test_without_onnxruntime_the_rewrite_works_and_verify_says_what_to_install(tmp_path):
    """The rewrite needs no onnxruntime; verifying needs it, and says so in one line."""
    path = tmp_path / "model.onnx"
    onnx.save(model(OVERFLOW), path)

    def run(*arguments):
        root = str(Path(__file__).parents[1])
        command = [sys.executable, "-c", WITHOUT, *arguments]
        environment = {"PYTHONPATH": root}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run("model.onnx", "-o", "out.onnx").returncode == 0
    refused = run("verify", "model.onnx", "out.onnx")
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "pip install 'amp-rewrite[cpu]'" in refused.stderr


def test_bfloat16_goes_in_and_comes_out():
    """Inputs and outputs in bfloat16, which numpy has no type for, are compared like any other."""
    before = model("g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }")
    after = amp_rewrite.rewrite(before, Options(half=BFLOAT16, borders=Borders.HALF)).model
    feeds = {"x": np.float32([[1, 2], [3, 4.03]])}
    found = verdict(before, after, feeds, borders=Borders.HALF)
    assert found.ok
    assert 1e-4 < found.outputs[0].metrics.relative_l2 < 1e-2
