"""The specification of what is float32 for the sake of its digits: ways to write it, and others in half.

Each family has a network around its ways, between layers that are half. Names are those of outputs of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]


def _nothing(_way: str) -> tuple[Arrays, Arrays]:
    return {}, {}


@dataclass(frozen=True)
class Family:
    """`network` with its `ways` and `others`, `weights` for both. Of a way, `full` are float32 where they are
    in it, `held` are so for a reason of numbers, and `half` are half; of `others`, `free` are half. `data`
    gives weights and inputs on which ways show what they lose, for all that are `tried` (None: for all),
    and which the result is `close` on.
    """

    network: str
    ways: Mapping[str, str]
    others: Mapping[str, str]
    full: str
    held: str
    half: str
    free: str
    weights: Arrays = field(default_factory=dict[str, NDArray[np.generic]])
    data: Callable[[str], tuple[Arrays, Arrays]] = _nothing
    tried: frozenset[str] | None = frozenset()
    close: float = 2e-3

    def text(self, way: str) -> str:
        """The network with a way or another in it."""
        return self.network.replace("WAY", {**self.ways, **self.others}[way])


def _eye(size: int, *names: str) -> dict[str, NDArray[np.generic]]:
    return dict.fromkeys(names, np.eye(size, dtype=np.float32))


def _rounded(source: np.random.Generator, spread: float, *shape: int) -> NDArray[np.float32]:
    """Numbers that half holds."""
    return (np.round(source.normal(0, spread, shape) * 64) / 64).astype(np.float32)


def _around_30(_way: str) -> tuple[Arrays, Arrays]:
    """Numbers around 30 whose variance is 1/4: half has steps of 1/2 for their squares."""
    weights = {**_eye(16, "w"), "shift": np.full(16, 30, np.float32)}
    return weights, {"x": _rounded(np.random.default_rng(0), 0.5, 64, 16)}


_LARGEST = {
    "a logarithm of 1 and a little": 8,
    "a logarithm of a rest": 8,
    "an atanh": 0.02,
    "a decay": 0.02,
    "noise of a step": 1,
    "a root of a bounded rest": 0.9,
}
"""The largest of the data, where it is not 4; of small numbers an atanh is the number itself."""


def _near_1(way: str) -> tuple[Arrays, Arrays]:
    """Numbers that half holds exactly, up to the largest."""
    table = 1 - np.linspace(1e-4, 2e-2, 1000, dtype=np.float32).reshape(1000, 1)
    most = _LARGEST.get(way, 4)
    x = np.linspace(-most, most, 4096).astype(np.float16).astype(np.float32).reshape(64, 64)
    return {**_eye(64, *"wvu"), "table": table}, {"x": x, "step": np.arange(64)}


def _small_rests(way: str) -> tuple[Arrays, Arrays]:
    x, z = np.random.default_rng(0).normal(0, 1, (2, 64, 64)).astype(np.float16).astype(np.float32)
    if "cosine" in way:
        x, z = np.tile(x[:1], (64, 1)), z / 16
    return _eye(64, *"wvu"), {"x": x, "z": z}


def _points(_way: str) -> tuple[Arrays, Arrays]:
    """Points 100 from the origin and about 1 from each other."""
    points = 25 + _rounded(np.random.default_rng(0), 0.3, 2, 64, 16)
    return {**_eye(16, *"wv"), "ones": np.ones((64, 1), np.float32)}, {"x": points[0], "z": points[1]}


_GRID = np.tile(np.arange(64, dtype=np.float32) * 8 + 0.5, (64, 1))
_GRIDS = {"grid": _GRID, "again": _GRID, "bias": _GRID[:1], "mean": _GRID[:1] + 1}


def _flows(_way: str) -> tuple[Arrays, Arrays]:
    """A flow of a fraction of a pixel, at coordinates of 500."""
    x = np.random.default_rng(0).normal(0, 0.3, (64, 64)).astype(np.float32)
    return {**_eye(64, "w"), "v": np.eye(64, dtype=np.float32) / 8}, {"x": x, "z": _GRID}


_MEANS = {
    "ones": np.full((64, 64), 1 / 64, np.float32),
    "centring": (np.eye(64) - 1 / 64).astype(np.float32),
}


def _offsets(_way: str) -> tuple[Arrays, Arrays]:
    """Series of 1000 and a little, of which half would have steps of 1/2."""
    source = np.random.default_rng(0)
    weights = {name: source.integers(0, 64, 64) for name in ("sources", "targets")}
    layers = {"first": (64, 32), "second": (32, 16)}
    weights |= {name: source.normal(0, 0.1, size).astype(np.float32) for name, size in layers.items()}
    sizes = {"x": (1, 8, 64), "x2": (1, 8, 64), "p0": (1, 8, 65)}
    return weights, {k: (1000 + source.normal(0, 1, size)).astype(np.float32) for k, size in sizes.items()}


_LARGEST_LOGITS = {
    "log-probabilities": 11,
    "of the rest": 11,
    "squashed": 11,
    "a normal probability": 3.5,
    "two scores": 9,
}


def _logits(way: str) -> tuple[Arrays, Arrays]:
    """Probabilities of 1e-9, and rests of 1e-5, whose logarithms are finite."""
    most = _LARGEST_LOGITS[way]
    return _eye(64, *"wv"), {"x": np.linspace(-most, most, 256, dtype=np.float32).reshape(64, 4).T.copy()}


def _splats(_way: str) -> tuple[Arrays, Arrays]:
    """Splats of 2 pixels at coordinates up to 512."""
    source = np.random.default_rng(0)
    camera = source.uniform(0, 100, (4, 64)).astype(np.float32)
    weights = {**_eye(64, *"vw"), "camera": camera, "shape": np.full((1, 64), 0.125, np.float32)}
    place = np.clip(_GRID[:1] + source.normal(0, 2, (64, 64)), 1, 511) / 512
    x = np.log(place / (1 - place)).astype(np.float16).astype(np.float32)
    points = {"z": source.random((64, 1), np.float32), "points": source.random((1, 4), np.float32)}
    return weights, {"x": x, **points}


def _scores(_way: str) -> tuple[Arrays, Arrays]:
    """512 steps, which add up to scores of thousands."""
    source = np.random.default_rng(0)
    weights = {name: source.random((64, 64), np.float32) / 4 for name in "wu"}
    return weights, {"x": source.random((512, 64), np.float32), "s0": np.zeros(64, np.float32)}


def _quiet(_way: str) -> tuple[Arrays, Arrays]:
    """Audio with powers of 1e-8."""
    x = 1e-4 * np.random.default_rng(0).normal(size=(1, 50, 16)).astype(np.float32)
    behind = -np.linspace(0.1, 0.9, 4, dtype=np.float32).reshape(1, 4)  # the logarithms are below 0
    return {"mel": np.full((8, 16), 0.01, np.float32), "u": behind}, {"x": x}


def _angles(_way: str) -> tuple[Arrays, Arrays]:
    """Angles of about 100, which half holds in steps of 1/16."""
    source = np.random.default_rng(0)
    frequencies = source.normal(0, 60, (3, 64)).astype(np.float32)
    return {"f": frequencies}, {"x": source.random((32, 3), np.float32)}


VARIANCES = Family(
    network="""g (float[64,16] x) => (float[64,8] y) <float[16,16] w, float[16,16] v, float[16,16] u,
    float[1,8] o, float[16] shift, int64[1] last = {1}, float two = {2}, float count = {16}> { a
    = MatMul (x, w) h = Add (a, shift) b = MatMul (x, v) p = Sigmoid (b) c = MatMul (x, u) k =
    Tanh (c) WAY y = MatMul (d, o) }""",
    ways={
        "of the last axis": """q = Mul (h, h) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]>
            (h) r = Mul (m, m) d = Sub (s, r)""",
        "of powers": """q = Pow (h, two) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (h) r
            = Pow (m, two) d = Sub (s, r)""",
        "of sums over a count": """s0 = ReduceSumSquare <axes = [1]> (h) s = Div (s0, count) m0 = ReduceSum
            (h, last) r0 = Mul (m0, m0) m = Div (r0, count) r = Div (m, count) d = Sub (s, r)""",
        "with weights": """q0 = Mul (h, h) q = Mul (p, q0) s = ReduceSum (q, last) m0 = Mul (h, p) m =
            ReduceSum (m0, last) r = Mul (m, m) d = Sub (s, r)""",
        "a covariance": """q = Mul (h, p) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (h) n
            = ReduceMean <axes = [1]> (p) r = Mul (m, n) d = Sub (s, r)""",
        "with axes left out": """q = Mul (h, h) s = ReduceMean <axes = [1], keepdims = 0> (q) m0 =
            ReduceMean <axes = [1], keepdims = 0> (h) m = Unsqueeze (m0, last) r = Mul (m, m) t =
            Unsqueeze (s, last) d = Sub (t, r)""",
    },
    others={
        "a mean of something else": """q = Abs (h) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes =
            [1]> (p) r = Abs (m) d = Sub (s, r)""",
        "a mean less its square": """s = ReduceMean <axes = [1]> (h) m = Identity (s) r = Mul (s, s) d =
            Sub (s, r)""",
        "two means": """s = ReduceMean <axes = [1]> (h) m = ReduceMean <axes = [1]> (p) d = Sub (s, m)""",
        "a product of other means": """q = Mul (p, k) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes
            = [1]> (h) n = ReduceMean <axes = [1]> (p) r = Mul (m, n) d = Sub (s, r)""",
    },
    full="q s m n r d",
    held="m s d",
    half="a h",
    free="m s",
    data=_around_30,
    tried=frozenset(("of the last axis", "of powers", "of sums over a count", "with axes left out")),
)

NEAR_ONE = Family(
    network="""g (float[64,64] x, int64[64] step) => (float[64,64] y) <float[64,64] w, float[64,64] v,
    float[64,64] u, float[1000,1] table, float one = {1}, float two = {2}, float half = {0.5},
    float tiny = {0.0001}, float minus = {-0.5}, float high = {0.99999}> { h = MatMul (x, w) g0
    = MatMul (x, u) WAY y = MatMul (l, v) }""",
    ways={
        "a logarithm of 1 and a little": "b = Mul (h, tiny) c = Add (b, one) l = Log (c)",
        "a logarithm of a rest": "b = Mul (h, tiny) c = Sub (one, b) l = Log (c)",
        "an atanh": """b = Add (one, h) c = Sub (one, h) d = Div (b, c) k = Log (d) l = Mul (k, half)""",
        "a root of a rest": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) l = Sqrt (c)",
        "a root of a bounded rest": """b = Pow (h, two) n = Neg (b) c = Add (n, one) d = Max (c, tiny) l =
            Sqrt (d)""",
        "a divisor": """t = Tanh (h) b = Mul (t, t) c = Sub (one, b) d = Add (c, tiny) l = Div (g0, d)""",
        "a reciprocal": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) l = Reciprocal (c)",
        "odds": "t = Sigmoid (h) c = Sub (one, t) l = Div (t, c)",
        "a reciprocal root": "t = Sigmoid (h) c = Sub (one, t) l = Pow (c, minus)",
        "a square less 1": "t = Tanh (h) b = Mul (t, t) c = Sub (b, one) n = Neg (c) l = Sqrt (n)",
        "an inverse": "t = Tanh (h) c = Mul (t, high) l = Atanh (c)",
        "a deviation": """k = Abs (h) m = Neg (k) e = Exp (m) c = Add (e, one) q = Log (c) r0 = Relu (h) s
            = Add (r0, q) l = Div (g0, s)""",
        "a decay": """k = Abs (h) m = Neg (k) t = Exp (m) b = Pow (t, two) c = Sub (one, b) l = Sqrt (c)""",
        "a logit of what is bounded": """t = Sigmoid (h) c = Clip (t, tiny, high) r = Sub (one, c) d =
            Div (c, r) l = Log (d)""",
        "a logit of a layer": """c = Clip (h, tiny, high) r = Sub (one, c) d = Div (c, r) l = Log (d)""",
        "an atanh of what is bounded": """t = Sigmoid (h) c = Min (t, high) p = Add (c, one) r = Sub (one, c)
            d = Div (p, r) l = Log (d)""",
        "an inverse of what is bounded": """t = Sigmoid (h) c = Min (high, t) m = Neg (c) r = Add (m, one)
            d = Reciprocal (r) l = Log (d)""",
        "noise of a step": "b = Gather (table, step) c = Sub (one, b) r = Sqrt (c) l = Mul (r, h)",
    },
    others={
        "a gate": "t = Sigmoid (h) c = Sub (one, t) l = Mul (g0, c)",
        "a slope": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) l = Mul (g0, c)",
        "a number and 1": "t = Tanh (h) b = Relu (t) c = Add (b, one) l = Div (g0, c)",
        "a rest of a layer": "b = Relu (h) c = Sub (one, b) l = Div (g0, c)",
        "a scaled rest": "b = Mul (half, h) c = Sub (one, b) l = Div (g0, c)",
        "a bounded logit": """t = Sigmoid (h) b = Clip (t, tiny) c = Sub (one, t) d = Max (c, tiny) q = Div
            (b, d) l = Log (q)""",
        "a softplus": """k = Abs (h) m = Neg (k) t = Exp (m) c = Add (t, one) q = Log (c) r = Relu (h) l =
            Add (r, q)""",
        "a bounded weight": "t = Sigmoid (h) b = Min (t, high) c = Sub (one, b) l = Mul (c, h)",
        "a whole power": "t = Sigmoid (h) c = Sub (one, t) l = Mul (c, h)",
        "a logarithm of another sum": "b = Relu (h) c = Add (b, two) l = Log (c)",
    },
    full="t b n c d r",
    held="c",
    half="h y",
    free="h c l y",
    data=_near_1,
    tried=None,
)

SMALL_RESTS = Family(
    network="""g (float[64,64] x, float[64,64] z) => (float[64,64] y) <float[64,64] w, float[64,64] v,
    float[64,64] u, float one = {1}, float six = {6}, float eight = {8}, float minus = {-8},
    float tiny = {0.0001}> { h = MatMul (x, w) g0 = MatMul (z, u) k = Add (h, g0) WAY y = MatMul
    (l, v) }""",
    ways={
        "a noisy or": """a = Sub (h, six) p = Sigmoid (a) q = Sub (one, p) r = ReduceProd <axes = [1]> (q)
            d = Sub (one, r) l = Mul (d, g0)""",
        "one of two": """a = Sub (h, six) p = Sigmoid (a) q = Sub (one, p) b = Sub (g0, six) s = Sigmoid
            (b) t = Sub (one, s) r = Mul (q, t) d = Sub (one, r) l = Mul (d, g0)""",
        "a gate that is nearly open": """a = Add (h, eight) p = Sigmoid (a) d = Sub (one, p) l = Mul (d,
            g0)""",
        "and moved": """a = Sub (h, minus) p = Sigmoid (a) t = Transpose (p) d = Sub (one, t) l = Mul (d,
            g0)""",
        "a cosine distance": """n1 = ReduceL2 <axes = [1]> (h) o1 = Max (n1, tiny) v1 = Div (h, o1) n2 =
            ReduceL2 <axes = [1]> (k) o2 = Max (n2, tiny) v2 = Div (k, o2) t = Transpose <perm = [1, 0]>
            (v2) p = MatMul (v1, t) d = Sub (one, p) l = Mul (d, g0)""",
    },
    others={
        "a gate": "p = Sigmoid (h) d = Sub (one, p) l = Mul (d, g0)",
        "a gate with a bias": "a = Add (h, one) p = Sigmoid (a) d = Sub (one, p) l = Mul (d, g0)",
        "a gate of two": """a = Add (h, eight) p = Sigmoid (a) q = Mul (p, h) d = Sub (one, p) b = Mul (d,
            g0) l = Add (q, b)""",
        "a product": "p = MatMul (h, g0) d = Sub (one, p) l = Mul (d, g0)",
        "a product of gates": """p = Sigmoid (h) q = Sigmoid (g0) r = Mul (p, q) d = Sub (one, r) l = Mul
            (d, g0)""",
    },
    full="p q s t r d",
    held="p d",
    half="h g0 y",
    free="p d l",
    data=_small_rests,
    tried=None,
)

DISTANCES = Family(
    network="""g (float[64,16] x, float[64,16] z) => (float[64,8] y) <float[16,16] w, float[16,16] v,
    float[16,16] k, float[64,8] out, float[18,64] wide, float[64,1] ones, int64[1] last = {1},
    int64[1] first = {0}, float two = {2}, float minus = {-2}, float zero = {0}, float scale =
    {-0.5}> { a = MatMul (x, w) b = MatMul (z, v) o = MatMul (x, k) WAY g1 = Mul (d, scale) e =
    Exp (g1) y = MatMul (e, out) }""",
    ways={
        "squares less a product": """t = Transpose <perm = [1, 0]> (b) p = MatMul (a, t) q = Mul (p, two)
            sa = Mul (a, a) na = ReduceSum (sa, last) sb = Mul (b, b) nb = ReduceSum <keepdims = 0> (sb,
            last) s = Sub (na, q) d = Add (s, nb)""",
        "a product less squares": """t = Transpose <perm = [1, 0]> (b) m = Mul (a, two) p = MatMul (m, t) q
            = Neg (p) na = ReduceSumSquare <axes = [1]> (a) sb = Pow (b, two) nb = ReduceSum <keepdims =
            0> (sb, last) u = Unsqueeze (nb, first) s = Add (na, u) d = Add (q, s)""",
        "of negative squares": """t = Transpose <perm = [1, 0]> (b) p = MatMul (a, t) q = Mul (minus, p) na
            = ReduceSumSquare <axes = [1]> (a) ma = Neg (na) s = Sub (ma, q) sb = Pow (b, two) nb =
            ReduceSum <keepdims = 0> (sb, last) r = Sub (s, nb) d = Neg (r)""",
        "an Einsum": """p = Einsum <equation = "ik,jk->ij"> (a, b) q = Mul (p, two) na = ReduceSumSquare
            <axes = [1]> (a) s = Sub (na, q) sb = Pow (b, two) nb = ReduceSum <keepdims = 0> (sb, last)
            d = Add (s, nb)""",
        "as cdist": """ta = Mul (a, minus) na = ReduceSumSquare <axes = [1]> (a) ca = Concat <axis = 1>
            (ta, na, ones) nb = ReduceSumSquare <axes = [1]> (b) cb = Concat <axis = 1> (b, ones, nb) t
            = Transpose <perm = [1, 0]> (cb) p = MatMul (ca, t) d = Max (p, zero)""",
    },
    others={
        "a product of something else": """t = Transpose <perm = [1, 0]> (b) q = MatMul (o, t) na =
            ReduceSumSquare <axes = [1]> (a) d = Add (q, na)""",
        "a norm that is appended": """na = ReduceSumSquare <axes = [1]> (o) ca = Concat <axis = 1> (a, na,
            ones) d = MatMul (ca, wide)""",
        "a product alone": "t = Transpose <perm = [1, 0]> (b) d = MatMul (a, t)",
    },
    full="p q s e d",
    held="p",
    half="a b y",
    free="d q",
    data=_points,
    tried=None,
)

DISPLACEMENTS = Family(
    network="""g (float[N,64] x, float[N,64] z) => (float[N,64] y) <float[64,64] w, float[64,64] v,
    float[64,64] grid, float[64,64] again, float[1,64] bias, float[1,64] mean, float number =
    {100}, int64 one = {1}, int64 zero = {0}, int64 unit = {1}> { h = MatMul (x, w) WAY y =
    MatMul (d, w) }""",
    ways={
        "of a stored grid": "p = Add (grid, h) d = Sub (p, grid)",
        "of two that are equal": "p = Add (h, grid) d = Sub (p, again)",
        "of an input": "p = Add (z, h) d = Sub (p, z)",
        "in two steps": "p = Add (grid, h) k = MatMul (h, v) q = Add (p, k) d = Sub (q, grid)",
        "of sizes": """s = Shape (x) n = Gather <axis = 0> (s, one) i = Range (zero, n, unit) r = Cast <to
            = 1> (i) j = Range (zero, n, unit) t = Cast <to = 1> (j) p = Add (r, h) d = Sub (p, t)""",
    },
    others={
        "a bias and a mean": "p = Add (h, bias) d = Sub (p, mean)",
        "of features": "k = MatMul (h, v) p = Add (k, h) d = Sub (p, k)",
        "a number": "p = Add (h, number) d = Sub (p, number)",
    },
    full="p q d",
    held="p d",
    half="h y",
    free="p d",
    weights=_GRIDS,
    data=_flows,
    tried=None,
)

DIFFERENCES = Family(
    network="""g (float[1,8,64] x, float[1,8,64] x2, float[1,8,65] p0) => (float[1,8,16] y) <float[64,64]
    w, float[64,64] w2, float[64,32] first, float[32,16] second, float[1,32] gate, int64[1] axis
    = {2}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {-1}, float[64,64] ones,
    float[64,64] centring, int64[1] stop = {100}, int64[6] pads = {0, 0, 4, 0, 0, 4}, int64[64]
    sources, int64[64] targets> { WAY m1 = MatMul (d, first) r = Relu (m1) h = Identity (r) y =
    MatMul (h, second) }""",
    ways={
        "the last value": "l = Slice (x, end, stop, axis) d = Sub (x, l)",
        "a moving average": """p = Pad <mode = "edge"> (x, pads) m = AveragePool <kernel_shape = [9]> (p) d
            = Sub (x, m)""",
        "steps": "b = Slice (p0, zero, end, axis) a = Slice (p0, one, stop, axis) d = Sub (a, b)",
        "points of a graph": """a = Gather <axis = 2> (x, sources) b = Gather <axis = 2> (x, targets) d =
            Sub (a, b)""",
        "another input": "d = Sub (x, x2)",
        "a mean by a product": "m = MatMul (x, ones) d = Sub (x, m)",
        "a mean by a product with what is moved": """t = Transpose <perm = [0, 2, 1]> (x) n = MatMul (ones,
            t) m = Transpose <perm = [0, 2, 1]> (n) d = Sub (x, m)""",
        "a mean in one product": "d = MatMul (x, centring)",
    },
    others={
        "of features": "u = MatMul (x, w) v0 = MatMul (x, w2) d = Sub (u, v0)",
        "of a feature and an input": "u = MatMul (x, w) d = Sub (u, x)",
        "of a product": "u = MatMul (x, w) v0 = MatMul (u, ones) d = Sub (u, v0)",
        "of a layer that takes away": "u = MatMul (x, w) d = MatMul (u, centring)",
        "of a scaled input": "u = Tanh (x) v0 = MatMul (x, w) d = Sub (u, v0)",
    },
    full="d l m p n t a b",
    held="d",
    half="m1 r y",
    free="d",
    weights=_MEANS,
    data=_offsets,
    tried=None,
)

LOGARITHMS = Family(
    network="""g (float[4, 64] x) => (float[4, 64] y) <float[64, 64] w, float[64, 64] v, int64[2] square =
    {4, 64}, float one = {1}, float low = {0.0001}, float tiny = {0.0000001}, float high = {1},
    float two = {2}> { h = MatMul (x, w) WAY z = Mul (h, l) y = MatMul (z, v) }""",
    ways={
        "logsigmoid": "p = Sigmoid (h) l = Log (p)",
        "log-probabilities": "p = Softmax (h) l = Log (p)",
        "of the rest": "p = Sigmoid (h) q = Sub (one, p) l = Log (q)",
        "bounded": "p = Softmax (h) q = Clip (p, low, high) l = Log (q)",
        "moved": "p = Sigmoid (h) q = Reshape (p, square) r = Add (q, low) l = Log (r)",
        "squashed": "p = Tanh (h) q = Mul (p, p) r = Sub (one, q) s = Add (r, low) l = Log (s)",
        "squashed by a power": "p = Tanh (h) q = Pow (p, two) r = Sub (one, q) l = Log (r)",
        "a normal probability": "p = Erf (h) q = Add (p, one) r = Div (q, two) l = Log (r)",
        "two scores": "p = Sigmoid (h) q = Softmax (h) r = Mul (p, q) l = Log (r)",
        "a bin": """p = Sigmoid (h) k = Add (h, low) q = Sigmoid (k) r = Sub (q, p) s = Max (r, tiny) l =
            Log (s)""",
        "entropy": "p = Softmax (h) k = Log (p) l = Mul (p, k)",
    },
    others={
        "of a Relu": "p = Relu (h) q = Add (two, p) l = Log (q)",
        "of a product with a Relu": "p = Sigmoid (h) q = Relu (h) r = Mul (p, q) l = Log (r)",
        "of a sum of two": "p = Sigmoid (h) q = Relu (h) r = Add (p, q) l = Log (r)",
    },
    full="p q r s l k",
    held="p",
    half="h z y",
    free="h p q r l z y",
    data=_logits,
    tried=frozenset(_LARGEST_LOGITS),
)

GAUSSIANS = Family(
    network="""g (float[64,64] x, float[64,1] z, float[1,4] points) => (float[64,64] y) <float[64,64] w,
    float[64,64] v, float[1,64] grid, float[1,64] fine, float[4,64] camera, float size = {512},
    float two = {2}, float minus = {-0.125}, float[1,64] shape, int64 last = {1}, int64 zero =
    {0}, int64 unit = {1}> { h = MatMul (x, w) WAY y = MatMul (e1, v) }""",
    ways={
        "points of a layer": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) q = Mul (d, d) e0 = Mul
            (q, minus) e1 = Exp (e0)""",
        "points of an input": """p = Mul (z, size) d = Sub (grid, p) q = Mul (d, d) e0 = Mul (q, minus) e1
            = Exp (e0)""",
        "projected points": """p0 = MatMul (points, camera) p = Transpose (p0) d = Sub (p, grid) q = Mul
            (d, d) e0 = Mul (q, minus) e1 = Exp (e0)""",
        "a grid of sizes": """s = Shape (x) n = Gather <axis = 0> (s, last) i = Range (zero, n, unit) r =
            Cast <to = 1> (i) t = Sigmoid (h) p = Mul (t, size) d = Sub (p, r) q = Mul (d, d) e0 = Mul
            (q, minus) e1 = Exp (e0)""",
        "a power": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) q = Pow (d, two) e0 = Mul (q,
            minus) e1 = Exp (e0)""",
        "of a covariance": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) a = Mul (d, shape) q =
            Mul (a, d) e0 = Neg (q) e1 = Exp (e0)""",
    },
    others={
        "no square": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) e0 = Mul (d, minus) e1 = Exp
            (e0)""",
        "no exponential": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) q = Abs (d) e1 = Tanh (q)""",
        "features": """k = MatMul (x, v) p = Mul (k, two) d = Sub (p, h) q = Mul (d, d) e0 = Mul (q, minus)
            e1 = Exp (e0)""",
        "a small grid": """t = Sigmoid (h) p = Mul (t, two) d = Sub (p, fine) q = Mul (d, d) e0 = Mul (q,
            minus) e1 = Exp (e0)""",
    },
    full="t p0 p d q e0 e1",
    held="p d",
    half="y",
    free="h",
    weights={"grid": _GRID[:1], "fine": _GRID[:1] / 512},
    data=_splats,
    tried=None,
)

MOVING_AVERAGES = Family(
    network="""g (float[64,64] x, float[64,64] s) => (float[64,64] n, float[64,64] y) <float[64,64] w,
    float[64,64] v, float most = {0.999}, float little = {0.001}, float half = {0.5}, float
    tenth = {0.1}> { h = MatMul (x, w) WAY r = Relu (n) y = MatMul (r, v) }""",
    ways={
        "two weights": "a = Mul (s, most) b = Mul (h, little) n = Add (a, b)",
        "the other way round": "a = Mul (little, h) b = Mul (most, s) n = Add (a, b)",
        "a step": "d = Sub (h, s) b = Mul (d, little) n = Add (s, b)",
    },
    others={
        "two halves": "a = Mul (s, half) b = Mul (h, half) n = Add (a, b)",
        "a residual": "k = Tanh (h) b = Mul (k, little) n = Add (h, b)",
        "weights of more than 1": "a = Mul (s, most) b = Mul (h, half) n = Add (a, b)",
        "layers that are weighed": """k = Relu (h) a = Mul (k, most) q = Tanh (h) b = Mul (q, little) n0 =
            Add (a, b) n = Add (n0, s)""",
        "a step from another": "k = Tanh (h) d = Sub (h, k) b = Mul (d, little) n = Add (h, b)",
    },
    full="a b d n",
    held="n",
    half="h y",
    free="",
)

RUNNING_SUMS = Family(
    network="""g (float[T,64] x, float[64] s0) => (float[64] y) <float[64,64] w, float[64,64] u, float one
    = {1}, float keep = {0.999}, float part = {0.001}, float far = {99}, float[1] start,
    int64[1] at = {0}, int64[1] last = {-1}, int64[2] shift = {1, 0}, int64[1] all = {64},
    int64[1] step = {1}, int64[64] order> { a = MatMul (x, w) y = Scan <num_scan_inputs = 1,
    body = b (float[64] s, float[64] i) => (float[64] r) { v = MatMul (i, u) WAY }> (s0, a) }""",
    ways={
        "a sum": "r = Add (s, v)",
        "a count": "r = Add (one, s)",
        "a moving average": "p = Mul (s, keep) q = Mul (v, part) r = Add (p, q)",
        "a sum of some": "q = Add (s, v) m = Greater (i, one) r = Where (m, q, s)",
        "a selective scan": "p = Sigmoid (v) q = Mul (s, p) r = Add (q, v)",
        "several terms": "q = Add (s, v) t = Sub (q, one) r = Identity (t)",
        "a best path": """p = Unsqueeze (s, at) q = Add (p, u) m = ReduceMax <axes = [0], keepdims = 0> (q)
            r = Add (m, v)""",
        "a best path by columns": """p = Unsqueeze (s, at) q = Add (p, u) t = Transpose <perm = [1, 0]> (q)
            m = ReduceMin <axes = [1], keepdims = 0> (t) r = Sub (m, v)""",
        "time warping": """p = Pad (s, shift, far) q = Slice (p, at, last, at) m = Min (s, q) r = Add (m,
            v)""",
        "a sum above a floor": "q = Add (s, v) r = Max (q, one)",
        "the best of a beam": "q = Add (s, v) p, i0 = TopK (q, all) r = Identity (p)",
        "a moving average by differences": "p = Sub (v, s) q = Mul (p, part) r = Add (s, q)",
        "a sum from 0 on": "q = Add (s, v) r = Relu (q)",
        "a sum within bounds": "p = Mul (s, keep) q = Add (p, v) r = Clip (q, one, far)",
        "time warping by parts": """p = Slice (s, at, last, at) q = Concat <axis = 0> (start, p) m = Min
            (s, q) r = Add (m, v)""",
        "sums in a table": """p = Gather (s, order) q = Add (p, v) i0 = Unsqueeze (order, step) q0 = Expand
            (q, all) r = ScatterND (s, i0, q0)""",
        "sums of chosen ones": "j = Gather (s, order) q = Add (j, v) r = GatherElements (q, order)",
    },
    others={
        "a residual": "p = Tanh (s) q = Mul (p, v) r = Add (s, q)",
        "a gate": "p0 = Add (s, v) p = Sigmoid (p0) q = Mul (s, p) r = Add (q, v)",
        "a choice of something else": "q = Add (s, v) m = Greater (i, one) r = Where (m, q, v)",
        "an activation of a sum": "q = Add (s, v) r = Tanh (q)",
        "a product": "r = Mul (s, v)",
        "a cache": """p = Slice (s, step, all, at) q = Slice (v, at, step, at)
            r = Concat <axis = 0> (p, q)""",
        "a cache of a layer": """h = MatMul (s, u) p = Slice (s, step, all, at) q = Slice (h, at, step, at)
            f = Slice (s, at, step, at) d = Add (q, f) r = Concat <axis = 0> (p, d)""",
        "a maximum": "p = Max (s, v) r = Min (p, one)",
        "a maximum of an activation": "p = Tanh (s) q = Max (s, p) r = Add (q, v)",
        "a residual of a loop": """q = Scan <num_scan_inputs = 1, body = c (float[64] h, float[64] j) =>
            (float[64] k) { p = Add (h, j) k = Tanh (p) }> (s, a) r = Add (s, q)""",
        "a residual of a branch": """m = ReduceMax <keepdims = 0> (v) z = Greater (m, one) q = If (z)
            <then_branch = c () => (float[64] p) { p = MatMul (s, u) }, else_branch = d () => (float[64]
            p2) { p2 = Identity (v) }> r = Add (s, q)""",
    },
    full="r",
    held="r",
    half="a v",
    free="a v r",
    data=_scores,
    tried=frozenset(("a best path", "time warping")),
    close=1e-3,
)

SPECTRA = Family(
    network="""g (float[1,T,16] x) => (float[1,T,k] y) <float[16,16] d, float[8,16] mel, float[16,16] v,
    float[16,16] w, float faint = {1e-10}, float one = {1}, int64[2] parts = {8, 8}, float[1,4]
    u> { s = MatMul (x, d) re, im = Split <axis = 2> (s, parts) WAY l = Log (c) a = ReduceMean
    <axes = [2]> (l) b = MatMul (a, u) y = Relu (b) }""",
    ways={
        "mel features": """rr = Mul (re, re) ii = Mul (im, im) p = Add (rr, ii) m = MatMul (p, mel) c =
            Clip (m, faint)""",
        "magnitudes": """rr = Mul (re, re) ii = Mul (im, im) p = Add (rr, ii) g = Sqrt (p) m = MatMul (g,
            mel) c = Add (m, faint)""",
        "energies": "p = ReduceSumSquare <axes = [2]> (s) c = Max (p, faint)",
    },
    others={
        "a floor above what half rounds": """rr = Mul (re, re) ii = Mul (im, im) p = Add (rr, ii) m =
            MatMul (p, mel) c = Add (m, one)""",
        "no spectrum": """h = MatMul (s, v) t = Tanh (h) q = Mul (t, t) m = MatMul (q, w) c = Add (m,
            faint)""",
        "no power": "h = MatMul (s, v) c = Max (h, faint)",
    },
    full="s re p m c l",
    held="s p",
    half="b",
    free="s m h",
    data=_quiet,
    tried=frozenset(("mel features",)),
    close=5e-3,
)

ANGLES = Family(
    network="""g (float[N,3] x) => (float[N,64] y) <float[3,64] f, float[64] b, float[128,64] w,
    float[64,64] v, float two = {2.0}> { WAY s = Sin (a) c1 = Cos (a) k = Concat <axis = 1> (s,
    c1) m1 = MatMul (k, w) r = Relu (m1) y = MatMul (r, v) }""",
    ways={
        "frequencies": "a = MatMul (x, f)",
        "with a bias": "a = Gemm (x, f, b)",
        "scaled": "u = Mul (x, two) o = Sub (u, two) m = MatMul (o, f) a = Mul (m, two)",
        "of a time": """c = Constant <value_ints = [0]> () t = Gather <axis = 1> (x, c) a = Mul (t, b)""",
    },
    others={},
    full="a s c1",
    held="a s c1",
    half="m1 r y",
    free="",
    data=_angles,
    tried=frozenset(("frequencies",)),
)

FAMILIES = {
    "variances": VARIANCES,
    "near one": NEAR_ONE,
    "small rests": SMALL_RESTS,
    "distances": DISTANCES,
    "displacements": DISPLACEMENTS,
    "differences": DIFFERENCES,
    "logarithms": LOGARITHMS,
    "gaussians": GAUSSIANS,
    "moving averages": MOVING_AVERAGES,
    "running sums": RUNNING_SUMS,
    "spectra": SPECTRA,
    "angles": ANGLES,
}
