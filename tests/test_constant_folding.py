"""Folding without onnxruntime, and of what is long; `constant_folding.cases` has the rest."""

import numpy as np
import onnx

from amp_rewrite.model import loading
from amp_rewrite.preparing import constant_folding
from amp_rewrite.process import worker
from tests import text


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
