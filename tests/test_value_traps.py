"""Values that converters get wrong: each network is close at the defaults, and far off where all is half."""

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
from tests.repairs import OnSamples, repaired
from tests.text import model, unchecked

pytest.importorskip("onnxruntime")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trap:
    """A network, its weights by name as numbers or the scale of normal ones, one sample, and nodes that must
    stay float32, and that must be half.
    """

    text: str
    weights: dict[str, Any]
    sample: dict[str, Any]
    full: str
    half: str

    @property
    def model(self) -> onnx.ModelProto:
        """The network with its weights."""
        empty = unchecked(self.text)
        shapes = {tensor.name: tensor.dims for tensor in empty.graph.initializer}
        drawn = {
            name: normal(*shapes[name], scale=given, seed=seed) if np.isscalar(given) else given
            for seed, (name, given) in enumerate(self.weights.items())
        }
        return model(self.text, {name: np.asarray(array, np.float32) for name, array in drawn.items()})

    @property
    def feeds(self) -> Arrays:
        """The sample, in float32 or in integers."""
        arrays = {name: np.asarray(array) for name, array in self.sample.items()}
        return {name: a if a.dtype == np.int64 else a.astype(np.float32) for name, a in arrays.items()}


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """Normal numbers; as weights of a product they keep its scale."""
    return np.random.default_rng(seed).standard_normal(shape) * scale


OUTLIER = normal(32, 32, scale=0.2, seed=1) * np.where(np.arange(32) == 3, 3e4, 1)
"""Weights with one channel that is an outlier, as in trained models."""
KEEP = np.stack([[[1] * 5 + [0] * 3], [[0] * 8]])
"""Nothing is left of the second row."""

TRAPS = {
    # Audio in whole numbers of 16 bits: its energy is far beyond half, and it is itself at its limit.
    "PCM audio": Trap(
        """g (float[1,1,256] x) => (float[1,3,256] y)
        <float[4,1,9] w, float[3,4,9] v, float eps = {1}> {
        [square] s = Mul (x, x) [mean] m = ReduceMean <axes = [2]> (s) [safe] e = Add (m, eps)
        [root] r = Sqrt (e) [level] n = Div (x, r) [first] a = Conv <pads = [4, 4]> (n, w) [act] b = Relu (a)
        [second] y = Conv <pads = [4, 4]> (b, v) }""",
        {"w": 1 / 3, "v": 1 / 6},
        {"x": np.round(32767 * np.sin(np.arange(256) / 5)).reshape(1, 1, 256)},
        full="square mean safe",
        half="first act second",
    ),
    # A residual stream at 1e5, as in T5: sums and what reads them, up to the norm.
    "residual stream at 1e5": Trap(
        """g (float[2,8,32] x) => (float[2,8,32] y)
        <float[32,32] up, float[32,32] down, float[32,32] out, float[32] gain, float two = {2},
        float eps = {1e-6}> {
        [inner] h = MatMul (x, up) [act] a = Relu (h) [outer] d = MatMul (a, down) [stream] r = Add (x, d)
        [square] s = Pow (r, two) [mean] m = ReduceMean <axes = [-1]> (s) [safe] e = Add (m, eps)
        [root] q = Sqrt (e) [level] n = Div (r, q) [scale] g = Mul (n, gain) [head] y = MatMul (g, out) }""",
        {"gain": np.ones(32), "down": OUTLIER, "up": 0.2, "out": 0.2},
        {"x": normal(2, 8, 32)},
        full="outer stream square mean",
        half="inner act head",
    ),
    # A mask of float32's lowest number that is added to scores, and a row of padding alone.
    "padded row": Trap(
        """g (float[2,8,16] x, float[2,1,8] keep) => (float[2,8,16] y)
        <float[16,16] wq, float[16,16] wk, float[16,16] wv, float one = {1}, float lowest = {-3.4028235e38}> {
        [query] q = MatMul (x, wq) [key] k = MatMul (x, wk) [value] v = MatMul (x, wv)
        [turn] t = Transpose <perm = [0, 2, 1]> (k) [scores] s = MatMul (q, t)
        [drop] d = Sub (one, keep) [mask] m = Mul (d, lowest) [masked] a = Add (s, m)
        [soft] p = Softmax <axis = -1> (a) [mix] y = MatMul (p, v) }""",
        {"wq": 0.2, "wk": 0.2, "wv": 0.2},
        {"x": normal(2, 8, 16), "keep": KEEP.astype(float)},
        full="",
        half="query key value scores mix",
    ),
    # Ids above the largest number of half, which are carried in float32 and halved on their way.
    "ids above 65504": Trap(
        """g (int64[1,6] ids, float[1,6,8] x) => (float[1,6,8] y)
        <float[40000,8] table, float[8,8] w, float two = {2}> {
        [carry] f = Cast <to = 1> (ids) [split] h = Div (f, two) [whole] i = Floor (h)
        [back] at = Cast <to = 7> (i) [embed] e = Gather (table, at) [sum] s = Add (e, x)
        [head] y = MatMul (s, w) }""",
        {"table": 1.0, "w": 0.4},
        {"ids": [[3, 2049, 30001, 65505, 70001, 79999]], "x": normal(1, 6, 8)},
        full="carry split whole back",
        half="head",
    ),
    # Angles of rotary embeddings, where half has steps of 4.
    "positions up to 8191": Trap(
        """g (float[1,8,16] x, int64[1,8] at) => (float[1,8,8] y)
        <float[16,16] wq, float[16,16] wk, float[1,1,8] speed, int64[1] last = {-1}> {
        [query] q = MatMul (x, wq) [key] k = MatMul (x, wk) [carry] p = Cast <to = 1> (at)
        [column] c = Unsqueeze (p, last) [angles] a = Mul (c, speed)
        [double] aa = Concat <axis = -1> (a, a) [cosine] cos = Cos (aa) [sine] sin = Sin (aa)
        [halves] q1, q2 = Split <axis = -1> (q) [minus] n = Neg (q2) [rotated] qr = Concat <axis = -1> (n, q1)
        [straight] qc = Mul (q, cos) [across] qs = Mul (qr, sin) [turned] t = Add (qc, qs)
        [flip] kt = Transpose <perm = [0, 2, 1]> (k) [scores] y = MatMul (t, kt) }""",
        {"wq": 0.25, "wk": 0.25, "speed": 10000.0 ** (-np.arange(8).reshape(1, 1, 8) / 8)},
        {"at": [[0, 1, 2047, 2049, 4097, 6001, 8190, 8191]], "x": normal(1, 8, 16)},
        full="carry angles",
        half="query key scores",
    ),
    # A LayerNorm in several nodes whose epsilon, and whose variances, half flushes to zero.
    "epsilon of 1e-12": Trap(
        """g (float[4,32] x) => (float[4,16] y)
        <float[32] gain, float[32] bias, float[32,16] w, float two = {2}, float eps = {1e-12}> {
        [mean] m = ReduceMean <axes = [-1]> (x) [centre] d = Sub (x, m) [square] s = Pow (d, two)
        [variance] v = ReduceMean <axes = [-1]> (s) [safe] e = Add (v, eps) [root] r = Sqrt (e)
        [level] n = Div (d, r) [scale] g = Mul (n, gain) [shift] b = Add (g, bias)
        [head] y = MatMul (b, w) }""",
        {"gain": 1 + normal(32, scale=0.1), "bias": 0.1, "w": 0.2},
        {"x": normal(4, 32, scale=2e-6)},
        full="square variance safe",
        half="head",
    ),
}


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
    trap = TRAPS[name]
    done = repaired(OnSamples(trap.model, trap.feeds))
    assert isinstance(done.verification, Verdict)
    assert done.verification.ok, done.verification.faults
    made = types(done.result.model)
    if done.result.report.rescaled is None:  # else it is half, and no danger
        assert [node for node in trap.full.split() if made.get(node)] == []
    assert [node for node in trap.half.split() if node in made and not made[node]] == []


@pytest.mark.parametrize("name", sorted(TRAPS.keys() - {"padded row"}))  # masks are clamped even there
def test_everything_in_half_is_wrong(name: str):
    """What makes it a trap: the same network is far off, or not finite, where all that can be is half."""
    trap = TRAPS[name]
    forced = amp_rewrite.rewrite(trap.model, Options(level=Level.UNSAFE_FORCE_ALL))
    assert not amp_rewrite.verify(trap.model, forced.model, trap.feeds, device="cpu").ok
