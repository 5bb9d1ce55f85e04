"""An opset at which more is bfloat16, where some nodes lose their kernels: named, priced, and not taken."""

import onnx
import pytest

from amp_rewrite import Options, rewrite
from amp_rewrite.preparing.opset_raising import NewerOpset
from tests import text
from tests.commands import run

POOLED = """g (float[1,8,64,64] x) => (float[1,8,32,32] y) <float[8,8,3,3] v, float[8,8,3,3] w> {
  [a] a = Conv <pads = [1, 1, 1, 1]> (x, v) [b] b = Conv <pads = [1, 1, 1, 1]> (a, w)
  [c] c = Conv <pads = [1, 1, 1, 1]> (b, v) [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
  [d] d = Conv <pads = [1, 1, 1, 1]> (p, v) [e] y = Conv <pads = [1, 1, 1, 1]> (d, w)
}"""
"""Conv has bfloat16 from opset 22 on, where MaxPool has no kernel on CUDA."""
SCALED = """g (float[1,8,8,8] x) => (float[1,8,8,8] y) <float[8,8,1,1] v, float[8,8,8,8] w> {
  s = ImageScaler <scale = 2.0> (x) a = MatMul (s, w) y = MatMul (a, w) }"""


def proto(graph, opset=17):
    """A model of that opset."""
    return text.unchecked(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The model in the current folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(POOLED), "m.onnx")
    return "m.onnx"


def bfloat16(graph, at=17, **options):
    """The report on a rewrite to bfloat16."""
    return rewrite(proto(graph, at), Options(half="bfloat16", **options)).report


def test_the_opset_is_named_and_not_taken():
    """By data, for the command to say; float16 has all kernels, and a user who decides is told nothing."""
    assert bfloat16(POOLED).newer_opset == NewerOpset(22, 5, ("MaxPool",))
    assert rewrite(proto(POOLED)).report.newer_opset is None
    assert bfloat16(POOLED, keep_opset=True).newer_opset is None
    asked = bfloat16(POOLED, opset=22)
    assert (asked.newer_opset, asked.prediction.float32.copies, asked.prediction.result.copies) == (
        None,
        0,
        2,
    )
    assert bfloat16(POOLED, opset=22, target="any").prediction.result.copies == 0
    assert bfloat16(SCALED, 9).newer_opset is None  # no runtime has ImageScaler from opset 10 on


def test_a_result_and_a_plan_know_of_later_opsets(path):
    """They said that a Conv can only be float32."""
    product = POOLED.replace("=> (float[1,8,32,32] y)", "=> (float[8,8] y)").replace(
        "(d, w)\n", "(d, w) f = Flatten (z) q = MatMul (f, u) r = MatMul (q, t) y = MatMul (r, t)\n"
    )
    product = product.replace("[e] y", "[e] z").replace("w> {", "w, float[8192,64] u, float[64,64] t> {")
    onnx.save(proto(product), path)
    made = run(path, "--to", "bf16", "--skip=verify", "--save=plan=plan", "--keep-full", "d")
    for subject in ("m_bf16.onnx", "plan"):
        told = run("explain", subject).output
        assert "nothing at this opset: the schema has bfloat16 from 22 on" in told, made.output + told
        assert "it can only be float32" not in told
