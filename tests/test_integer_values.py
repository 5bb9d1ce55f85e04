"""Integers in float clothes: lengths, positions and indices stay float32, small integers need not."""

import pytest

from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests.text import agree, becomes, in_half, kept, model, rewritten

WHY = "it carries positions or other whole numbers, and float16 is exact to 2048 only"
WAYS = {
    "an outer product as an angle": (
        """g (int64[4,1] p) => (float[4,4] y) <float[4,4] w, float[1,4] inv> {
        f = Cast <to = 1> (p) a = MatMul (f, inv) s = Sin (a) y = MatMul (s, w) }""",
        "f a s",
        "y",
    ),
    "an outer product that is moved": (
        """g (int64[4,1] p) => (float[4,4] y) <float[4,4] w, float[1,4] inv> { f = Cast <to = 1> (p)
        b = MatMul (f, inv) t = Transpose (b) a = Transpose (t) s = Sin (a) y = MatMul (s, w) }""",
        "f b t a s",
        "y",
    ),
    "an Einsum": (
        """g (int64[4] p) => (float[4,4] y) <float[4,4] w, float[1,4] inv> { i = Cast <to = 1> (p)
        b = Einsum <equation = "i,j->ij"> (i, i) a = Mul (b, inv) s = Sin (a) y = MatMul (s, w) }""",
        "i b a s",
        "y",
    ),
    "angles that are concatenated": (
        """g (int64[4,1] p) => (float[4,8] y) <float[8,8] w, float[1,4] inv> { f = Cast <to = 1> (p)
        b = MatMul (f, inv) a = Concat <axis = 1> (b, b) s = Sin (a) y = MatMul (s, w) }""",
        "f b a s",
        "y",
    ),
    "frequencies that are unsqueezed": (
        """g (int64[1,s] positions, float[4,4] x, float[4,4] w) => (float[1,4,s] y)
        <float[2] inv_freq = {1.0, 0.01}, int64[1] first = {0}, int64[1] last = {2}, int64[1] m = {1}> {
        r = Unsqueeze (inv_freq, first) column = Unsqueeze (r, last) p = Cast <to = 1> (positions)
        row = Unsqueeze (p, m) angle = MatMul (column, row) both = Concat <axis = 1> (angle, angle)
        c = Cos (both) h = MatMul (x, w) y = MatMul (h, c) }""",
        "p row angle both c",
        "h y",
    ),
    "frequencies that are computed": (
        """g (int64[1,s] positions, float[4,4] x, float[4,4] w) => (float[1,4,s] y)
        <int64[1] first = {0}, int64[1] last = {2}, int64[1] m = {1}, float z = {0}, float e = {2},
        float o = {1}, float b = {100}> {
        n = Range (z, e, o) k = Div (n, e) t = Pow (b, k) i = Reciprocal (t) r = Unsqueeze (i, first)
        column = Unsqueeze (r, last) p = Cast <to = 1> (positions) row = Unsqueeze (p, m)
        angle = MatMul (column, row) both = Concat <axis = 1> (angle, angle)
        c = Cos (both) h = MatMul (x, w) y = MatMul (h, c) }""",
        "p row angle both c",
        "h y",
    ),
    "a product that leads to no angle": (
        """g (int64[4,4] p) => (float[4,4] y) <float[4,4] w, float[4,4] v> {
        f = Cast <to = 1> (p) a = MatMul (f, v) y = MatMul (a, w) }""",
        "f",
        "a y",
    ),
    "what a sine gives": (
        """g (int64[4,4] p, float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] inv, float k> {
        f = Cast <to = 1> (p) a = Mul (f, inv) s = Sin (a) b = Mul (s, k) m = MatMul (x, w)
        y = Mul (m, b) }""",
        "f a s",
        "m",
    ),
    "a sine of features": (
        """g (int64[4,4] p) => (float[4,4] y) <float[4,4] v> {
        f = Cast <to = 1> (p) a = MatMul (f, v) t = Tanh (a) y = Sin (t) }""",
        "f",
        "a",
    ),
    "a range of floats": (
        """g (int64 n, float[4,4] x) => (float[k,4] y)
        <float[4,4] w, float zero = {0}, float one = {1}, float[1,4] inv, int64[1] axis = {1}> {
        f = Cast <to = 1> (n) r = Range (zero, f, one) u = Unsqueeze (r, axis) a = Mul (u, inv)
        s = Sin (a) y = MatMul (s, w) }""",
        "f u a s",
        "y",
    ),
    "sizes that are computed in floats": (
        """g (float[4,N] x) => (float[M,K] y)
        <float[4,4] w, float scale = {1.5}, int64[1] one = {1}, int64[1] four = {4}> {
        s = Shape (x) d = Gather (s, one) f = Cast <to = 1> (d) a = Mul (f, scale) b = Floor (a)
        n = Cast <to = 7> (b) t = Concat <axis = 0> (four, n) m = MatMul (w, w)
        r = ReduceMean <axes = [1]> (m) e = Sigmoid (r) y = Expand (e, t) }""",
        "f a b n",
        "m r e",
    ),
    "a Cast to a truth value": (
        """g (float[4,4] x) => (float[4,4] y, bool[4,4] z) <float[4,4] w> {
        y = MatMul (x, w) r = Relu (y) z = Cast <to = 9> (r) }""",
        "",
        "y r z",
    ),
    "indices of a table": (
        """g (int64[4] i) => (float[4,4] y) <float[4,4] w, float[5000,4] t> {
        e = Gather (t, i) y = MatMul (e, w) }""",
        "",
        "e y",
    ),
    "pixel coordinates": (
        """g (float[1,1,8,8] x, float[1,8,8,2] f, float[2,2] w, float scale) => (float[1,1,8,8] y) {
        m = MatMul (f, w) a = Add (m, f) b = Div (a, scale) y = GridSample (x, b) }""",
        "a b",
        "m",
    ),
    "a scatter that adds": (
        """g (float[4,4] x, int64[1,1] i, float[1,4] u) => (int64[4,4] y) <float[4,4] w> {
        m = MatMul (x, w) q = Add (m, m) s = ScatterND <reduction = "add"> (q, i, u)
        y = Cast <to = 7> (s) }""",
        "q y",
        "m",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_integers_are_float32_from_where_they_come_or_up_to_where_they_end(way: str):
    """Through arithmetic, up to a bounded function; products only on the way to an angle."""
    text, full, half = WAYS[way]
    options = Options(fold=False)
    assert {name for name, why in kept(text, options).items() if why == WHY} == set(full.split())
    assert set(half.split()) <= in_half(text, options)


def test_positions_stay_up_to_their_sines():
    """Rotary angles are computed in float32; what the sines are multiplied with is half."""
    becomes(
        """g (int64[4,1] p, float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] inv> {
            f = Cast <to = 1> (p) a = Mul (f, inv) s = Sin (a) c = Cos (a) m = MatMul (x, w)
            q = Mul (m, s) r = Mul (m, c) y = Add (q, r) }""",
        """g (int64[4,1] p, float[4,4] x) => (float[4,4] y) <float16[4,4] w, float[4] inv> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            f = Cast <to = 1> (p)
            a = Mul (f, inv)
            s = Sin (a)
            [s__float16] s__float16 = Cast <to = 10> (s)
            c = Cos (a)
            [c__float16] c__float16 = Cast <to = 10> (c)
            m = MatMul (x__float16, w)
            q = Mul (m, s__float16)
            r = Mul (m, c__float16)
            y__float16 = Add (q, r)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    )


def test_what_becomes_an_integer_stays_along_the_way():
    """Size arithmetic and indices are exact: everything from the last product to the Cast is float32."""
    text = """g (float[4,4] x) => (int64[4,4] y) <float[4,4] w, float two = {2}> {
        m = MatMul (x, w) a = Mul (m, two) b = Floor (a) y = Cast <to = 7> (b) }"""
    assert kept(text) == {"a": WHY, "b": WHY, "y": WHY}
    assert in_half(text) == {"m"}
    proto = model(text)
    agree(proto, rewritten(proto).model, 1.0)


@pytest.mark.parametrize("kind", ["bool", "uint8", "int8", "int32", "int64"])
def test_what_is_small_by_its_type(kind: str):
    """Truth values and bytes fit into half; what may be larger than 2048 does not."""
    text = f"""g ({kind}[4,4] p, float[4,4] x) => (float[4,4] y) <float[4,4] w> {{
        m = MatMul (x, w) f = Cast <to = 1> (p) n = Mul (m, f) y = MatMul (n, w) }}"""
    small = kind not in ("int32", "int64")
    assert kept(text) == ({} if small else {"f": WHY})
    assert ("f" in in_half(text)) == small
    assert "n" in in_half(text)


@pytest.mark.parametrize(
    ("shape", "made", "small"),
    [
        ("4,16", "Gather (s, one)", True),
        ("4,4096", "Gather (s, one)", False),
        ("4,N", "Gather (s, one)", False),
        ("4,16", "Mul (one, big)", False),
        ("4,16", "Add (one, one)", True),
        ("4,16", "Mod (big, hundred)", True),
        ("4,16", "Where (k, one, big)", False),
        ("4,16", "Size (x)", False),
    ],
)
def test_what_is_small_by_its_makers(shape: str, made: str, *, small: bool):
    """Static dimensions, constants and what is computed from them are bounded; all else may be large."""
    text = f"""g (float[{shape}] x, bool k) => (float y)
        <int64 one = {{1}}, int64 big = {{5000}}, int64 hundred = {{100}}> {{
        s = Shape (x) d = {made} f = Cast <to = 1> (d) y = Sqrt (f) }}"""
    assert kept(text) == ({} if small else {"f": WHY, "y": WHY})


def test_bfloat16_counts_to_256():
    """The bound is the half type's: 1000 is exact in float16 and not in bfloat16."""
    text = """g (float[4,1000] x) => (float y) <int64 one = {1}> {
        s = Shape (x) d = Gather (s, one) f = Cast <to = 1> (d) y = Sqrt (f) }"""
    assert kept(text) == {}
    assert kept(text, Options(half=BFLOAT16))["f"].endswith("bfloat16 is exact to 256 only")


@pytest.mark.parametrize(
    ("values", "stays"),
    [
        ("0, 1, 2, 4097", True),  # 4097 is odd, and half knows the even ones only
        ("0, 1, 2, 4096", False),
        ("0, 1, 2, 2047", False),
        ("0.5, 1, 2, 4097", False),
    ],
)
def test_a_stored_table_of_integers(values: str, *, stays: bool):
    """A table of whole numbers that half would round is one of positions; others are just weights."""
    text = f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] t = {{{values}}}> {{
        m = MatMul (x, w) y = Mul (m, t) }}"""
    assert kept(text) == ({"y": WHY} if stays else {})


@pytest.mark.parametrize(("start", "stays"), [(5000, True), (50, False)])
def test_a_range_that_goes_down_is_as_large_as_one_that_goes_up(start: int, *, stays: bool):
    """The larger of start and limit bounds a Range."""
    text = f"""g (float[4,4] x) => (float[k] y) <float s = {{{start}}}, float e = {{0}}, float d = {{-1}}> {{
        r = Range (s, e, d) y = Mul (r, d) }}"""
    assert ("y" in kept(text, Options(fold=False))) is stays


def test_a_way_to_an_angle_is_followed_to_its_end():
    """Positions that go through many products to a sine are float32 all the way, however long that is."""
    products = 200
    steps = " ".join(f"a{i + 1} = MatMul (a{i}, w)" for i in range(products))
    text = f"""g (int64[2,2] p) => (float[2,2] y) <float[2,2] w> {{
        a0 = Cast <to = 1> (p) {steps} y = Sin (a{products}) }}"""
    assert len(kept(text)) == products + 2
