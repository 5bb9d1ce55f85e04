"""The comparison of original and rewritten model: metrics, bounds, verdicts and blame."""

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
from amp_rewrite import demo
from amp_rewrite.errors import FeedError, ModelError, OptionError, RunError
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import IOTypes, Level, Options
from amp_rewrite.running import metrics, tolerances

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.inputs import feeds as feeds_
from amp_rewrite.running.inputs.feeds import InputSource
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
    """The relative L2 error on onnxruntime's CPU provider, without emulation."""
    wanted, got = (sessions.run_session(sessions.open_session(m), feeds)["y"] for m in (before, after))
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
    """300 * 300 overflows, 1e-9 is flushed: the verdict fails; onnxruntime's CPU provider shows no error."""
    before, feeds = MUTANTS[name]
    after = amp_rewrite.rewrite(before, FORCED).model
    assert plain_error(before, after, feeds) < 1e-2
    found = verdict(before, after, feeds)
    assert not found.ok
    assert found.outputs[0].broken


def test_a_good_rewrite_passes():
    """The default rewrite of the same model passes, and the verdict has where it ran."""
    before, feeds = MUTANTS["overflow"]
    found = verdict(before, amp_rewrite.rewrite(before).model, feeds)
    assert found.ok
    assert found.samples == 1
    assert "emulated" in found.how


# ---- blame


def test_the_first_node_to_overflow_is_named_with_what_it_reads():
    """Blame names the square, the range of its inputs, and the number of values that overflow."""
    before, feeds = MUTANTS["overflow"]
    found = blame(before, amp_rewrite.rewrite(before, FORCED).model, feeds, device=Device.CPU)
    lost = found.first_lost
    assert (lost.node, lost.operator, lost.non_finite) == ("square", "Mul", 1)
    assert (lost.low, lost.high) == (2, 300)
    assert found.worst is lost


def test_the_node_that_adds_most_error_comes_first():
    """Without infinities, nodes are ranked by the error that they add, not by their total error."""
    before, feeds = MUTANTS["underflow"]
    found = blame(before, amp_rewrite.rewrite(before, FORCED).model, feeds, device=Device.CPU)
    assert found.first_lost is None
    assert found.nodes[0].node == "loss"
    assert found.nodes[0].added == max(error.added for error in found.nodes)


def test_blame_goes_through_a_graph_in_chunks(monkeypatch):
    """Whatever the chunk size, every value that both models have is compared once."""
    before, feeds = MUTANTS["overflow"]
    after = amp_rewrite.rewrite(before, FORCED).model
    whole = blame(before, after, feeds, device=Device.CPU)
    monkeypatch.setattr("amp_rewrite.running.instrumented_model.CHUNK", 1)
    assert blame(before, after, feeds, device=Device.CPU) == whole
    assert len(whole.nodes) == 3


# ---- the signature


def test_a_renamed_output_is_part_of_the_verdict():
    """Different names, types or shapes of inputs and outputs fail."""
    before = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    renamed = model("g (float[2] x) => (float[2] z) { z = Relu (x) }")
    found = verdict(before, renamed, {"x": np.float32([1, 2])})
    assert not found.ok
    assert found.signature == ("the outputs are 'z', and were 'y'",)


def test_half_inputs_and_outputs_fail_unless_requested():
    """With --io half, the types of inputs and outputs may differ; otherwise that is a failure."""
    before = model("g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }")
    after = amp_rewrite.rewrite(before, Options(io=IOTypes.HALF)).model
    feeds = {"x": np.float32([[1, 2], [3, 4]])}
    assert verdict(before, after, feeds, io=IOTypes.HALF).ok
    assert "tensor(float16)" in verdict(before, after, feeds).signature[0]


def test_another_shape_is_incomparable():
    """An output of another shape violates every bound."""
    before = model("g (float[2] x) => (float[n] y) { y = Relu (x) }")
    after = model("g (float[2] x) => (float[n] y) { y = Concat <axis = 0> (x, x) }")
    assert not verdict(before, after, {"x": np.float32([1, 2])}).ok


@pytest.mark.parametrize("shape", [[], ["N", 4], [1, 4, 9, 8]])
def test_an_output_that_declares_a_wrong_shape_is_compared(shape):
    """onnxruntime runs it, so the models are compared, and a warning names the declaration."""
    weight = onnx.numpy_helper.from_array(np.full((4, 3, 3, 3), 0.1, np.float32), "w")
    borders = [("x", [1, 3, 8, 8]), ("y", shape)]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in borders)
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = onnx.helper.make_graph([conv], "g", [x], [y], [weight])
    before = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    after = amp_rewrite.rewrite(before).model
    found = verification.verify(before, after, {"x": np.ones((1, 3, 8, 8), np.float32)})
    assert found.ok
    assert found.warnings == (f"output 'y' declares the shape {shape}, and onnxruntime finds [1, 4, 8, 8]",)
    after.graph.output[0].type.tensor_type.ClearField("shape")
    for dim in (1, 4, 7, 8):
        after.graph.output[0].type.tensor_type.shape.dim.add().dim_value = dim
    assert verification.verify(before, after, {"x": np.ones((1, 3, 8, 8), np.float32)}).signature


def test_an_output_without_a_shape_is_compared():
    """onnxruntime infers more of the result, whose values declare shapes; another type or value fails."""
    before = model(
        """g (float[n,8] x) => (float[a,b] y) { q = MatMul (x, x) s = SplitToSequence <axis = 0> (q)
           c = ConcatFromSequence <axis = 0> (s) y = Tanh (c) }"""
    )
    before.graph.output[0].type.tensor_type.ClearField("shape")
    after, feeds = amp_rewrite.rewrite(before).model, {"x": np.eye(8, dtype=np.float32)}
    assert after.graph.value_info
    assert verdict(before, after, feeds).ok
    after.graph.node[-1].op_type = "Shape"
    after.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert verdict(before, after, feeds).signature


def test_the_worst_sample_counts():
    """Each metric is that of the worst sample."""
    before, (good, bad) = MUTANTS["overflow"][0], ({"x": np.float32([1, 1])}, {"x": np.float32([150, 1])})
    after = amp_rewrite.rewrite(before, FORCED).model
    found = verification.verify(before, after, [good, bad, good], device=Device.CPU)
    assert found.samples == 3
    assert found.outputs[0].metrics.non_finite == 1


def test_sequences_and_integers_are_compared():
    """A sequence is compared element by element, integers by the share that agree."""
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
    """An original that onnxruntime rejects, inputs that do not fit, and no sample raise our errors."""
    fine = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    odd = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) { y = own.Op (x) }'
    )
    with pytest.raises(ModelError, match="onnxruntime refuses"):
        verdict(odd, odd, {"x": np.float32([1, 2])})
    with pytest.raises(FeedError, match=r"input 'x' is float32\[2\], but float32\[3\] was given"):
        verdict(fine, fine, {"x": np.float32([1, 2, 3])})
    with pytest.raises(FeedError, match="no sample"):
        verification.verify(fine, fine, [], device=Device.CPU)


# ---- what proves nothing

TWO = "g (float[2] x, float[2] z) => (float[2] y, float[2] v) { y = Relu (x) v = Relu (z) }"
LOGS = "g (float[2] x) => (float[2] y, float[2] mask) { s = Sub (x, x) mask = Log (s) y = Relu (x) }"
CLEANED = """g (float[2] x) => (float[2] y) <float zero = {0.0}> {
    odd = IsNaN (x) y = Where (odd, zero, x) }"""
NAN, FINE = np.float32([np.nan, np.nan]), np.float32([1, 2])


def same(body, *samples):
    """The verdict on a model that is compared with itself."""
    return verification.verify(model(body), model(body), samples, device=Device.CPU)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_inputs_prove_nothing(odd):
    """If the original computes nothing finite from them, the verdict fails, and names input and output."""
    found = same(
        "g (float[2] x) => (float[2] y) { s = Sub (x, x) y = Neg (s) }", {"x": np.float32([odd, odd])}
    )
    assert not found.ok
    assert not found.is_far
    (said,) = found.unproven
    assert said == "y: proves nothing: NaN or infinities in input 'x' give no finite outputs"
    assert found.to_json()["not_verified"] == said


def test_one_output_of_two_that_proves_nothing():
    """A comparable second output does not make up for one without evidence."""
    found = same(TWO, {"x": NAN, "z": FINE})
    assert [output.is_compared for output in found.outputs] == [False, True]
    assert not found.ok
    assert same(TWO, {"x": NAN, "z": FINE}, {"x": FINE, "z": FINE}).ok


def test_one_sample_of_three_that_proves_nothing_is_named():
    """Good samples do not hide one without evidence, named by its number or its file."""
    body = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
    samples = [{"x": FINE}, {"x": NAN}, {"x": FINE}]
    (said,) = same(body, *samples).unproven
    assert said.startswith("samples[1]: proves nothing: ")
    read = InputSource(paths=("in",), files=("in/a.npz", "in/b.npz", "in/c.npz"))
    found = verification.verify(model(body), model(body), samples, device=Device.CPU, inputs=read)
    assert found.unproven[0].startswith("in/b.npz: proves nothing: ")


def test_non_finite_inputs_are_valid_if_the_model_handles_them():
    """Outputs that are finite in the original can be compared."""
    assert same(CLEANED, {"x": np.float32([np.nan, 1])}).ok
    assert same("g (float[2] x) => (float[2] y) { y = Exp (x) }", {"x": np.float32([-np.inf, 1])}).ok


def test_infinities_in_both_models_do_not_fail():
    """A mask of -inf in both passes, as long as most other outputs can be compared."""
    assert same(LOGS, {"x": FINE}).unproven == ("1 of 2 outputs were not compared: mask",)
    more = LOGS.replace("float[2] mask", "float[2] mask, float[2] z").replace(
        "y = Relu", "z = Neg (x) y = Relu"
    )
    found = same(more, {"x": FINE})
    assert found.ok
    assert [output.is_compared for output in found.outputs] == [True, False, True]
    lost = same(LOGS.replace("float[2] y, ", "").replace("y = Relu (x)", ""), {"x": FINE})
    assert lost.unproven == ("nothing was compared: no value of the original is finite",)


EMPTY = """g (float[2] x) => (float[n] y, int64[1,m] k) {
    none = Greater (x, x) y = Compress (x, none) k = NonZero (y) }"""
OFTEN = "g (float[2] x) => (float[n] y) { some = Greater (x, t) y = Compress (x, some) }".replace(
    "=> (float[n] y)", "=> (float[n] y) <float t = {1.5}>"
)


def test_outputs_without_values_prove_nothing():
    """If no sample has values, nothing was compared; one with values is enough, as with detections."""
    found = same(EMPTY, {"x": FINE})
    assert found.unproven == ("nothing was compared: the outputs have no values",)
    assert [output.metrics.agreement for output in found.outputs] == [None, None]
    assert not same(EMPTY, {"x": NAN}).ok
    assert same(OFTEN, {"x": np.float32([0, 0])}, {"x": FINE}).ok


def test_outputs_without_floats_can_be_compared():
    """A model that outputs classes only is compared by these."""
    found = same("g (float[2] x) => (int64 k) { k = ArgMax <axis = 0, keepdims = 0> (x) }", {"x": FINE})
    assert found.ok
    assert found.outputs[0].metrics.compared == 1


def test_another_shape_without_bounds_proves_nothing():
    """Removing the bounds does not make the outputs comparable."""
    before = model("g (float[2] x) => (float[n] y) { y = Relu (x) }")
    after = model("g (float[2] x) => (float[n] y) { y = Concat <axis = 0> (x, x) }")
    free = tolerances.parse_tolerances(("relative_l2=none", "non_finite=none"))
    assert not verdict(before, after, {"x": np.float32([1, 2])}, free).ok


def test_a_verdict_says_where_its_inputs_come_from():
    """Synthesised with a seed, read from files, or given; a model without inputs has no seed."""
    body = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
    given = {"synthetic": False, "seed": None, "paths": [], "images": None, "change": ""}
    assert same(body, {"x": FINE}).to_json()["inputs"] == given
    made = verdict(model(body), model(body), {"x": FINE}, inputs=InputSource(seed=3))
    assert made.to_json()["inputs"] == given | {"synthetic": True, "seed": 3}
    constant = model("g () => (float y) { y = Constant <value = float {1.0}> () }")
    assert not verdict(constant, constant, {}, inputs=InputSource(seed=3)).inputs.is_synthetic


def test_a_run_that_fails_names_its_sample():
    """The error names the one sample that the original rejects."""
    body = "g (float[n] x, float[k] z) => (float[m] y) { y = Add (x, z) }"
    with pytest.raises(RunError, match=r"^samples\[1\]: the run failed"):
        same(body, {"x": FINE, "z": FINE}, {"x": FINE, "z": np.float32([1, 2, 3])})


# ---- metrics


@pytest.mark.parametrize(
    ("wanted", "got", "agreement"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [4, 3]], 0.5),
        ([[1, 2], [3, 3]], [[1, 2], [3, 4]], 1),  # all equal: no row with a largest value
        ([[3, 3], [0, 0]], [[3, 4], [1, 0]], None),
        ([[3, 2.995]], [[2.99, 3]], 1),  # a tie for bfloat16
        ([[3, 2.98]], [[2.99, 3]], 0),
        ([[-3, -2.98]], [[-2.99, -3]], 0),
        ([[1, np.nan], [1, 2]], [[1, np.nan], [1, 2]], 1),
        ([[-np.inf, -np.inf], [-np.inf, 2]], [[-np.inf, -np.inf], [2, -np.inf]], 0),
        ([[np.inf, 2]], [[2, np.inf]], 0),
        ([[1], [2]], [[1], [2]], None),
        ([1, 2], [2, 1], None),
        ([[[[1, 2]]]], [[[[2, 1]]]], None),  # a row of an image is no row of scores
        (np.zeros((0, 2)), np.zeros((0, 2)), None),
        (np.zeros((2, 0)), np.zeros((2, 0)), None),
    ],
)
def test_agreement_is_of_rows_with_a_maximum(wanted, got, agreement):
    """Constant rows, ties, and outputs that are not scores do not count as disagreement."""
    assert metrics.measure(np.float32(wanted), np.float32(got)).agreement == agreement


def test_metrics_by_hand():
    """Every metric on numbers that are easy to check by hand."""
    found = metrics.measure(np.float32([[3, 4], [0, 0]]), np.float32([[3, 4], [0, 0.5]]))
    assert found.max_abs == 0.5
    assert found.mean_abs == 0.125
    assert found.relative_l2 == pytest.approx(0.1)
    assert found.snr_db == pytest.approx(20)
    assert found.cosine == pytest.approx(25 / (5 * math.sqrt(25.25)))
    assert found.compared == 4
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
def test_values_that_are_non_finite_in_one_model_only_are_counted(wanted, got, count):
    """NaN and infinities in both do not count; those in one only do, and opposite signs."""
    assert metrics.measure(np.float32(wanted), np.float32(got)).non_finite == count


def test_a_non_finite_value_counts_as_zero_in_other_metrics():
    """A value that becomes non-finite counts as zero in the other metrics, which stay finite."""
    found = metrics.measure(np.float32([1, 2]), np.float32([np.nan, 2]))
    assert found.relative_l2 == pytest.approx(1 / math.sqrt(5))


def test_sequences_of_different_length_fail():
    """An element that only one of the two has fails the verdict."""
    body = "g (float[2] x) => (seq(float[2]) q) {{ q = SequenceConstruct ({}) }}"
    feeds = {"x": np.float32([1, 2])}
    assert not verdict(model(body.format("x, x")), model(body.format("x, x, x")), feeds).ok
    assert not verdict(model(body.format("x, x, x")), model(body.format("x, x")), feeds).ok


def test_other_inputs_fail_the_verdict_without_an_exception():
    """For a renamed input or another shape or type, nothing is run, and the verdict has the difference."""
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


def test_a_rewritten_model_that_does_not_run_fails_the_verdict():
    """If only the rewritten model is rejected or fails, the verdict fails, without an exception."""
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
    """An output compared with itself has no error, and satisfies any bound."""
    found = metrics.measure(array, array)
    assert (found.max_abs, found.relative_l2, found.non_finite) == (0, 0, 0)
    strict = tolerances.parse_tolerances(("relative_l2=0", "max_abs=0", "cosine=0.999999", "snr_db=200"))
    assert not list(tolerances.violations(found, found.error(), strict))


@pytest.mark.parametrize(
    ("text", "field", "bound"),
    [
        ("relative_l2=0.5", "relative_l2", 0.5),
        ("top1=0.9", "top1", 0.9),
        ("non_finite=none", "non_finite", None),
    ],
)
def test_tolerances_are_set_by_name(text, field, bound):
    """A bound is set by its name, or removed by `none`; the others stay."""
    found = tolerances.parse_tolerances((text,))
    assert getattr(found, field) == bound
    assert found.agreement == tolerances.Tolerances().agreement


@pytest.mark.parametrize("text", ["l2=1", "relative_l2", "relative_l2=few"])
def test_an_invalid_tolerance_is_an_error(text):
    """An unknown name and a bound that is not a number are refused, with the valid choices."""
    with pytest.raises(OptionError):
        tolerances.parse_tolerances((text,))


def test_a_nan_error_breaks_the_bound():
    """NaN is never within a bound."""
    found = metrics.measure(np.float32([1]), np.float32([1]))
    odd = metrics.Metrics(**dict.fromkeys(found.__dataclass_fields__, math.nan))
    assert list(tolerances.violations(odd, math.nan, tolerances.Tolerances()))


# ---- without onnxruntime

WITHOUT = """
import sys
sys.modules["onnxruntime"] = None
from amp_rewrite.cli import main
main(sys.argv[1:])
"""


def test_without_onnxruntime_the_rewrite_works_and_verify_says_what_to_install(tmp_path):
    """The rewrite does not need onnxruntime; verifying does, and says so in one line."""
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
    assert "pip install onnxruntime\n" in refused.stderr


def test_bfloat16_goes_in_and_comes_out():
    """Inputs and outputs in bfloat16, for which NumPy has no type, are compared like any other."""
    before = model("g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }")
    after = amp_rewrite.rewrite(before, Options(half=BFLOAT16, io=IOTypes.HALF)).model
    feeds = {"x": np.float32([[1, 2], [3, 4.03]])}
    found = verdict(before, after, feeds, io=IOTypes.HALF)
    assert found.ok
    assert 1e-4 < found.outputs[0].metrics.relative_l2 < 1e-2


def test_without_samples_they_are_synthetic():
    """As the command has them: the verdict says so, and is that of the same samples."""
    before, after = demo.network(), amp_rewrite.rewrite(demo.network()).model
    found = verification.verify(before, after, device=Device.CPU)
    assert found.inputs.is_synthetic
    assert (found.ok, found.samples) == (True, 1)
    assert found.not_judged
    given = feeds_.feeds(before, feeds_.Data(images=found.inputs.images))
    assert verification.verify(before, after, given, device=Device.CPU).error == found.error
    assert not verification.verify(before, demo.network(seed=1), device=Device.CPU).ok
