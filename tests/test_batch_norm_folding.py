"""A BatchNormalization folded into large weights; `batch_norm_folding.cases` has the small ones."""

import numpy as np
import onnx
import onnx_ir as ir

from amp_rewrite.model import loading, serialization
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.preparing import batch_norm_folding
from tests import model_files, text


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
