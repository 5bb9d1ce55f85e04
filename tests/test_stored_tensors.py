"""How initializers and Constant nodes are converted."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from amp_rewrite.model import constants
from amp_rewrite.pipeline import rewrite
from amp_rewrite.rewriting import editing
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
