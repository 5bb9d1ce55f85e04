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
from amp_rewrite.errors import FeedError, ModelError, RunError
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.running import metrics, tolerances
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions, verification
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
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "own": 1]> {body}')


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


# ---- the signature

PADDED = "Conv <pads = [1, 1, 1, 1]>"


@pytest.mark.parametrize("shape", [[], ["N", 4], [1, 4, 9, 8]])
def test_an_output_that_declares_a_wrong_shape_is_compared(shape):
    """onnxruntime runs it, so the models are compared, and a warning names the declaration."""
    declared = ", ".join(map(str, shape))
    body = f"g (float[1, 3, 8, 8] x) => (float[{declared}] y) <float[4, 3, 3, 3] w> {{ y = {PADDED} (x, w) }}"
    before = text.unchecked(body)
    if not shape:  # which the text has no way to say
        before.graph.output[0].type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
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


def test_errors_of_a_run_are_ours():
    """An original that onnxruntime rejects, inputs that do not fit, and no sample raise our errors."""
    fine, odd = model(RELU), model(RELU.replace("= Relu", "= own.Op"))
    sum_ = "g (float[n] x, float[k] z) => (float[m] y) { y = Add (x, z) }"
    with pytest.raises(ModelError, match="onnxruntime refuses"):
        verdict(odd, odd, {"x": np.float32([1, 2])})
    with pytest.raises(FeedError, match=r"input 'x' is float32\[2\], but float32\[3\] was given"):
        verdict(fine, fine, {"x": np.float32([1, 2, 3])})
    with pytest.raises(FeedError, match="no sample"):
        verification.verify(fine, fine, [], device=Device.CPU)
    with pytest.raises(RunError, match=r"^samples\[1\]: the run failed"):
        same(sum_, {"x": FINE, "z": FINE}, {"x": FINE, "z": np.float32([1, 2, 3])})


NAN, FINE = np.float32([np.nan, np.nan]), np.float32([1, 2])


def same(body, *samples):
    """The verdict on a model that is compared with itself."""
    return verification.verify(model(body), model(body), samples, device=Device.CPU)


RELU = "g (float[2] x) => (float[2] y) { y = Relu (x) }"


def test_one_sample_of_three_that_proves_nothing_is_named():
    """Good samples do not hide one without evidence, named by its number or its file."""
    samples = [{"x": FINE}, {"x": NAN}, {"x": FINE}]
    (said,) = same(RELU, *samples).unproven
    assert said.startswith("samples[1]: proves nothing: ")
    read = InputSource(paths=("in",), files=("in/a.npz", "in/b.npz", "in/c.npz"))
    found = verification.verify(model(RELU), model(RELU), samples, device=Device.CPU, inputs=read)
    assert found.unproven[0].startswith("in/b.npz: proves nothing: ")


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


@pytest.mark.parametrize(
    ("wanted", "got", "count", "relative_l2"),
    [
        ([np.inf, np.nan, 1, 2], [np.inf, np.nan, 1, 2], 0, 0),
        ([np.inf, np.nan, 1, 2], [np.inf, np.nan, np.nan, 2], 1, 1 / math.sqrt(5)),
        ([np.inf, np.nan, 1, 2], [1, 1, 1, 2], 2, 0),
        ([np.inf, -np.inf, 1, 2], [-np.inf, -np.inf, 1, np.inf], 2, 2 / math.sqrt(5)),
    ],
)
def test_values_that_are_non_finite_in_one_model_only_are_counted(wanted, got, count, relative_l2):
    """NaN and infinities in both do not count; those in one only do, and opposite signs: in other metrics a
    value that is lost counts as zero.
    """
    found = metrics.measure(np.float32(wanted), np.float32(got))
    assert (found.non_finite, found.relative_l2) == (count, pytest.approx(relative_l2))


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


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_equal_outputs_are_perfect(array):
    """An output compared with itself has no error, and satisfies any bound."""
    found = metrics.measure(array, array)
    assert (found.max_abs, found.relative_l2, found.non_finite) == (0, 0, 0)
    strict = tolerances.parse_tolerances(("relative_l2=0", "max_abs=0", "cosine=0.999999", "snr_db=200"))
    assert not list(tolerances.violations(found, found.error(), strict))


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
