"""The target `onnxruntime-webgpu`: its kernels, and the sums that they would add up in half."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import amp_rewrite
from amp_rewrite import Options
from amp_rewrite.onnx_types import schema
from amp_rewrite.pipeline import analyze
from amp_rewrite.policy import targets
from tests.commands import run

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
    onnx.save(model(OPEN["ReduceMean"].replace(" n]", " 4096]"), **STORED), path)
    said = run("explain", path, "--target", "onnxruntime-webgpu").output
    expected = "onnxruntime-webgpu adds up its 4096 terms in float16, which has the precision for 64"
    assert expected in " ".join(said.split())


SLOW = "(float[4, 4] x, float[4, 4] w) => (float[4, 4] y) { y = MatMul (x, w) }"


def test_no_speed_of_cuda_is_warned_of():
    """Times are predicted for GPUs of data centres, which say nothing of a browser; --gate goes by them."""
    asked = (Options(), WEBGPU, Options(target="onnxruntime-webgpu", gate=True))
    warned = (amp_rewrite.rewrite(model(SLOW), options).report.warnings for options in asked)
    assert ["predicted speed" in " ".join(each) for each in warned] == [True, False, True]
