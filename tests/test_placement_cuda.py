"""Sessions on CUDA: as it is where it works, else against the stub libraries; slow, as onnxruntime-gpu is."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from amp_rewrite import demo, rewrite
from amp_rewrite.placement.placement import CpuReason
from tests import text
from tests.cuda_sessions import MARKS, worsened

ROOT = Path(__file__).parents[1]
MODELS = ROOT.parent / "shared" / "models"


pytestmark = MARKS


def test_the_square_of_a_norm_is_fused_where_it_is_a_power(place):
    """Of a product of data with themselves onnxruntime makes no norm; of what we write, it does."""
    original = text.model(
        """g (float[2,4] x) => (float[2,4] y) <float[4,4] w, float[4] s, float e = {1e-6}> {
        a = MatMul (x, w) q = Mul (a, a) m = ReduceMean <axes = [-1]> (q) p = Add (m, e) r = Sqrt (p)
        n = Div (a, r) z = Mul (n, s) y = MatMul (z, w) }"""
    )
    assert "SimplifiedLayerNormalization" not in place(original).operators
    after = place(rewrite(original).model).operators
    assert after == {"Cast": 2, "MatMul": 2, "SimplifiedLayerNormalization": 1}


def test_the_demo_loads_and_is_half(place):
    """Its result has no more nodes on the CPU, copies or inserted Casts than itself."""
    model = demo.network()
    original, result = place(model), place(rewrite(model).model)
    assert (original.refused, result.refused, sum(original.half.values())) == ("", "", 0)
    assert sum(result.half.values()) > sum(result.full.values())
    assert worsened(original, result) == []


def test_a_run_is_counted(place):
    """What the profile says that it executes is what the graph holds."""
    model = text.model(
        "g (float16[2, 4] x) => (float16[2, 4] y) <float16[4, 4] w> { h = MatMul (x, w) y = Relu (h) }"
    )
    found = place(model, {"x": demo.feeds()["image"].ravel()[:8].reshape(2, 4).astype("float16")})
    assert found.failed == ""
    assert (found.profile.nodes, found.profile.on_cpu) == (found.nodes, 0)


SCALED = """g ({half}[2, 4] x, {half}[4, 3] w) => (float[2, 3] y) {{
  s = Constant <value = float {{0.5}}> () p = MatMul (x, w) {cast} y = Mul ({read}, s) }}"""


def test_fusions_and_their_loss_show(place):
    """A scale is fused into a product; a Cast between the two hides it."""
    fused = place(text.model(SCALED.format(half="float", cast="", read="p")))
    kept = place(text.model(SCALED.format(half="float16", cast="f = Cast <to = 1> (p)", read="f")))
    assert fused.fused == {"com.microsoft:FusedMatMul": 1}
    assert (kept.fused, kept.float_casts) == ({}, 1)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("g (float[2, 2] x) => (float y) { y = Det (x) }", CpuReason.NO_KERNEL),
        (
            """g (float[1, 1, 4, 4] x, float[1, 1, 2, 2] w) => (float[1, 1, 4, 4] y) {
            y = ConvTranspose <pads = [1, 1, 0, 0]> (x, w) }""",
            CpuReason.REFUSED,
        ),
    ],
)
def test_nodes_on_the_cpu_have_a_reason(place, source, why):
    """No kernel at all, and one that refuses an attribute."""
    model = text.model(source)
    assert {group.operator: group.why for group in place(model).on_cpu}[model.graph.node[0].op_type] is why


def test_a_model_that_does_not_load_has_a_message(place):
    """In one line; the process serves the next model all the same."""
    line = "g (float[2] x) => (float[2] y) { y = OPERATOR (x) }"
    refused = place(text.unchecked(line.replace("OPERATOR", "NoSuch"))).refused
    assert "NoSuch" in refused
    assert "\n" not in refused
    assert place(text.model(line.replace("OPERATOR", "Relu"))).nodes == 1


KNOWN = {
    "llama_tiny.legacy": (339, 0),
    "mamba_tiny.legacy": (359, 0),
    "qwen3_tiny.legacy": (345, 0),
    "stories260k_past.dynamo": (340, 0),
    "onnx_lstm_with_peepholes": (1, 0),
    "squeezenet_fp16": (65, 0),
}
"""Nodes and float Casts of shared models, as onnxruntime-gpu 1.31.1 executes them."""
REFUSED = {
    "onnx_dequantizelinear_float4e2m1",
    "osf_face_detection",
    "osf_landmarks0",
    "pcb_aoi_opset1",
    "silero_v6_ort_extended",
    "trt_nested_local_function",
    "trt_toy_subgraph",
}
"""The shared models that onnxruntime-gpu 1.31.1 does not load on CUDA."""


@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
def test_all_types_of_shared_models_are_known(place):
    """Every model but the refused ones loads, and the precision of each of its nodes can be told."""
    found = {path.parent.name: place(path) for path in sorted(MODELS.glob("*/model.onnx"))}
    assert {name for name, one in found.items() if one.refused} == REFUSED
    assert {name: one.untyped for name, one in found.items() if one.untyped} == {}
    assert {name: (found[name].nodes, found[name].float_casts) for name in KNOWN} == KNOWN


def test_the_registry_is_the_committed_table(monkeypatch):
    """What decides where half can run is what onnxruntime-gpu registers, if it is the table's version."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    kernels = importlib.import_module("kernels")
    monkeypatch.delitem(sys.modules, "kernels")
    committed = json.loads(
        (ROOT / "amp_rewrite" / "policy" / "kernel_tables" / "onnxruntime_cuda.json").read_text()
    )
    found = kernels.table()
    if found["onnxruntime"] != committed["onnxruntime"]:
        pytest.skip(f"the table is of {committed['onnxruntime']}, and {found['onnxruntime']} is installed")
    assert kernels.condensed(found) == committed
