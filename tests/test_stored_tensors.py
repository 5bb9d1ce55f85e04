"""How initializers and Constant nodes are converted, and what is computed or merged beforehand."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from amp_rewrite.model import constants, loading, serialization
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.pipeline import rewrite
from amp_rewrite.preparing import batch_norm_folding, constant_folding
from amp_rewrite.process import worker
from amp_rewrite.rewriting import editing
from tests import model_files, text
from tests.text import agree, model


@pytest.mark.parametrize("above", [0, 1])
def test_large_tensors_are_converted_when_they_are_written(above, monkeypatch):
    """From LAZY_FROM bytes on, a tensor is converted lazily, to the same values as an eager one."""
    monkeypatch.setattr(editing, "LAZY_FROM", 64 + above)
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    result = rewrite(ir.from_proto(proto))
    tensor = result.model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor) == (not above)
    assert (tensor.dtype, list(tensor.shape), tensor.name) == (ir.DataType.FLOAT16, [4, 4], "w")
    expected = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float16)
    np.testing.assert_array_equal(tensor.numpy(), expected, strict=True)
    agree(proto, ir.to_proto(result.model))


def test_a_reference_is_no_constant():
    """A Constant whose value is a parameter of its function has no known value."""
    node = ir.node("Constant", [])
    node.attributes["value"] = ir.RefAttr("value", "given", ir.AttributeType.TENSOR)
    assert constants.constant(node) is None


# ---- folding without onnxruntime, and of what is long


def test_without_onnxruntime(monkeypatch):
    """onnx's reference computes what is stored, to float32's rounding."""
    monkeypatch.setattr(worker.importlib.util, "find_spec", lambda _: None)
    data = text.model("g () => (float[4] y) <float[4] w> { a = Exp (w)  y = Mul (a, w) }")
    found = worker.evaluate(data.SerializeToString())
    array = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(found["y"]))
    weights = text.stored(data)["w"]
    np.testing.assert_allclose(array, np.exp(weights) * weights, rtol=1e-6)


def test_a_long_chain():
    """A long row of nodes of stored values is no deeper for us than a short one."""
    lines = [f"v{i + 1} = Neg (v{i})" for i in range(3_000)]
    proto = text.unchecked(
        f"g (float[4] x) => (float[4] y) <float[4] v0> {{ {' '.join(lines)}  y = Add (x, v3000) }}"
    )
    loaded = loading.load(proto)
    assert len(constant_folding.fold_constants(loaded.model, ())) == 3_000


# ---- a BatchNormalization folded into large weights


def test_a_large_weight_is_folded_when_it_is_read(tmp_path):
    """A large weight in a file is multiplied as it is written, and nothing of it is held until then."""
    before = """g (float[1,700] x) => (float[1,700] y)
    <float[700,700] w, float[700] scale, float[700] shift, float[700] mean, float[700] var> {
        h = Gemm (x, w)  y = BatchNormalization (h, scale, shift, mean, var) }"""
    proto = text.model(before)
    source = tmp_path / "m.onnx"
    model_files.save_external(onnx.ModelProto.FromString(proto.SerializeToString()), source, "m.data")
    loaded = loading.load(source)
    assert batch_norm_folding.fold(loaded.model, FLOAT16, ())
    weight = loaded.model.graph.initializers["w"].const_value
    assert isinstance(weight, ir.LazyTensor)
    in_memory = loading.load(proto)
    batch_norm_folding.fold(in_memory.model, FLOAT16, ())
    np.testing.assert_array_equal(weight.numpy(), text.stored(serialization.to_proto(in_memory))["w"])
