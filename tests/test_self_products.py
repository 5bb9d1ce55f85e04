"""Sums of squares that are written as products of data with themselves: float32, as ReduceSumSquare is."""

import numpy as np
import pytest

from amp_rewrite import pipeline, verify
from tests import text

WAYS = {
    "Einsum": 'd = Einsum <equation = "...d,...d->..."> (h, h) r = Unsqueeze (d, last)',
    "Einsum by letters": 'd = Einsum <equation = "b t d, b t d -> b t"> (h, h) r = Unsqueeze (d, last)',
    "rows by columns": """a = Unsqueeze (h, beside) b = Unsqueeze (h, last) d = MatMul (a, b)
        r = Squeeze (d, last)""",
    "rows by columns, reshaped": """a = Reshape (h, rows) b = Reshape (h, columns) d = MatMul (a, b)
        r = Reshape (d, one_each)""",
    "a diagonal": """t = Transpose <perm = [0, 2, 1]> (h) p = MatMul (h, t) i = EyeLike (square)
        d = Mul (p, i) r = ReduceSum (d, last)""",
    "a stored diagonal": """t = Transpose <perm = [0, 2, 1]> (h) p = MatMul (h, t) d = Mul (identity, p)
        e = ReduceSum <keepdims = 0> (d, last) f = Slice (e, zero, most, zero) r = Unsqueeze (f, last)""",
}
WAYS |= {
    "a product with ones": "d = Mul (h, h) r = MatMul (d, ones)",
    "a matrix that averages": "d = Pow (h, two) r = MatMul (d, averages)",
}
OTHERS = {
    "of different data": 'd = Einsum <equation = "btd,btd->bt"> (h, x) r = Unsqueeze (d, last)',
    "of all pairs of rows": """d = Einsum <equation = "bid,bjd->bij"> (h, h)
        r = ReduceMax <axes = [-1]> (d)""",
    "of no sum": 'r = Einsum <equation = "btd,btd->btd"> (h, h)',
    "of rows by columns of others": """a = Unsqueeze (h, beside) b = Unsqueeze (x, last) d = MatMul (a, b)
        r = Squeeze (d, last)""",
    "of matrices": "t = Transpose <perm = [0, 2, 1]> (h) p = MatMul (h, t) r = MatMul (p, h)",
    "of squares by any weights": "d = Mul (h, h) r = MatMul (d, w2)",
    "under another mask": """t = Transpose <perm = [0, 2, 1]> (h) p = MatMul (h, t) d = Mul (p, mask)
        r = ReduceMax <axes = [-1]> (d)""",
}
NORM = "m = Div (r, n) v = Add (m, eps) s = Sqrt (v) q = Div (h, s) g = Mul (q, gain) y = MatMul (g, w2)"
LOG = "v = Add (r, n) l = Log (v) y = Mul (l, x)"
DATA = np.random.default_rng(0)
WEIGHTS = {
    "w1": DATA.standard_normal((16, 16)).astype(np.float32),
    "w2": DATA.standard_normal((16, 16)).astype(np.float32) / 4,
    "gain": DATA.random(16).astype(np.float32) + 0.5,
    "identity": np.eye(5, dtype=np.float32),
    "mask": np.ones((5, 5), np.float32) - np.eye(5, dtype=np.float32),
    "ones": np.ones((16, 1), np.float32),
    "averages": np.kron(np.eye(2), np.full((8, 8), 1 / 8)).astype(np.float32),
    "square": np.zeros((5, 5), np.float32),
}


def network(way, behind):
    """A layer, the sum of squares of what it gives, and what reads that."""
    return text.model(
        f"""g (float[2,5,16] x) => (float[2,5,16] y) <float[16,16] w1, float[16,16] w2, float[16] gain,
        float[5,5] identity, float[5,5] mask, float[5,5] square,
        float[16,1] ones, float[16,16] averages, float two = {{2}}, float n = {{16}}, float eps = {{1e-5}},
        int64[1] last = {{-1}}, int64[1] beside = {{-2}}, int64[1] zero = {{0}}, int64[1] most = {{99}},
        int64[3] one_each = {{2, 5, 1}}, int64[4] rows = {{2, 5, 1, 16}},
        int64[4] columns = {{2, 5, 16, 1}}> {{
        h = MatMul (x, w1) {way} {behind} }}""",
        WEIGHTS,
    )


def halves(model):
    """The names of the values that half units make."""
    return text.values_in_half(pipeline.analyze(model))


@pytest.mark.parametrize("behind", [NORM, LOG], ids=["norm", "log"])
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_of_squares_stays(way, behind):
    """It is float32, and so is what follows up to the quotient; what reads its norm is half."""
    found = halves(network(WAYS[way], behind))
    assert "h" in found
    assert not found & set("abdefiprmvsql")
    assert found >= ({"g", "y"} if behind == NORM else set())


@pytest.mark.parametrize("way", OTHERS)
def test_other_products_are_half(way):
    """Of other data, of all pairs, of no sum: as ever."""
    found = halves(network(OTHERS[way], "y = Mul (r, x)"))
    assert found & {"d", "p", "r"}


@pytest.mark.skipif(not text.RUNS, reason="onnxruntime is not installed")
@pytest.mark.parametrize("behind", [NORM, LOG], ids=["norm", "log"])
@pytest.mark.parametrize("size", [1, 300, 1000])
@pytest.mark.parametrize("way", WAYS)
def test_it_may_be_beyond_half(way, size, behind):
    """Data of hundreds, whose squares half does not hold, give what float32 does."""
    before = network(WAYS[way], behind)
    feeds = {"x": DATA.standard_normal((2, 5, 16)).astype(np.float32) * size / 4}
    assert verify(before, pipeline.rewrite(before).model, feeds).error < 3e-3


def test_the_product_of_a_distance_stays():
    """Squares beside a product may be such sums as well: where they are, it is float32."""
    found = halves(
        text.model(
            """g (float[64,16] x, float[64,16] z) => (float[64,16] y)
            <float[16,16] w1, float[16,16] w2, int64[1] last = {-1}, float two = {2}> {
            a = MatMul (x, w1) b = MatMul (z, w1) t = Transpose <perm = [1, 0]> (b) p = MatMul (a, t)
            q = Mul (p, two) na = Einsum <equation = "nd,nd->n"> (a, a) ua = Unsqueeze (na, last)
            nb = Einsum <equation = "nd,nd->n"> (b, b) s = Sub (ua, q) d = Add (s, nb)
            k = Softmax (d) o = MatMul (k, b) y = MatMul (o, w2) }""",
            WEIGHTS,
        )
    )
    assert {"a", "b", "o", "y"} <= found
    assert not found & {"p", "q", "na", "nb", "ua", "s", "d"}


def test_it_counts_as_the_operator_that_it_spells():
    """Lists speak of it as of a ReduceSumSquare."""
    found = pipeline.analyze(network(WAYS["Einsum"], LOG))
    spelled = {found.graph.units[unit].node.op_type: s.operator for unit, s in found.graph.spelled.items()}
    assert spelled == {"Einsum": ("", "ReduceSumSquare")}


@pytest.mark.parametrize("way", ["Einsum by letters", "rows by columns", "a product with ones"])
def test_a_sum_that_is_proven_to_fit_is_half(way):
    """What bounds know of a ReduceSum they know of these: squares of what a Sigmoid gives are at most 16."""
    body = f"u = Sigmoid (h) {WAYS[way].replace('(h', '(u').replace(' h)', ' u)')}"
    assert {"u", "d", "r"} <= halves(network(body, "y = Mul (r, u)"))
