"""The shapes that onnx infers, in the result."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from amp_rewrite import Options, pipeline, rewrite
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import shape_inference
from amp_rewrite.preparing import value_shapes
from amp_rewrite.process import worker
from tests import text

PRODUCT = """g (float[n,4] x) => (float[n,4] y) <float[4,4] w> {
    h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, w) }"""


def inferred(proto):
    """The shapes of the values that nodes make, in all graphs, as text."""
    model = loading.load(proto).model
    value_shapes.infer_shapes(model, shape_inference.types(model))
    made = (value for node in model.graph.all_nodes() for value in node.outputs)
    return {value.name: str(value.shape) for value in made}


def test_what_is_counted_in_a_branch_has_no_made_up_names():
    """Nor what a branch reads of it, and gives."""
    proto = text.unchecked(
        """g (float[n] x, bool b, int64[1] s) => (float[a] y) {
            k = Slice (x, s, s) c = NonZero (x) m = ReduceMax <axes = [0], keepdims = 0> (c)
            i = If (b) <then_branch = t () => (int64[?] p) { p = Neg (m) },
                        else_branch = e () => (int64[?] q) { q = Shape (x) }>
            f = Cast <to = 1> (i) j = Neg (f) l = Neg (k) z = Add (j, l) y = Abs (z) }"""
    )
    shapes = inferred(proto)
    assert "unk__" in shapes["l"]
    assert not [name for name in "cmifj" if "unk__" in shapes[name]]


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


def test_where_onnx_fails(monkeypatch):
    """A model that onnx cannot infer is rewritten all the same."""
    monkeypatch.setattr(worker, "call", lambda *_, **__: None)
    assert inferred(text.model(PRODUCT))["h"] == "None"


def test_a_very_large_model_is_left_alone(monkeypatch):
    """Above a number of nodes, shapes are not inferred."""
    monkeypatch.setattr(value_shapes, "MOST_NODES", 2)
    assert inferred(text.model(PRODUCT))["h"] == "None"


@pytest.mark.parametrize("target", ["any", "onnxruntime-cuda", "tensorrt"])
def test_shapes_behind_a_cast_of_stored_scales_are_proved(target):
    """The empty scales of a Resize are also its region of interest, which is half: a Cast is between."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]> g (float[1,2,4,4] x) => (float[1,2,8,8] y)
        <float[0] r = {}, int64[2] c = {8, 8}, int64[1] b = {0}, int64[1] e = {2}, float[2,2,1,1] w> {
          a = Conv (x, w) s = Shape (a) n = Slice (s, b, e) z = Concat <axis = 0> (n, c)
          h = Resize <mode = "linear"> (a, r, r, z) y = Relu (h) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w"))
    result = rewrite(model, Options(level="unsafe-force-all", target=target)).model
    assert "h" in {info.name for info in result.graph.value_info}
