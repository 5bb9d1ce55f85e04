"""The shapes that onnx infers, in the result."""

import numpy as np
import onnx
import pytest

from amp_rewrite import pipeline
from amp_rewrite.model import loading
from amp_rewrite.preparing import value_shapes
from amp_rewrite.process import worker
from tests import text

PRODUCT = """g (float[n,4] x) => (float[n,4] y) <float[4,4] w> {
    h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, w) }"""


def inferred(proto):
    """The shapes of the values that nodes make, in all graphs, as text."""
    model = loading.load(proto).model
    value_shapes.infer_shapes(model, value_shapes.types(model))
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


def test_where_onnx_fails(monkeypatch):
    """A model that onnx cannot infer is rewritten all the same."""
    monkeypatch.setattr(worker, "call", lambda *_, **__: None)
    assert inferred(text.model(PRODUCT))["h"] == "None"


def test_a_very_large_model_is_left_alone(monkeypatch):
    """Above a number of nodes, shapes are not inferred."""
    monkeypatch.setattr(value_shapes, "MOST_NODES", 2)
    assert inferred(text.model(PRODUCT))["h"] == "None"
