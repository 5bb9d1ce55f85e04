"""Folding of what is huge, not valid or long; `constant_folding.cases` has the rest."""

import numpy as np
import onnx
import pytest

from amp_rewrite.model import loading
from amp_rewrite.preparing import constant_folding
from amp_rewrite.process import worker_process
from tests import text


@pytest.mark.parametrize(
    "bomb",
    [
        "t = Constant <value_ints=[1000000, 1000000]> ()  b = ConstantOfShape (t)  m = ReduceSum (b)",
        "a = Expand (w, s)  m = Exp (a)",
        "m = Tile (w, s)",
        """n = Constant <value_float=1e12> ()  z = Constant <value_float=0.0> ()
           o = Constant <value_float=1.0> ()  m = Range (z, n, o)""",
        'm = Einsum <equation="i,j,k,l,m,n,o->ijklmno"> (w, w, w, w, w, w, w)',
    ],
)
def test_what_would_be_huge_is_not_computed(bomb):
    """Sizes are inferred before anything is computed."""
    proto = text.unchecked(
        f"""g (float[64] x) => (y) <float[64] w, int64[1] s = {{100000000000}}> {{
            {bomb}  k = Neg (w)  h = Add (x, k)  y = Add (h, m) }}"""
    )
    loaded = loading.load(proto)
    changes = constant_folding.fold_constants(loaded.model, ())
    assert [change.node for change in changes] == ["k"]


@pytest.mark.parametrize(
    "odd", ["a = Exp <alpha=1> (w, w)", "a = Softmax <axis=77> (w)", "a = MatMul (w, s)"]
)
def test_what_is_not_valid_is_left_alone(odd):
    """A node that cannot be computed stays, and no error is raised."""
    proto = text.unchecked(
        f"g (float[4] x) => (float[4] y) <float[4] w, float[3] s> {{ {odd}  y = Add (x, a) }}"
    )
    loaded = loading.load(proto)
    assert constant_folding.fold_constants(loaded.model, ()) == ()
    assert len(loaded.model.graph) == 2


def test_without_onnxruntime(monkeypatch):
    """onnx's reference computes what is stored, to float32's rounding."""
    monkeypatch.setattr(worker_process.importlib.util, "find_spec", lambda _: None)
    data = text.model("g () => (float[4] y) <float[4] w> { a = Exp (w)  y = Mul (a, w) }")
    found = worker_process.evaluate(data.SerializeToString())
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
