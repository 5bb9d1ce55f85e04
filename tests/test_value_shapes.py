"""The shapes that onnx infers, in the result."""

import re

import numpy as np
import onnx
import onnx.parser
import pytest

from amp_rewrite import pipeline
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import element_types
from amp_rewrite.preparing import value_shapes
from amp_rewrite.process import worker
from tests import text

PRODUCT = """g (float[n,4] x) => (float[n,4] y) <float[4,4] w> {
    h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, w) }"""


def inferred(proto):
    """The shapes of the values that nodes make, in all graphs, as text."""
    model = loading.load(proto).model
    value_shapes.infer_shapes(model, element_types.infer(model))
    made = (value for node in model.graph.all_nodes() for value in node.outputs)
    return {value.name: str(value.shape) for value in made}


DETECTED = """g (float[n,4] x) => (float[a,b] y) <float[4,4] w, float least = {0.5}, int64[1] none = {0},
    int64[1] last = {1}, int64[1] two = {2}, int64[1] four = {4}, int64 zero = {0}, int64 one = {1}> {
    p = MatMul (x, w) s = Slice (p, none, last, last) score = Squeeze (s, last) found = Greater (score, least)
    at = NonZero (found) row = Squeeze (at, none) q = Gather (p, row)
    l = Slice (q, none, two, last) r = Slice (q, two, four, last)
    u = Unsqueeze (l, two) v = Unsqueeze (r, two) c = Concat <axis = 2> (u, v)
    s0 = Shape (q) n0 = Gather (s0, zero) n1 = Gather (s0, one) d0 = Unsqueeze (n0, none)
    d1 = Unsqueeze (n1, none) to = Concat <axis = 0> (d0, d1) y = Reshape (c, to) }"""
"""Boxes of what was found, put together as detectors do."""


@pytest.mark.parametrize(("value", "found"), [(1, (3, 4)), (0, (0, 4))])
def test_what_finds_nothing_runs(value, found):
    """onnxruntime reshapes to [0, -1] where it knows that a size stays, which fails where that is 0."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = text.model(DETECTED)
    (weights,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    weights.CopyFrom(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    made = pipeline.rewrite(model).model.SerializeToString()
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    (boxes,) = session.run(None, {"x": np.full((3, 4), value, np.float32)})
    assert boxes.shape == found


EQUIVALENT = """
float[b,3,4] q, float[b,5,8] k, float[b,5,6] v => y = MultiHeadAttention <num_heads=2> (q, k, v) | b,3,6
float[b,3,4] q, float[b,2,5,8] k, float[b,2,5,6] v => y = MultiHeadAttention <num_heads=2> (q, k, v) | b,3,12
float[b,5,2,3,4] q => y = MultiHeadAttention <num_heads=2> (q) | b,5,8
float[b,3,16] q, float[b,2,7,4] p => y, n = GroupQueryAttention <num_heads=2, kv_num_heads=1>
    (q, , , p, p) | b,3,8
float[b,3,4] a, float[b,3,5] w => y = FusedMatMul <transA=1> (a, w) | b,4,5
float[3,b,4] a, float[4,b,5] w => y = FusedMatMul <transBatchA=1, transBatchB=1> (a, w) | b,3,5
float[b,3,64] a, uint8[5,2,16] w, float[10] s => y = MatMulNBits <K=64, N=5, block_size=32> (a, w, s) | b,3,5
float[b,4,8,8] x, float[6,2,3,3] w => y = FusedConv <group=2, activation="Relu"> (x, w) | b,6,6,6
float s, uint8 z, uint8[b,2] x, uint8[b,3] v => y = QLinearConcat <axis=1> (s, z, x, s, z, v, s, z) | b,5
uint8[b,1] x, float s, uint8 z, uint8[b,3] v => y = QLinearAdd (x, s, z, v, s, z, s, z) | b,3
float[b,3] x, float[3] w => y, m, i, n = SkipSimplifiedLayerNormalization (x, x, w) | b,3
"""


@pytest.mark.parametrize("row", EQUIVALENT.replace("\n    ", " ").strip().splitlines())
def test_an_operator_of_onnxruntime_has_its_shape(row):
    """What reads it has one as well; open dimensions keep their names."""
    reads, node, shape = (part.strip() for part in re.split(r"=> (?=y)|\|", row))
    call = re.sub(r"= (\w+)", r"= com.microsoft.\1", node, count=1)
    graph = f"g ({reads}) => (float[r,r] out) {{ {call} out = Identity (y) }}"
    header = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> '
    assert inferred(onnx.parser.parse_model(header + graph))["y"].replace("'", "") == f"[{shape}]"


def test_where_onnx_fails(monkeypatch):
    """A model that onnx cannot infer is rewritten all the same."""
    monkeypatch.setattr(worker, "call", lambda *_, **__: None)
    assert inferred(text.model(PRODUCT))["h"] == "None"


def test_a_very_large_model_is_left_alone(monkeypatch):
    """Above a number of nodes, shapes are not inferred."""
    monkeypatch.setattr(value_shapes, "MOST_NODES", 2)
    assert inferred(text.model(PRODUCT))["h"] == "None"
