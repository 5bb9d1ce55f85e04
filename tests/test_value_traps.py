"""Values that converters get wrong: each network is close at the defaults, and far off where all is half."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import amp_rewrite
from amp_rewrite import Options
from amp_rewrite.policy.options import Level
from amp_rewrite.running.verification import Verdict
from amp_rewrite.tuning.repair import Outcome
from tests.repairs import OnSamples, repaired
from tests.text import model

pytest.importorskip("onnxruntime")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trap:
    """A network, its weights, one sample, and nodes that must stay float32, and that must be half."""

    text: str
    weights: Arrays
    sample: Arrays
    full: str
    half: str


def floats(**arrays: Any) -> Arrays:
    """Arrays in float32."""
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def drawn(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """Normal numbers; as weights of a product they keep its scale."""
    return np.random.default_rng(seed).standard_normal(shape) * scale


def pcm() -> Trap:
    """Audio in whole numbers of 16 bits: its energy is far beyond half, and it is itself at its limit."""
    text = """g (float[1,1,256] x) => (float[1,3,256] y)
        <float[4,1,9] w, float[3,4,9] v, float eps = {1}> {
        [square] s = Mul (x, x) [mean] m = ReduceMean <axes = [2]> (s) [safe] e = Add (m, eps)
        [root] r = Sqrt (e) [level] n = Div (x, r) [first] a = Conv <pads = [4, 4]> (n, w) [act] b = Relu (a)
        [second] y = Conv <pads = [4, 4]> (b, v) }"""
    wave = np.round(32767 * np.sin(np.arange(256) / 5)).reshape(1, 1, 256)
    weights = floats(w=drawn(4, 1, 9, scale=1 / 3), v=drawn(3, 4, 9, scale=1 / 6))
    return Trap(text, weights, floats(x=wave), "square mean safe", "first act second")


def residual_stream() -> Trap:
    """A residual stream at 1e5, as in T5: sums and what reads them, up to the norm."""
    text = """g (float[2,8,32] x) => (float[2,8,32] y)
        <float[32,32] up, float[32,32] down, float[32,32] out, float[32] gain, float two = {2},
        float eps = {1e-6}> {
        [inner] h = MatMul (x, up) [act] a = Relu (h) [outer] d = MatMul (a, down) [stream] r = Add (x, d)
        [square] s = Pow (r, two) [mean] m = ReduceMean <axes = [-1]> (s) [safe] e = Add (m, eps)
        [root] q = Sqrt (e) [level] n = Div (r, q) [scale] g = Mul (n, gain) [head] y = MatMul (g, out) }"""
    down = drawn(32, 32, scale=0.2, seed=1)
    down[:, 3] *= 3e4  # one channel is an outlier, as in trained models
    weights = floats(
        up=drawn(32, 32, scale=0.2, seed=2), down=down, out=drawn(32, 32, scale=0.2, seed=3), gain=np.ones(32)
    )
    return Trap(text, weights, floats(x=drawn(2, 8, 32)), "outer stream square mean", "inner act head")


def padded_row() -> Trap:
    """A mask of float32's lowest number that is added to scores, and a row of padding alone."""
    text = """g (float[2,8,16] x, float[2,1,8] keep) => (float[2,8,16] y)
        <float[16,16] wq, float[16,16] wk, float[16,16] wv, float one = {1}, float lowest = {-3.4028235e38}> {
        [query] q = MatMul (x, wq) [key] k = MatMul (x, wk) [value] v = MatMul (x, wv)
        [turn] t = Transpose <perm = [0, 2, 1]> (k) [scores] s = MatMul (q, t)
        [drop] d = Sub (one, keep) [mask] m = Mul (d, lowest) [masked] a = Add (s, m)
        [soft] p = Softmax <axis = -1> (a) [mix] y = MatMul (p, v) }"""
    keep = np.ones((2, 1, 8))
    keep[0, 0, 5:] = 0
    keep[1] = 0  # nothing is left of this one
    weights = floats(
        **{name: drawn(16, 16, scale=0.2, seed=at) for at, name in enumerate(("wq", "wk", "wv"))}
    )
    return Trap(text, weights, floats(x=drawn(2, 8, 16), keep=keep), "", "query key value scores mix")


def large_ids() -> Trap:
    """Ids above the largest number of half, which are carried in float32 and halved on their way."""
    text = """g (int64[1,6] ids, float[1,6,8] x) => (float[1,6,8] y)
        <float[40000,8] table, float[8,8] w, float two = {2}> {
        [carry] f = Cast <to = 1> (ids) [split] h = Div (f, two) [whole] i = Floor (h)
        [back] at = Cast <to = 7> (i) [embed] e = Gather (table, at) [sum] s = Add (e, x)
        [head] y = MatMul (s, w) }"""
    ids = np.asarray([[3, 2049, 30001, 65505, 70001, 79999]], np.int64)
    weights = floats(table=drawn(40000, 8, seed=1), w=drawn(8, 8, scale=0.4, seed=2))
    sample = {"ids": ids, **floats(x=drawn(1, 6, 8))}
    return Trap(text, weights, sample, "carry split whole back", "head")


def rotary_positions() -> Trap:
    """Angles of rotary embeddings at positions up to 8191, where half has steps of 4."""
    text = """g (float[1,8,16] x, int64[1,8] at) => (float[1,8,8] y)
        <float[16,16] wq, float[16,16] wk, float[1,1,8] speed, int64[1] last = {-1}> {
        [query] q = MatMul (x, wq) [key] k = MatMul (x, wk) [carry] p = Cast <to = 1> (at)
        [column] c = Unsqueeze (p, last) [angles] a = Mul (c, speed)
        [double] aa = Concat <axis = -1> (a, a) [cosine] cos = Cos (aa) [sine] sin = Sin (aa)
        [halves] q1, q2 = Split <axis = -1> (q) [minus] n = Neg (q2) [rotated] qr = Concat <axis = -1> (n, q1)
        [straight] qc = Mul (q, cos) [across] qs = Mul (qr, sin) [turned] t = Add (qc, qs)
        [flip] kt = Transpose <perm = [0, 2, 1]> (k) [scores] y = MatMul (t, kt) }"""
    speed = 10000.0 ** (-np.arange(8) / 8)
    weights = floats(
        wq=drawn(16, 16, scale=0.25, seed=1),
        wk=drawn(16, 16, scale=0.25, seed=2),
        speed=speed.reshape(1, 1, 8),
    )
    sample = {
        "at": np.asarray([[0, 1, 2047, 2049, 4097, 6001, 8190, 8191]], np.int64),
        **floats(x=drawn(1, 8, 16)),
    }
    return Trap(text, weights, sample, "carry angles", "query key scores")


def tiny_norm() -> Trap:
    """A LayerNorm in several nodes whose epsilon, and whose variances, half flushes to zero."""
    text = """g (float[4,32] x) => (float[4,16] y)
        <float[32] gain, float[32] bias, float[32,16] w, float two = {2}, float eps = {1e-12}> {
        [mean] m = ReduceMean <axes = [-1]> (x) [centre] d = Sub (x, m) [square] s = Pow (d, two)
        [variance] v = ReduceMean <axes = [-1]> (s) [safe] e = Add (v, eps) [root] r = Sqrt (e)
        [level] n = Div (d, r) [scale] g = Mul (n, gain) [shift] b = Add (g, bias)
        [head] y = MatMul (b, w) }"""
    weights = floats(
        gain=1 + drawn(32, scale=0.1), bias=drawn(32, scale=0.1, seed=1), w=drawn(32, 16, scale=0.2)
    )
    return Trap(text, weights, floats(x=drawn(4, 32, scale=2e-6)), "square variance safe", "head")


TRAPS: dict[str, Callable[[], Trap]] = {
    "PCM audio": pcm,
    "residual stream at 1e5": residual_stream,
    "padded row": padded_row,
    "ids above 65504": large_ids,
    "positions up to 8191": rotary_positions,
    "epsilon of 1e-12": tiny_norm,
}


def outcome(proto: onnx.ModelProto, sample: Arrays) -> Outcome:
    """What `amp-rewrite MODEL --data SAMPLE` does."""
    return repaired(OnSamples(proto, sample))


def types(proto: onnx.ModelProto) -> dict[str, bool]:
    """Whether each named node makes half."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    halves = {
        info.name
        for info in (*inferred.graph.value_info, *inferred.graph.output)
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    }
    return {node.name: node.output[0] in halves for node in proto.graph.node if node.name}


@pytest.mark.parametrize("name", TRAPS)
def test_the_defaults_are_right(name: str):
    """The result is close to the original, with the products in half and the dangerous part in float32."""
    trap = TRAPS[name]()
    done = outcome(model(trap.text, trap.weights), trap.sample)
    assert isinstance(done.verification, Verdict)
    assert done.verification.ok, done.verification.faults
    made = types(done.result.model)
    if done.result.report.rescaled is None:  # else it is half, and no danger
        assert [node for node in trap.full.split() if made.get(node)] == []
    assert [node for node in trap.half.split() if node in made and not made[node]] == []


@pytest.mark.parametrize("name", sorted(TRAPS.keys() - {"padded row"}))  # masks are clamped even there
def test_everything_in_half_is_wrong(name: str):
    """What makes it a trap: the same network is far off, or not finite, where all that can be is half."""
    trap = TRAPS[name]()
    proto = model(trap.text, trap.weights)
    forced = amp_rewrite.rewrite(proto, Options(level=Level.UNSAFE_FORCE_ALL))
    assert not amp_rewrite.verify(proto, forced.model, trap.sample, device="cpu").ok
