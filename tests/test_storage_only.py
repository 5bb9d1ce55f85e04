"""Weights alone in half: what half does not hold, the way back, real models."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amp_rewrite import Options, Pins, measure_coverage, restore, rewrite
from tests import real_models, text

ONLY = Options(storage_only=True)
LAYER = """g (float[2,16] x) => (float[2,16] y) <float[16,16] w, float[16] b> {
    [product] p = MatMul (x, w)
    [sum] y = Add (p, b) }"""


@pytest.mark.parametrize(
    ("operator", "weight", "options"),
    [
        pytest.param("MatMul", np.full((16, 16), 7e4), ONLY, id="overflows"),
        pytest.param("MatMul", np.full((16, 16), 3e-6), ONLY, id="subnormal"),
        pytest.param("Div", np.full((16, 16), 1e-9), ONLY, id="flushed divisor"),
        pytest.param("MatMul", np.full((16, 16), 0.3), Options(storage_only=True, pins=Pins("n")), id="kept"),
    ],
)
def test_what_half_does_not_hold_stays(operator, weight, options):
    """As do the weights of nodes that are kept in float32; the report counts them."""
    before = f"g (float[16,16] x) => (float[16,16] y) <float[16,16] w> {{ [n] y = {operator} (x, w) }}"
    result = text.rewritten(text.model(before, {"w": weight.astype(np.float32)}), options)
    assert result.model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT
    assert (result.report.stored_half, result.report.stored_full) == (0, 1)


def test_float32_again():
    """`restore` undoes the Casts, and leaves the rounding."""
    result = rewrite(text.model(LAYER), ONLY)
    assert measure_coverage(result.model).nodes.half == 0
    assert (result.report.nodes.half, result.report.stored_half, result.report.stored_full) == (0, 1, 0)
    assert rewrite(text.model(LAYER)).report.stored_full is None
    restored = restore(result.model).model
    assert [node.op_type for node in restored.graph.node] == ["MatMul", "Add"]
    weight = numpy_helper.to_array(restored.graph.initializer[0])
    assert weight.dtype == np.float32
    assert np.array_equal(weight, weight.astype(np.float16).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", [each["name"] for each in real_models.INDEX if each["runs"]])
def test_a_real_model_differs_by_the_rounding_of_weights(name):
    """With its weights rounded in place, the original computes the same as the result."""
    runtime = pytest.importorskip("onnxruntime")
    original = onnx.load(real_models.path(name))
    result = rewrite(original, ONLY)
    halves = {t.name for t in _tensors(result.model) if t.data_type == onnx.TensorProto.FLOAT16}
    saved = 0
    for tensor in _tensors(original):
        if tensor.name in halves and tensor.data_type == onnx.TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            saved += array.nbytes // 2
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16).astype(np.float32), tensor.name))
    expected, got = (
        runtime.InferenceSession(each.SerializeToString()).run(None, real_models.feeds(name))
        for each in (original, result.model)
    )
    for one, other in zip(expected, got, strict=True):
        if isinstance(one, np.ndarray) and one.dtype.kind == "f" and one.size:
            finite = np.isfinite(one)
            assert np.array_equal(one[~finite], other[~finite], equal_nan=True)
            error = np.abs(one[finite] - other[finite]).max(initial=0)
            assert error <= 1e-5 * np.abs(one[finite]).max(initial=0)
    if saved > 0.48 * original.ByteSize():
        assert result.model.ByteSize() < 0.55 * original.ByteSize()


def _tensors(model):
    """The stored tensors of a model, those of Constant nodes under the names of their outputs."""
    for graph in text.graphs(model.graph):
        yield from graph.initializer
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                node.attribute[0].t.name = node.output[0]
                yield node.attribute[0].t
