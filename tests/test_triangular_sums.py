"""Cumulative sums that are written as products with a triangle of ones: float32, as CumSum is."""

import numpy as np
import pytest
from numpy.typing import NDArray

from amp_rewrite import Options, pipeline, verify
from tests.text import RUNS, Weights, in_half, model, rewritten

STEPS = 256
ONES = np.ones((STEPS, STEPS), np.float32)
PRODUCT = "c = MatMul (t, a)"
TURNED = "Transpose <perm = [1, 0]>"
WAYS: dict[str, tuple[str, NDArray[np.float32]]] = {
    "from the left": (PRODUCT, np.tril(ONES)),
    "without itself": (PRODUCT, np.tril(ONES, -1)),
    "from the end": (PRODUCT, np.triu(ONES)),
    "from the end, without itself": (PRODUCT, np.triu(ONES, 1)),
    "along rows": (f"r = {TURNED} (a) s = MatMul (r, t) c = {TURNED} (s)", np.triu(ONES)),
    "with an axis of 1": ("r = Unsqueeze (a, at) s = MatMul (t, r) c = Squeeze (s, at)", np.tril(ONES)[None]),
    "passed on": ("k = Identity (t) c = MatMul (k, a)", np.tril(ONES)),
    "cut to length": ("k = Slice (t, at, length, last) c = MatMul (k, a)", np.tril(ONES)),
    "expanded": (
        "k = Expand (t, twice) s0 = MatMul (k, a) s = Slice (s0, at, one, at) c = Squeeze (s, at)",
        np.tril(ONES),
    ),
    "a Gemm": ("c = Gemm <transA = 1> (t, a)", np.triu(ONES)),
    "an Einsum": ('c = Einsum <equation = "ts,sd->td"> (t, a)', np.tril(ONES)),
    "an Einsum of data and triangle": (
        'b0 = Unsqueeze (a, at) s = Einsum <equation = "bsd, ts -> btd"> (b0, t) c = Squeeze (s, at)',
        np.tril(ONES),
    ),
    "turned": (f"k0 = Slice (t, at, length, at) k = {TURNED} (k0) c = MatMul (k, a)", np.triu(ONES)),
    "cast from truths": ("k = Cast <to = 1> (mask) c = MatMul (k, a)", ONES),
    "a Trilu": (
        "o = ConstantOfShape <value = float[1] {1}> (size) k = Trilu <upper = 0> (o) c = MatMul (k, a)",
        ONES,
    ),
    "a Trilu of an Expand": ("o = Expand (unit, size) k = Trilu <upper = 0> (o) c = MatMul (k, a)", ONES),
    "a Trilu of truths": (
        "o = Cast <to = 9> (t) o2 = Trilu <upper = 0> (o) k = Cast <to = 1> (o2) c = MatMul (k, a)",
        ONES,
    ),
    "stored ranges": (
        "o = Less (columns, rows) k = Cast <to = 1> (o) c = MatMul (k, a)",
        ONES,
    ),
    "a Range by a Range": (
        """i = Range (none, n, step) j = Unsqueeze (i, at) i2 = Unsqueeze (i, last)
        o = GreaterOrEqual (i2, j) k = Cast <to = 1> (o) c = MatMul (k, a)""",
        ONES,
    ),
}
SIZES = """v0 = Shape (x) length = Slice (v0, at, one, at) size = Concat <axis = 0> (length, length)
    n = Squeeze (length) twice = Concat <axis = 0> (two, size)"""
OTHERS: dict[str, tuple[str, NDArray[np.float32]]] = {
    "averages": (PRODUCT, np.tril(ONES) / np.arange(1, STEPS + 1, dtype=np.float32)[:, None]),
    "all ones": (PRODUCT, ONES),
    "an identity": (PRODUCT, np.eye(STEPS, dtype=np.float32)),
    "weights that begin as a triangle": (PRODUCT, np.tril(ONES) + np.eye(STEPS, k=-99, dtype=np.float32)),
    "any weights": (PRODUCT, np.random.default_rng(0).random((STEPS, STEPS), np.float32)),
    "a Trilu of others": ("o = Expand (part, size) k = Trilu <upper = 0> (o) c = MatMul (k, a)", ONES),
    "other numbers by a range": ("o = Less (lengths, rows) k = Cast <to = 1> (o) c = MatMul (k, a)", ONES),
    "two triangles": (
        "o = Expand (unit, size) k = Trilu <upper = 0> (o) c = MatMul (k, t) z = MatMul (c, a)",
        np.tril(ONES),
    ),
}


def network(way: str, triangle: NDArray[np.float32]) -> tuple[str, Weights]:
    """A state space model of one head: decays are added up, and taken from each other for each two steps."""
    random = np.random.default_rng(0)
    shapes = {"wx": (64, 64), "wd": (64, 1), "wb": (64, 16), "wc": (64, 16), "wo": (64, 64)}
    weights = {name: random.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    sizes = ", ".join(map(str, triangle.shape))
    text = f"""g (float[{STEPS},64] x) => (float[{STEPS},64] y) <float[64,64] wx, float[64,1] wd,
        float[64,16] wb, float[64,16] wc, float[64,64] wo, float[{sizes}] t, int64[1] at = {{0}},
        int64[1] last = {{1}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64 none = {{0}},
        int64 step = {{1}}, float unit = {{1}}, float part = {{0.5}},
        int64[{STEPS},1] rows, int64[1,{STEPS}] columns, int64[1,{STEPS}] lengths,
        bool[{STEPS},{STEPS}] mask, float low = {{-1e30}}> {{
        {SIZES} v = MatMul (x, wx) b = MatMul (x, wb) q = MatMul (x, wc)
        g0 = MatMul (x, wd) g = Softplus (g0) a = Neg (g)
        {way}
        ct = Transpose <perm = [1, 0]> (c) d = Sub (c, ct) m = Where (mask, d, low) e = Exp (m)
        bt = Transpose <perm = [1, 0]> (b) p = MatMul (q, bt) l = Mul (p, e) u = Mul (v, g)
        h = MatMul (l, u) y = MatMul (h, wo) }}"""
    steps = np.arange(STEPS)
    counts = {"rows": steps[:, None], "columns": steps[None], "lengths": steps[None, ::-1]}
    return text, {**weights, **counts, "t": triangle, "mask": np.tril(ONES) > 0}


@pytest.mark.parametrize("way", WAYS)
def test_a_cumulative_sum_stays(way: str):
    """It is float32, and so is what follows up to the exponential; other products are half."""
    text, weights = network(*WAYS[way])
    found = in_half(text, weights=weights)
    assert {"v", "g0", "b", "q", "p", "h", "y"} <= found
    assert not found & {"c", "s", "ct", "d", "m", "e"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_products_are_half(way: str):
    """Where the matrix is no triangle of ones: as ever."""
    text, weights = network(*OTHERS[way])
    assert "c" in in_half(text, weights=weights)


def test_a_masked_sum_of_an_einsum_is_half():
    """What is added up is another row for each step: no cumulative sum."""
    text, weights = network('u2 = MatMul (a, r) c = Einsum <equation = "ts,ts->t"> (t, u2)', np.tril(ONES))
    text = text.replace("float unit", f"float[1,{STEPS}] r, float unit").split("ct =")[0]
    text = text.replace(f"(float[{STEPS},64] y)", f"(float[{STEPS}] c)") + "}"
    assert "c" in in_half(text, weights=weights)


@pytest.mark.parametrize("rows", [2, 3])
def test_a_small_matrix_is_no_triangle(rows: int):
    """From three rows on."""
    text = f"g (float[4,{rows}] x) => (float[4,{rows}] y) <float[{rows},{rows}] t> {{ y = MatMul (x, t) }}"
    weights = {"t": np.tril(np.ones((rows, rows), np.float32))}
    assert in_half(text, weights=weights) == ({"y"} if rows == 2 else set())


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", ["from the left", "along rows"])
def test_segment_sums_keep_their_digits(way: str, half: str):
    """What is left of sums over 256 steps is as close as what is added."""
    proto = model(*network(*WAYS[way]))
    feeds = {"x": np.random.default_rng(1).standard_normal((STEPS, 64), np.float32)}
    result = rewritten(proto, Options(half=half))
    assert verify(proto, result.model, feeds).error < (2e-3 if half == "float16" else 1.5e-2)


def test_it_counts_as_the_operator_that_it_spells():
    """Lists speak of it as of a CumSum."""
    found = pipeline.analyze(model(*network(*WAYS["from the left"])))
    spelled = {found.graph.units[unit].node.op_type: s.operator for unit, s in found.graph.spelled.items()}
    assert spelled == {"MatMul": ("", "CumSum")}
