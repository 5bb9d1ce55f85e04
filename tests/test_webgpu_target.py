"""The target `onnxruntime-webgpu`: its kernels, its sums, and a comparison that emulates them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import amp_rewrite
from amp_rewrite import Options, emulate
from amp_rewrite.model import serialization
from amp_rewrite.onnx_types import schema
from amp_rewrite.pipeline import analyze
from amp_rewrite.policy import targets
from amp_rewrite.running import sessions
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning import switches as sites
from amp_rewrite.tuning.switches import switched
from tests.commands import run
from tests.witness import needs_witness

WEBGPU = Options(target="onnxruntime-webgpu")


def model(text, **stored):
    """A model from its text at opset 17, with stored values."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    return proto


def halves(source, options=WEBGPU):
    """The nodes that are half."""
    found = analyze(source, options)
    pairs = zip(found.graph.units, found.painting.paints, strict=True)
    return {unit.node.name or unit.node.op_type for unit, paint in pairs if paint.colour.name == "HALF"}


@pytest.mark.parametrize(
    ("operator", "half", "has"),
    [
        ("MatMul", "float16", True),
        ("MatMul", "bfloat16", False),
        ("LSTM", "float16", False),
        ("Conv", "float16", True),
    ],
)
def test_kernels_are_those_of_the_provider(operator, half, has):
    """There are none in bfloat16, and none for recurrent layers."""
    support = targets.ONNXRUNTIME_WEBGPU.support("", operator, schema.find("", operator, 17), half)
    assert support.has("T", half) is has


SUMS = {
    "MatMul": ("(float[2, {}] x) => (float[2, 3] y) {{ y = MatMul (x, w) }}", lambda k: (k, 3)),
    "Gemm": ("(float[2, {}] x) => (float[2, 3] y) {{ y = Gemm <transB = 1> (x, w) }}", lambda k: (3, k)),
    "Conv": ("(float[1, {}, 4, 4] x) => (float[1, 3, 4, 4] y) {{ y = Conv (x, w) }}", lambda k: (3, k, 1, 1)),
    "ConvTranspose": (
        "(float[1, {}, 4, 4] x) => (float[1, 3, 8, 8] y) {{ y = ConvTranspose <strides = [2, 2]> (x, w) }}",
        lambda k: (k, 3, 2, 2),
    ),
}


@pytest.mark.parametrize("operator", SUMS)
def test_long_sums_stay_float32(operator):
    """Up to 1024 terms are half, more are not; on another target they are."""
    text, shape = SUMS[operator]
    for terms, expected in ((1024, {operator}), (1028, set())):
        source = model(text.format(terms), w=np.full(shape(terms), 0.01, np.float32))
        assert halves(source) == expected
    assert halves(source, Options()) == {operator}


UPSAMPLED = "(float[n, 1, {}] x) => (float[n, 1, a, b] y) {{ y = ConvTranspose <strides = [2, 2]> (x, w) }}"


@pytest.mark.parametrize(
    ("sizes", "is_half"),
    [("4, 1024", True), ("4, 1025", False), ("1025, 4", False), ("h, 4", False), ("4, w", False)],
)
def test_a_long_axis_that_is_upsampled_stays_float32(sizes, is_half):
    """The provider computes wrong values beyond 2,048 positions, and an open size may be longer."""
    source = model(UPSAMPLED.format(sizes), w=np.full((1, 1, 2, 2), 0.5, np.float32))
    assert halves(source) == ({"ConvTranspose"} if is_half else set())
    assert halves(source, Options()) == {"ConvTranspose"}


def test_a_size_that_is_given_counts_for_what_is_upsampled():
    """It is known then."""
    source = model(UPSAMPLED.format("h, w"), w=np.full((1, 1, 2, 2), 0.5, np.float32))
    for size, expected in ((1024, {"ConvTranspose"}), (1025, set())):
        assert halves(source, Options(target="onnxruntime-webgpu", dims={"h": 4, "w": size})) == expected


def test_unknown_sizes_are_no_long_sums():
    """Where the number of terms is open, nothing is known of it."""
    open_ends = model("(float[2, n] x, float[n, 3] w) => (float[2, 3] y) { y = MatMul (x, w) }")
    assert halves(open_ends) == {"MatMul"}


OPEN = {
    "ReduceMean": """(float[1, 2, n] x) => (float[1, 2, k] y) {
      a = MatMul (w, x)
      y = ReduceMean <axes = [2]> (a)
    }""",
    "GlobalAveragePool": """(float[1, 2, n, 8] x) => (float[1, 2, 1, 1] y) {
      a = MatMul (x, v)
      y = GlobalAveragePool (a)
    }""",
}
STORED = {"w": np.eye(2, dtype=np.float32), "v": np.eye(8, dtype=np.float32)}


@pytest.mark.parametrize("operator", OPEN)
def test_sums_over_open_sizes_stay_float32(operator):
    """Unless a size is given: then they are what they are in the model with that size written in."""
    opened = model(OPEN[operator], **STORED)
    assert halves(opened) == {"MatMul"}
    assert halves(opened, Options()) == {"MatMul", operator}
    for size, expected in ((64, {"MatMul", operator}), (4096, {"MatMul"})):
        given = Options(target="onnxruntime-webgpu", dims={"n": size})
        written = model(OPEN[operator].replace(" n]", f" {size}]").replace(" n,", f" {size},"), **STORED)
        assert halves(opened, given) == halves(written) == expected


def test_the_report_of_open_sums(tmp_path):
    """A mean over 1024 x 1024 elements was infinite in half, and not seen: its size was open."""
    path, shared = tmp_path / "m.onnx", Path(__file__).parents[2] / "shared/cases/01_open_sums.onnx"
    if not shared.exists():
        pytest.skip("needs the shared cases")
    written = onnx.load(shared)
    for dim in written.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = 1024
    onnx.save(written, path)
    kept = {
        (source, *dims.items()): halves(onnx.load(source), Options(target="onnxruntime-webgpu", dims=dims))
        for source, dims in ((shared, {}), (shared, {"H": 1024, "W": 1024}), (path, {}))
    }
    assert len(set(map(frozenset, kept.values()))) == 1, kept
    assert "ReduceMean" not in set.union(*kept.values())


def test_explain_says_how_many_terms(tmp_path):
    """The reason has the target, the number and the limit."""
    path = tmp_path / "m.onnx"
    onnx.save(model(SUMS["MatMul"][0].format(4096), w=np.full((4096, 3), 0.01, np.float32)), path)
    said = run("explain", path, "--target", "onnxruntime-webgpu").output
    assert "onnxruntime-webgpu adds up its 4096 terms in float16, which 1024 terms at most bear" in " ".join(
        said.split()
    )


DEEP = model(
    "(float[4, 512] x) => (float[4, 512] y) { a = MatMul (x, w) b = MatMul (a, w) y = MatMul (b, w) }",
    w=np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) / 23,
)
FEEDS = {"x": np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)}


SLOW = "(float[4, 4] x, float[4, 4] w) => (float[4, 4] y) { y = MatMul (x, w) }"


def test_no_speed_of_cuda_is_warned_of():
    """Times are predicted for GPUs of data centres, which say nothing of a browser; --gate goes by them."""
    asked = (Options(), WEBGPU, Options(target="onnxruntime-webgpu", gate=True))
    warned = (amp_rewrite.rewrite(model(SLOW), options).report.warnings for options in asked)
    assert ["predicted speed" in " ".join(each) for each in warned] == [True, False, True]


class TestRunning:
    @pytest.fixture(autouse=True)
    def _needs_onnxruntime(self):
        pytest.importorskip("onnxruntime")

    def test_the_comparison_emulates_sums_in_half(self, tmp_path):
        """The report says so, and the error is that of half sums."""
        path, half = tmp_path / "m.onnx", tmp_path / "half.onnx"
        onnx.save(DEEP, path)
        said = run(path, "-o", half, "--target", "onnxruntime-webgpu", "-v")
        assert said.exit_code == 0, said.output
        assert "CPU, float32 against half emulated, sums too" in said.output
        errors = [
            amp_rewrite.verify(path, half, FEEDS, device="cpu", accumulate=sums).error
            for sums in ("float", "half")
        ]
        assert errors[1] > 4 * errors[0]

    def test_a_search_sees_what_the_emulation_does(self):
        """With all switches on, a searched model has the bits of the emulation with sums in half."""
        analysis = analyze(DEEP, WEBGPU)
        switches = switched(analysis, sites.find(analysis.graph, analysis.painting).places)
        session = sessions.open_session(serialization.to_proto(switches.loaded))
        all_on = {switches.switches: np.ones(switches.count, bool)}
        (found,) = sessions.run_session(session, FEEDS | all_on).values()
        emulated = emulate(amp_rewrite.rewrite(DEEP, WEBGPU).model, accumulate="half")
        (expected,) = sessions.run_session(sessions.open_session(emulated), FEEDS).values()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
class TestWitness:
    @pytest.fixture(autouse=True)
    def _needs_witness(self):
        needs_witness()

    def test_the_prediction_is_that_of_the_witness(self):
        """On a stack of products, the emulated error is the real one."""
        half = amp_rewrite.rewrite(DEEP, WEBGPU).model
        emulated = amp_rewrite.verify(DEEP, half, FEEDS, device="cpu", accumulate="half")
        real = amp_rewrite.verify(DEEP, half, FEEDS, device="webgpu")
        assert emulated.error == pytest.approx(real.error, rel=0.05)

    @pytest.mark.parametrize("name", ["mnist_cntk", "bert_tiny_qa.legacy", "llama_tiny.legacy"])
    def test_real_models_are_within_a_factor_of_two(self, name, tmp_path):
        """The emulation predicts the witness's error, where sums in float32 are further off."""
        folder = Path(__file__).parents[2] / "shared" / "models" / name
        path = next(iter(sorted(folder.glob("*.onnx"))), None)
        if path is None:
            pytest.skip("the shared models are not here")
        half = amp_rewrite.rewrite(path, output=tmp_path / "half.onnx").model
        sample = _sample(folder, path)
        errors = [
            amp_rewrite.verify(path, half, sample, **where).error
            for where in ({"device": "cpu", "accumulate": "half"}, {"device": "webgpu"}, {"device": "cpu"})
        ]
        assert errors[1] / 2 < errors[0] < errors[1] * 2
        assert errors[2] < errors[1] / 2


def _sample(folder, path):
    """The inputs beside a model, or synthetic ones."""
    if (folder / "inputs.npz").is_file():
        return dict(np.load(folder / "inputs.npz"))
    return next(iter(feeds.feeds(path, Data())))
