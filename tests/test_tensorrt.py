"""The target `tensorrt`, and what TensorRT's own parser and compiler make of results; these skip without
it."""

import functools
import json
from pathlib import Path

import onnx
import pytest
from onnx import parser

from amp_rewrite import Options, demo, measure_placement, rewrite
from amp_rewrite.errors import AmpRewriteError, MissingPackageError
from amp_rewrite.placement import placing, tensorrt
from tests import real_models, text
from tests.commands import failure, run


@functools.cache
def missing():
    """Why TensorRT cannot be asked here; empty where it can be."""
    try:
        tensorrt.version()
    except MissingPackageError as error:
        return str(error)
    return ""


def needs_tensorrt(test):
    """Marks a test that asks TensorRT, which is slow."""
    return pytest.mark.slow(pytest.mark.skipif(bool(missing()), reason=missing())(test))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A function that returns the placement of a model by TensorRT, all in one process."""
    path = tmp_path_factory.mktemp("tensorrt") / "model.onnx"
    with placing.placer(tensorrt.NAME) as place_file:

        def placed(model):
            if isinstance(model, onnx.ModelProto):
                onnx.save(model, path)
            return place_file(path if isinstance(model, onnx.ModelProto) else model, None)

        yield placed


BETWEEN = """<ir_version: 10, opset_import: ["": 22]>
  g (float[1, 4, 8, 8] x, float[4, 4, 1, 1] w) => (float[1, 4, n, m] y) {{
    a = Conv (x, w) [op] b = {} y = Conv (b, w) }}"""


def recurrent(operator, gates, peepholes=""):
    """A recurrent node of two inputs and hidden units behind a product."""
    return text.model(f"""<ir_version: 10, opset_import: ["": 22]>
      g (float[3, 1, 2] s) => (float[3, 1, 1, 2] y) <float[2, 2] k, float[1, 6] p, float[1, {2 * gates}, 2] w,
      float[1, {2 * gates}, 2] r, float[1, {4 * gates}] b> {{
        a = MatMul (s, k) t = Transpose <perm = [1, 0, 2]> (a) x = Transpose <perm = [1, 0, 2]> (t)
        [op] y = {operator} <hidden_size = 2> (x, w, r, b{peepholes}) }}""")


@needs_tensorrt
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("io", ["keep", "half"])
@pytest.mark.parametrize("level", ["default", "unsafe-force-all"])
@pytest.mark.parametrize(
    "model",
    [
        demo.network(),
        parser.parse_model(BETWEEN.format("HardSwish (a)")),
        recurrent("LSTM", 4, ", , , , p"),
        recurrent("GRU", 3),
    ],
    ids=["demo", "hard swish", "peepholes", "gru"],
)
def test_results_build(place, model, half, io, level):
    """What TensorRT builds in float32 it builds as our result, in both half types, at any level."""
    assert not place(model).refused
    options = Options(half=half, io=io, level=level, target="tensorrt")
    assert not place(rewrite(model, options).model).refused


@needs_tensorrt
def test_layers_types_and_casts_are_counted(place):
    """The demo's Convs are half layers; Casts are those at its borders and around its float32 parts."""
    original = measure_placement(demo.network(), "tensorrt", dims={"batch": 2})
    result = place(rewrite(demo.network(), Options(target="tensorrt")).model)
    assert original.operators["Convolution"] == result.half["Convolution"] == 3
    assert (sum(original.half.values()), original.float_casts) == (0, 0)
    assert result.casts["float32>float16"] >= 1 <= result.casts["float16>float32"]
    assert original.engine_bytes > 0 < result.engine_bytes


REFUSED = """<ir_version: 10, opset_import: ["": 22]>
  g (float16[1, 4, 8, 8] x, float[1, 4, 4, 4] w) => (float16[1, 4, 8, 8] y) {
    [first] a = Relu (x) [odd] y = Celu (a) }"""


@needs_tensorrt
def test_the_command(tmp_path):
    """It shows the engine, names the refused node, exits with 1 then, and writes both as JSON."""
    good, bad, report = tmp_path / "good.onnx", tmp_path / "bad.onnx", tmp_path / "placement.json"
    onnx.save(demo.network(), good)
    onnx.save(parser.parse_model(REFUSED), bad)
    shown = run("placement", good, "--provider", "tensorrt", "--dim", "batch=2")
    assert shown.exit_code == 0
    assert "MB" in shown.stdout
    shown = run("placement", good, bad, "--provider", "tensorrt", "--json", report)
    assert shown.exit_code == 1
    assert "REFUSED" in shown.stdout
    assert "Celu 'odd'" in shown.stdout
    models = json.loads(report.read_text())["models"]
    assert [each["loads"] for each in models] == [True, False]


def test_what_is_refused_without_tensorrt(tmp_path, monkeypatch):
    """Flags of runs, as it runs nothing; what is neither a device nor TensorRT; missing packages, by name."""
    onnx.save(demo.network(), tmp_path / "m.onnx")
    asked = ("placement", tmp_path / "m.onnx", "--provider", "tensorrt")
    assert "--show has no effect with --provider tensorrt" in failure(*asked, "--show=run")
    two = failure(*asked, "--samples", "2", "--seed", "1")
    assert "--seed and --samples have no effect with --provider tensorrt" in two
    with pytest.raises(AmpRewriteError, match="tensorrt"):
        measure_placement(demo.network(), "tpu")
    monkeypatch.setattr(tensorrt.importlib.util, "find_spec", lambda _: None)
    assert "pip install tensorrt-rtx-cu13-bindings" in failure(*asked)


SMALL = """ultraface_rfb320 bigru_tagger.legacy dynamo_cond_scan.dynamo plcmos_v2 yolos_tiny.legacy
    clip_small.dynamo llama_tiny_ort_fused""".split()
"""Shared models of all kinds that compile in seconds."""


@needs_tensorrt
@pytest.mark.parametrize("name", SMALL)
def test_real_models_build(place, name, tmp_path):
    """A shared model that TensorRT builds in float32 builds as our result, with few more layers."""
    path = real_models.path(name)
    original = place(path)
    if original.refused:
        pytest.skip(f"TensorRT refuses it in float32: {original.refused}")
    for half in ("float16", "bfloat16"):
        output = tmp_path / f"{half}.onnx"
        rewrite(path, Options(half=half, target="tensorrt"), output=output)
        result = place(output)
        assert not result.refused
        assert result.nodes <= 1.02 * original.nodes + result.float_casts


@needs_tensorrt
def test_a_rewrite_is_checked_before_it_is_written(tmp_path):
    """What TensorRT compiles is written; of a result or a model that it refuses the node is named."""
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    onnx.save(demo.network(), good)
    onnx.save(parser.parse_model(BETWEEN.format("HardSwish (a)")), bad)
    asked = ("--target", "tensorrt", "--require", "tensorrt")
    shown = run(good, "-o", tmp_path / "half.onnx", *asked, "--json", tmp_path / "report.json")
    assert shown.exit_code == 0
    assert "compiles it" in shown.stdout
    assert json.loads((tmp_path / "report.json").read_text())["engine"]["engine_bytes"] > 0
    assert (tmp_path / "half.onnx").exists()
    forced = ("--to", "bfloat16", "--force-half", "op")
    line = failure(bad, "-o", tmp_path / "none.onnx", *asked, *forced)
    assert "TensorRT refuses the result: HardSwish 'op'" in line
    assert "--keep-full" in line
    assert not (tmp_path / "none.onnx").exists()
    onnx.save(parser.parse_model(REFUSED), bad)
    line = failure(bad, "-o", tmp_path / "none.onnx", "--to", "bfloat16", "--require", "tensorrt")
    assert "TensorRT refuses the model itself: Celu 'odd'" in line


def test_the_engine_computes_what_the_emulation_does(tmp_path, monkeypatch):
    """On a GPU; the benchmark also measures the latency of float32, our and all-half engines."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import tensorrt_gpu  # noqa: PLC0415 - no package

    pytest.importorskip("onnxruntime_ep_nv_tensorrt_rtx")
    try:
        options = tensorrt_gpu.options_for("tensorrt")
    except tensorrt_gpu.NoDeviceError as error:
        pytest.skip(f"there is no GPU for TensorRT: {error}")
    onnx.save(demo.network(), tmp_path / "m.onnx")
    measured = tensorrt_gpu.measure(tmp_path / "m.onnx", options)
    assert max(each["from emulation"] for each in measured.values()) < 1e-2
