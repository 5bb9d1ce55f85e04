"""Integers in float clothes: lengths, positions and indices stay float32, small integers need not."""

import onnx
import pytest

from amp_rewrite import analyze
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from amp_rewrite.policy.reasons import in_words
from tests.text import agree, becomes, in_half, kept, model, rewritten

BF16 = Options(half=BFLOAT16)
WHY = "it carries whole numbers or pixel coordinates, and float16 is exact to 2048 only"


def test_positions_stay_up_to_their_sines():
    """Rotary angles are computed in float32; what the sines are multiplied with is half."""
    becomes(
        """g (int64[4,1] p, float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] inv> {
            f = Cast <to = 1> (p)
            a = Mul (f, inv)
            s = Sin (a)
            c = Cos (a)
            m = MatMul (x, w)
            q = Mul (m, s)
            r = Mul (m, c)
            y = Add (q, r)
        }""",
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


ANGLES = {
    "outer product": "a = MatMul (f, inv)",
    "outer product, moved": "b = MatMul (f, inv) t = Transpose (b) a = Transpose (t)",
    "einsum": 'i = Reshape (f, one) a0 = Einsum <equation = "i,j->ij"> (i, i) a = Mul (a0, inv)',
    "concatenated": "b = MatMul (f, inv) a = Concat <axis = 1> (b, b)",
}


@pytest.mark.parametrize("case", ANGLES)
def test_products_on_the_way_to_an_angle_stay(case):
    """MatMul and Einsum are on the allow list, but not where they multiply positions to angles."""
    text = f"""g (int64[4,1] p, float[N,4] x) => (float[M,K] y)
    <float[4,4] w, float[1,4] inv, int64[1] one = {{-1}}> {{
        f = Cast <to = 1> (p)
        {ANGLES[case]}
        s = Sin (a)
        m = MatMul (w, w)
        y = Relu (s)
    }}"""
    found = kept(text)
    assert {"f", "a", "s"} <= found.keys()
    assert set(found.values()) == {WHY}
    assert in_half(text) == {"m"}


def test_a_product_that_leads_to_no_angle_is_a_product():
    """Counts that are multiplied by weights are features; the product is half, the Cast stays."""
    text = """g (int64[4,4] p) => (float[4,4] y) <float[4,4] w, float[4,4] v> {
        f = Cast <to = 1> (p)
        a = MatMul (f, v)
        y = MatMul (a, w)
    }"""
    assert kept(text) == {"f": WHY}
    assert in_half(text) == {"a", "y"}
    proto = model(text)
    agree(proto, rewritten(proto).model)


def test_what_a_sine_gives_is_no_integer():
    """Behind a bounded function half is free again: a scale on a sine, and a sine's way to a product."""
    text = """g (int64[4,4] p, float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] inv, float k> {
        f = Cast <to = 1> (p)
        a = Mul (f, inv)
        s = Sin (a)
        b = Mul (s, k)
        m = MatMul (x, w)
        y = Mul (m, b)
    }"""
    assert kept(text).keys() == {"f", "a", "s"}


def test_a_sine_of_features_is_no_angle():
    """A product whose result passes a Tanh on its way to a sine is a layer like any other."""
    text = """g (int64[4,4] p) => (float[4,4] y) <float[4,4] v> {
        f = Cast <to = 1> (p)
        a = MatMul (f, v)
        t = Tanh (a)
        y = Sin (t)
    }"""
    assert kept(text) == {"f": WHY}


def test_a_range_of_floats_counts():
    """Range has no half in its schema; what is computed from it alone stays as well."""
    text = """g (int64 n, float[4,4] x) => (float[k,4] y)
    <float[4,4] w, float zero = {0}, float one = {1}, float[1,4] inv, int64[1] axis = {1}> {
        f = Cast <to = 1> (n)
        r = Range (zero, f, one)
        u = Unsqueeze (r, axis)
        a = Mul (u, inv)
        s = Sin (a)
        y = MatMul (s, w)
    }"""
    assert {"f", "u", "a", "s"} <= kept(text).keys()
    assert in_half(text) == {"y"}


@pytest.mark.parametrize(
    ("kind", "small"),
    [("bool", True), ("uint8", True), ("int8", True), ("int32", False), ("int64", False)],
)
def test_what_is_small_by_its_type(kind, small):
    """Truth values and bytes fit into half; what may be larger than 2048 does not."""
    text = f"""g ({kind}[4,4] p, float[4,4] x) => (float[4,4] y) <float[4,4] w> {{
        m = MatMul (x, w)
        f = Cast <to = 1> (p)
        n = Mul (m, f)
        y = MatMul (n, w)
    }}"""
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
def test_what_is_small_by_its_makers(shape, made, small):
    """Static dimensions, constants and what is computed from them are bounded; all else may be large."""
    text = f"""g (float[{shape}] x, bool k) => (float y)
    <int64 one = {{1}}, int64 big = {{5000}}, int64 hundred = {{100}}> {{
        s = Shape (x)
        d = {made}
        f = Cast <to = 1> (d)
        y = Sqrt (f)
    }}"""
    assert kept(text) == ({} if small else {"f": WHY, "y": WHY})


def test_bfloat16_counts_to_256():
    """The bound is the half type's: 1000 is exact in float16 and not in bfloat16."""
    text = """g (float[4,1000] x) => (float y) <int64 one = {1}> {
        s = Shape (x)
        d = Gather (s, one)
        f = Cast <to = 1> (d)
        y = Sqrt (f)
    }"""
    assert kept(text) == {}
    assert kept(text, BF16)["f"].endswith("bfloat16 is exact to 256 only")


@pytest.mark.parametrize(
    ("values", "stays"),
    [
        ("0, 1, 2, 4097", True),  # 4097 is odd, and half knows the even ones only
        ("0, 1, 2, 4096", False),
        ("0, 1, 2, 2047", False),
        ("0.5, 1, 2, 4097", False),
    ],
)
def test_a_stored_table_of_integers(values, stays):
    """A table of whole numbers that half would round is one of positions; others are just weights."""
    text = f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] t = {{{values}}}> {{
        m = MatMul (x, w)
        y = Mul (m, t)
    }}"""
    assert kept(text) == ({"y": WHY} if stays else {})


def test_what_becomes_an_integer_stays_along_the_way():
    """Size arithmetic and indices are exact: everything from the last product to the Cast is float32."""
    text = """g (float[4,4] x) => (int64[4,4] y) <float[4,4] w, float two = {2}> {
        m = MatMul (x, w)
        a = Mul (m, two)
        b = Floor (a)
        y = Cast <to = 7> (b)
    }"""
    becomes(
        text,
        """g (float[4,4] x) => (int64[4,4] y) <float two, float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            a = Mul (m__float32, two)
            b = Floor (a)
            y = Cast <to = 7> (b)
        }""",
        close=1.0,
    )
    assert kept(text) == {"a": WHY, "b": WHY, "y": WHY}


def test_sizes_computed_in_float():
    """A size that is read, scaled and used as a size again does not pass through half."""
    text = """g (float[4,N] x) => (float[M,K] y)
    <float[4,4] w, float scale = {1.5}, int64[1] one = {1}, int64[1] four = {4}> {
        s = Shape (x)
        d = Gather (s, one)
        f = Cast <to = 1> (d)
        a = Mul (f, scale)
        b = Floor (a)
        n = Cast <to = 7> (b)
        t = Concat <axis = 0> (four, n)
        m = MatMul (w, w)
        r = ReduceMean <axes = [1]> (m)
        e = Sigmoid (r)
        y = Expand (e, t)
    }"""
    assert kept(text, Options(fold=False)).keys() == {"f", "a", "b", "n"}
    assert {"m", "r", "e"} <= in_half(text, Options(fold=False))


def test_a_cast_to_a_truth_value_is_no_integer():
    """What is only asked whether it is zero may be half."""
    text = """g (float[4,4] x) => (float[4,4] y, bool[4,4] z) <float[4,4] w> {
        y = MatMul (x, w)
        r = Relu (y)
        z = Cast <to = 9> (r)
    }"""
    assert kept(text) == {}
    assert in_half(text) == {"y", "r", "z"}


def test_token_ids_are_no_business_of_ours():
    """Integers that index a table do not keep the table in float32."""
    text = """g (int64[4] i) => (float[4,4] y) <float[4,4] w, float[5000,4] t> {
        e = Gather (t, i)
        y = MatMul (e, w)
    }"""
    assert kept(text) == {}
    assert in_half(text) == {"e", "y"}


ROPE = """<ir_version: 9, opset_import: ["": 17]>
    g (int64[1,s] positions, float[4,4] x, float[4,4] w) => (float[1,4,s] y)
    <float[2] inv_freq = {{1.0, 0.01}}, int64[1] first = {{0}}, int64[1] last = {{2}}> {{
    {} [product] angle = MatMul (column, row)
    both = Concat <axis = 1> (angle, angle) c = Cos (both) h = MatMul (x, w) y = MatMul (h, c) }}"""
ROPES = {
    "expanded": """r = Unsqueeze (inv_freq, first) column = Unsqueeze (r, last)
        p = Cast <to = 1> (positions) m = Constant <value = int64[1] {1}> () row = Unsqueeze (p, m)""",
    "computed": """z = Constant <value = float {0.0}> () e = Constant <value = float {2.0}> ()
        o = Constant <value = float {1.0}> () b = Constant <value = float {100.0}> ()
        n = Range (z, e, o) k = Div (n, e) t = Pow (b, k) i = Reciprocal (t)
        r = Unsqueeze (i, first) column = Unsqueeze (r, last)
        p = Cast <to = 1> (positions) m = Constant <value = int64[1] {1}> () row = Unsqueeze (p, m)""",
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_angles_stay_float32_however_the_frequencies_come(name):
    """Positions times frequencies that are unsqueezed, or computed from constants, are angles too."""
    found = analyze(onnx.parser.parse_model(ROPE.format(ROPES[name])))
    (unit,) = [unit for unit in found.graph.units if unit.node.name == "product"]
    assert not found.painting.is_half(unit.index)
    assert "whole numbers" in in_words(found.painting.entries[unit.index].evidence)


def test_a_range_that_goes_down_is_as_large_as_one_that_goes_up():
    """The larger of start and limit bounds a Range."""
    body = """<ir_version: 9, opset_import: ["": 17]> g (float[4,4] x) => (float[5000] y) {{
        s = Constant <value = float {{{}.0}}> () e = Constant <value = float {{0.0}}> ()
        d = Constant <value = float {{-1.0}}> () r = Range (s, e, d) [scale] y = Mul (r, d) }}"""
    large, small = (analyze(onnx.parser.parse_model(body.format(n))) for n in (5000, 50))
    reasons = [
        {unit.node.name: in_words(found.painting.entries[unit.index].evidence) for unit in found.graph.units}
        for found in (large, small)
    ]
    assert "whole numbers" in reasons[0]["scale"]
    assert "whole numbers" not in reasons[1]["scale"]


def test_places_in_an_image_are_computed_in_float32():
    """What computes the grid of a GridSample stays float32, and so do the boxes of a RoiAlign."""
    body = """<ir_version: 9, opset_import: ["": 17]> g (float[1,1,8,8] x, float[1,8,8,2] f, float[2,2] w)
        => (float[1,1,8,8] y) {
        [flow] m = MatMul (f, w) [warp] a = Add (m, f) [scaled] b = Div (a, w) y = GridSample (x, b) }"""
    found = analyze(onnx.parser.parse_model(body))
    half = {unit.node.name for unit in found.graph.units if found.painting.is_half(unit.index)}
    assert half == {"flow"}


def test_a_way_to_an_angle_is_followed_to_its_end():
    """Positions that go through many products to a sine are float32 all the way, however long that is."""
    products = 200
    steps = " ".join(f"a{i + 1} = MatMul (a{i}, w)" for i in range(products))
    text = f"""g (int64[2,2] p) => (float[2,2] y) <float[2,2] w> {{
        a0 = Cast <to = 1> (p) {steps} y = Sin (a{products}) }}"""
    assert len(kept(text)) == products + 2


def test_a_scatter_that_adds_carries_what_becomes_an_integer():
    """What goes back to an integer through a scatter that adds up stays float32, as through an Add."""
    text = """g (float[4,4] x, int64[1,1] i, float[1,4] u) => (int64[4,4] y) <float[4,4] w> {
        m = MatMul (x, w)
        q = Add (m, m)
        s = ScatterND <reduction = "add"> (q, i, u)
        y = Cast <to = 7> (s)
    }"""
    assert kept(text)["q"] == WHY
