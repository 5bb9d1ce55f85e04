"""Stored values that half cannot hold: what must stay float32 because of them, and what saturates."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import Pins, Tolerances
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests.text import agree, becomes, in_half, kept, model, rewritten, stored

BF16 = Options(half=BFLOAT16)
LOWEST = -32752.0

# ---- values that overflow


def test_a_reader_of_what_overflows_stays_and_says_why():
    """The reader of a value beyond half's range stays float32; its neighbours do not."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float big = {100000}> {
            m = MatMul (x, w)
            a = Div (m, big)
            y = MatMul (a, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float big, float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            a = Div (m__float32, big)
            [a__float16] a__float16 = Cast <to = 10> (a)
            y__float16 = MatMul (a__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_the_reason_names_the_value():
    """`explain` shall say which number is too large, where it is stored, and what the limit is."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[2] big = {1.0, -123456.0}> {
        m = MatMul (x, w)
        r = ReduceMin <keepdims = 0> (big)
        y = Div (m, r)
    }"""
    assert kept(text, Options(fold=False))["r"] == "-123456 in 'big' is beyond float16's 65504"


@pytest.mark.parametrize(
    ("value", "stays"), [(65504.0, False), (65519.0, False), (65520.0, True), (-65520.0, True)]
)
def test_what_rounds_into_range_is_no_overflow(value, stays):
    """Up to 65519 a value rounds to 65504; from 65520 on it would be infinite."""
    text = """g (float[4] x) => (float[4] y) <float[4,4] w, float[4] c> {
        m = MatMul (x, w)
        y = Mul (m, c)
    }"""
    found = kept(text, weights={"c": np.float32([0.5, value, 0.5, 0.5])})
    assert ("y" in found) == stays


def test_a_huge_value_is_followed_through_what_moves_it():
    """Unsqueeze and Expand do not make 1e5 smaller: whatever they feed stays, and the sum too."""
    text = """g (float[4,4] x) => (float[4,4] y)
    <float[4,4] w, float[1] big = {100000}, int64[2] s = {4, 4}, int64[1] axis = {0}> {
        m = MatMul (x, w)
        u = Unsqueeze (big, axis)
        e = Expand (u, s)
        a = Add (m, e)
        d = Div (m, e)
        f = MatMul (d, w)
        y = Add (a, f)
    }"""
    assert kept(text).keys() == {"u", "e", "a", "d", "y"}
    assert in_half(text) == {"m", "f"}


def test_a_fill_that_is_no_mask_stays():
    """ConstantOfShape with a huge value and no softmax behind it stays float32, readers included."""
    text = """g (float[4,4] x, bool[4,4] k) => (float[4,4] y) <float[4,4] w> {
        s = MatMul (x, w)
        h = Shape (s)
        f = ConstantOfShape <value = float[1] {-1e30}> (h)
        a = Where (k, s, f)
        y = Relu (a)
    }"""
    assert kept(text)["f"] == "-1e+30 in 'f' is beyond float16's 65504"
    assert in_half(text) == {"s", "h"}


def test_bfloat16_has_float32s_range():
    """No stored value overflows or vanishes in bfloat16, and none is taken for a large integer."""
    text = """g (float[4,4] x) => (float[4,4] y)
    <float[4,4] w, float e = {1e-12}, float big = {1e30}> {
        m = MatMul (x, w)
        a = Max (m, e)
        d = Div (m, a)
        f = Mul (d, big)
        y = MatMul (f, w)
    }"""
    assert kept(text, BF16) == {}
    assert kept(text).keys() == {"a", "d", "f"}


# ---- masks


def attention(mask: str, declared: str = "", inputs: str = "bool[4,4] k") -> str:
    """A score matrix s, something that masks it as a, and the softmax of that."""
    return f"""g (float[4,4] x, {inputs}) => (float[4,4] y)
    <float[4,4] w, {declared} float one = {{1}}, float zero = {{0}}> {{
        s = MatMul (x, w)
        {mask}
        p = Softmax (a)
        y = MatMul (p, w)
    }}"""


LOW = "float fill = {-3.4e38},"
MASKS = {
    "where": ("a = Where (k, s, fill)", "float fill = {-1e9},"),
    "add": ("f = Where (k, fill, zero) a = Add (s, f)", LOW),
    "add, the other way round": ("f = Where (k, zero, fill) a = Add (f, s)", LOW),
    "fill of a shape": (
        "h = Shape (s) f = ConstantOfShape <value = float[1] {-1e30}> (h) a = Where (k, s, f)",
        "",
    ),
    "product with a truth value": (
        "b = Cast <to = 1> (k) n = Sub (one, b) f = Mul (n, fill) a = Add (s, f)",
        LOW,
    ),
    "negated": ("n = Neg (fill) f = Where (k, n, zero) a = Add (s, f)", "float fill = {1e9},"),
    "subtracted": ("f = Where (k, fill, zero) a = Sub (s, f)", "float fill = {1e9},"),
    "asked for its shape": (
        "f = Where (k, fill, zero) h = Shape (f) n = Size (f) e = Expand (f, h) a = Add (s, e)",
        LOW,
    ),
    "moved": (
        "h = Shape (s) e = Expand (fill, h) f = Where (k, e, zero) a = Add (s, f)",
        "float[1,1] fill = {-1e9},",
    ),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_saturates(case):
    """A huge fill on its way to a softmax keeps nothing in float32: it becomes the lowest finite half."""
    mask, declared = MASKS[case]
    text = attention(mask, declared)
    assert kept(text) == {}
    assert {"s", "a", "p", "y"} <= in_half(text)
    proto = model(text)
    result = rewritten(proto)
    held = stored(result.model)
    if "fill" in held:
        assert abs(held["fill"].astype(np.float32)) == 32752
        assert result.report.saturated == 1
    agree(proto, result.model)


def test_a_filled_mask_saturates():
    """The value of a ConstantOfShape that masks is the lowest finite half, not -inf."""
    result = rewritten(model(attention(*MASKS["fill of a shape"])))
    fill = next(n for n in result.model.graph.node if n.op_type == "ConstantOfShape")
    assert np.frombuffer(fill.attribute[0].t.raw_data, np.float16).tolist() == [LOWEST]


WHOLE = "c = Cast <to = 1> (k) n = Sub (one, c)"
FILL = "h = Shape (k) fill = ConstantOfShape <value = float[1] {-3.4e38}> (h)"
WITH_FACTORS = {
    "a stored fill": (WHOLE, LOW, "a = Add (s, f)"),
    "a fill of a shape": (f"{FILL} {WHOLE}", "", "a = Add (s, f)"),
    "a Cast that does nothing": (WHOLE, LOW, "b = Add (s, f) a = Cast <to = 1> (b)"),
    "a temperature": (WHOLE, "float two = {2}, " + LOW, "b = Add (s, f) a = Div (b, two)"),
    "a factor near 1": ("n = Identity (one)", "float two = {0.3}, " + LOW, "b = Add (s, f) a = Mul (b, two)"),
}


@pytest.mark.parametrize("case", WITH_FACTORS)
def test_a_mask_that_float32_computes_saturates_too(case):
    """Where only the sum with the scores is half, the fill saturates in float32: its Cast stays finite. It
    may be multiplied by integers, and by stored numbers near 1.
    """
    factor, declared, added = WITH_FACTORS[case]
    proto = model(attention(f"{factor} f = Mul (n, fill) {added}", declared, inputs="int64[4,4] k"))
    result = rewritten(proto, Options(fold=False))
    assert result.report.saturated == 1
    agree(proto, result.model)


@pytest.mark.parametrize(
    ("mask", "inputs"),
    [
        ("n = Sub (one, k) f = Mul (n, fill) a = Add (s, f)", "float[4,4] k"),
        ("f = Where (k, fill, zero) b = Add (s, f) a = Div (b, far)", "bool[4,4] k, float far"),
        ("f = Where (k, fill, zero) b = Add (s, f) a = Mul (b, tiny)", "bool[4,4] k"),
        ("f = Where (k, fill, zero) i = Less (f, s) b = Add (s, f) a = Where (i, b, s)", "bool[4,4] k"),
    ],
    ids=["times what is given", "divided by what is given", "times what is tiny", "compared"],
)
def test_what_is_no_mask_for_certain_is_float32_up_to_the_softmax(mask, inputs):
    """A clamped fill times 1e-31 is 0: what is not known to stay a mask is not clamped."""
    text = attention(mask, "float tiny = {1e-30}, " + LOW, inputs=inputs)
    proto = model(text)
    result = rewritten(proto)
    assert stored(result.model)["fill"].item() == np.float32(-3.4e38)
    assert result.report.certificate.licences == {}
    assert {"a", "p"}.isdisjoint(in_half(text))
    agree(proto, result.model)


def test_a_mask_of_integers():
    """1 - mask, times -1e9, from int64: that stays float32, the scores that it is added to do not."""
    text = attention(
        "b = Cast <to = 1> (k) n = Sub (one, b) f = Mul (n, fill) a = Add (s, f)",
        "float fill = {-1e9},",
        inputs="int64[4,4] k",
    )
    assert kept(text).keys() == {"b", "n", "f"}
    assert in_half(text) == {"s", "a", "p", "y"}
    proto = model(text)
    agree(proto, rewritten(proto).model)


def test_a_mask_that_both_colours_read():
    """A fill of two masks, one in half and one in float32, saturates in both of its forms."""
    text = """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] z)
    <float[4,4] w, float fill = {-1e9}> {
        s = MatMul (x, w)
        a = Where (k, s, fill)
        p = Softmax (a)
        y = MatMul (p, w)
        b = Where (k, x, fill)
        e = Exp (x)
        d = Add (b, e)
        z = Softmax (d)
    }"""
    assert {"a", "p"} <= in_half(text)
    assert "b" not in in_half(text)
    proto = model(text)
    result = rewritten(proto)
    held = stored(result.model)
    assert [held[name].astype(np.float32).item() for name in ("fill", "fill__float16")] == [LOWEST] * 2
    agree(proto, result.model)


NO_MASKS = {
    "also read by a product": "a = Where (k, s, fill) q = MatMul (a, w) z = Relu (q)",
    "added to with the wrong sign": "f = Where (k, fill, zero) a = Sub (s, f)",
}


@pytest.mark.parametrize("case", NO_MASKS)
def test_what_goes_elsewhere_is_no_mask(case):
    """A fill that something else reads too, or that arrives positive, keeps its readers in float32."""
    text = attention(NO_MASKS[case], "float fill = {-1e9},")
    assert kept(text)["a"] == "-1e+09 in 'fill' is beyond float16's 65504"
    assert "a" not in in_half(text)
    fill = stored(rewritten(model(text)).model)["fill"]
    assert (fill.dtype, fill.item()) == (np.float32, np.float32(-1e9))


def test_every_path_of_a_mask_counts():
    """A fill that arrives at both ports of a Sub is positive on one path to the softmax, and so no mask:
    whichever of the two nodes before the Sub comes first.
    """
    masked = "f = Where (k, fill, s) g = Where (j, fill, zero)"
    swapped = "g = Where (j, fill, zero) f = Where (k, fill, s)"
    texts = [
        attention(f"{pair} a = Sub (f, g)", "float fill = {-1e9},", inputs="bool[4,4] k, bool[4,4] j")
        for pair in (masked, swapped)
    ]
    assert [kept(text).keys() for text in texts] == [{"f", "g", "a", "p"}] * 2


def test_a_masked_score_that_leaves_the_model_is_no_mask():
    """Who reads an output of the model may look for -1e9."""
    text = """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] a)
    <float[4,4] w, float fill = {-1e9}> {
        s = MatMul (x, w)
        a = Where (k, s, fill)
        p = Softmax (a)
        y = MatMul (p, w)
    }"""
    assert "a" in kept(text)
    assert in_half(text) == {"s", "y"}


def test_infinity_stays_infinite():
    """-inf is -inf in half, is no overflow, and is not counted."""
    text = attention("a = Where (k, s, fill)", "float fill,")
    weights = {"fill": np.float32(-np.inf)}
    assert kept(text, weights=weights) == {}
    result = rewritten(model(text, weights))
    assert stored(result.model)["fill"].tolist() == -np.inf
    assert result.report.saturated == 0


# ---- values that vanish

VANISHES = "in 'e' becomes 0 in float16, and is part of a divisor or a logarithm"
EPSILONS = {
    "root of a sum": ("a = Add (m, e) r = Sqrt (a) d = Div (m, r)", {"a", "r", "d"}),
    "maximum": ("a = Max (m, e) d = Div (m, a)", {"a", "d"}),
    "clip": ("a = Clip (m, e) d = Div (m, a)", {"a", "d"}),
    "logarithm": ("a = Add (m, e) d = Log (a)", {"a", "d"}),
    "divisor": ("d = Div (m, e)", {"d"}),
    "power": ("a = Add (m, e) d = Pow (a, h)", {"a", "d"}),
    "moved": ("u = Identity (e) a = Add (m, u) d = Div (m, a)", {"u", "a", "d"}),
    "added only": ("a = Add (m, e) d = Relu (a)", set()),
    "two paths": ("a = Add (m, e) b = Abs (a) r = Sqrt (a) s = Add (b, r) d = Div (m, s)", set("abrsd")),
    "two paths, the other way round": (
        "a = Add (m, e) r = Sqrt (a) b = Abs (a) s = Add (b, r) d = Div (m, s)",
        set("abrsd"),
    ),
    "two paths, of which one is the dividend's": ("a = Add (m, e) b = Abs (a) d = Div (b, a)", {"a", "d"}),
}


@pytest.mark.parametrize("case", EPSILONS)
def test_an_epsilon_keeps_the_way_to_its_division(case):
    """Where 1e-12 guards a division everything from the sum to the quotient stays; elsewhere it may go."""
    nodes, expected = EPSILONS[case]
    text = f"""g (float[4,4] x) => (float[4,4] y)
    <float[4,4] w, float e = {{1e-12}}, float h = {{-0.5}}> {{
        m = MatMul (x, w)
        {nodes}
        y = MatMul (d, w)
    }}"""
    found = kept(text)
    assert found.keys() == expected
    reason = f"1e-12 {VANISHES}"
    assert set(found.values()) == ({reason} if expected else set())
    assert {"m", "y"} <= in_half(text)
    assert kept(text, BF16) == {}


@pytest.mark.parametrize(
    ("values", "node", "expected"),
    [
        ([1.0, 1e-12, 2.0, 3.0], "Div (m, e)", f"a number {VANISHES}"),
        ([-1e-9] * 4, "Div (m, e)", f"-1e-09 {VANISHES}"),
        ([1.0, 1e-12, 2.0, 3.0], "Add (m, e)", None),
    ],
)
def test_divisors_of_many_numbers(values, node, expected):
    """One divisor that vanishes is one too many, whatever its sign; only where all do is it an epsilon."""
    text = f"""g (float[4] x) => (float[4] y) <float[4,4] w, float[4] e> {{
        m = MatMul (x, w)
        a = {node}
        y = Div (m, a)
    }}"""
    assert kept(text, weights={"e": np.float32(values)}).get("a") == expected


@pytest.mark.parametrize(("epsilon", "stays"), [(2.9e-8, True), (6e-8, False), (1e-5, False)])
def test_an_epsilon_that_half_holds_is_no_reason(epsilon, stays):
    """What rounds to a subnormal half still keeps a divisor from zero."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float e> {
        m = MatMul (x, w)
        a = Max (m, e)
        y = Div (m, a)
    }"""
    assert bool(kept(text, weights={"e": np.float32(epsilon)})) == stays


def test_a_weight_with_a_few_tiny_values_is_no_epsilon():
    """A product with weights of which some vanish is no division by zero; they are counted."""
    text = """g (float[4] x) => (float[4] y) <float[4,4] w, float[4] e> {
        m = MatMul (x, w)
        a = Mul (m, e)
        y = Sqrt (a)
    }"""
    weights = {"e": np.float32([1.0, 1e-12, -1e-12, 0.0])}
    assert kept(text, weights=weights) == {}
    assert rewritten(model(text, weights)).report.flushed == 2


def test_a_mask_that_is_also_an_output_is_none():
    """What the model gives away keeps its numbers: such a fill is an overflow like any other."""
    text = """g (float[4,4] x) => (float[4,4] y, float[4] fill)
        <float[4,4] w, float[4] fill = {-1e9, 0.0, 0.0, 0.0}> {
        s = MatMul (x, w) a = Add (s, fill) p = Softmax (a) y = MatMul (p, w) }"""
    proto = model(text)
    result = rewritten(proto)
    assert stored(result.model)["fill"].tolist() == [-1e9, 0, 0, 0]
    assert "beyond float16" in kept(text)["a"]
    agree(proto, result.model)


@pytest.mark.parametrize(
    ("step", "held"),
    [("Max (s, far)", -3.4e38), ("Min (s, far)", 3.4e38), ("Clip (s, far)", -3.4e38)],
)
def test_a_bound_beyond_half_is_no_bound(step, held):
    """Max(x, -3.4e38) says nothing, and -inf says it as well: the node is half between its neighbours."""
    text = f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float far = {{{held}}}> {{
        s = MatMul (x, w) c = {step} y = MatMul (c, w) }}"""
    assert kept(text) == {}
    assert "c" in in_half(text)
    proto = model(text)
    agree(proto, rewritten(proto).model)


def test_a_huge_value_is_followed_through_a_scatter_that_adds():
    """What a scatter adds 1e5 to is as large: its readers stay, as those of an Add do."""
    text = """g (float[4,4] x, int64[1,1] i) => (float[4,4] y)
    <float[4,4] w, float[1,4] big = {100000, 1, 1, 1}> {
        m = MatMul (x, w)
        s = ScatterND <reduction = "add"> (m, i, big)
        d = Div (m, s)
        y = MatMul (d, w)
    }"""
    assert kept(text).keys() == {"s", "d"}


@pytest.mark.parametrize(
    ("value", "step"),
    [(2048.0, 2), (-4095.0, 2), (4096.0, 4), (65504.0, 32), (70000.0, None)],
)
@pytest.mark.parametrize("node", ["Add (m, c)", "Sub (c, m)", "Sum (m, c, m)"])
def test_a_sum_with_what_has_no_fractions_stays(value, step, node):
    """Past the integers of half, a number that is added leaves nothing of what is smaller than its steps."""
    text = f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[1] c = {{{value}}}> {{
        m = MatMul (x, w)
        y = {node}
    }}"""
    reason = kept(text).get("y", "")
    steps = f"{abs(value):g} in 'c' absorbs what it is added to: float16 has steps of {step} there"
    assert (steps in reason) if step else ("absorbs" not in reason)


def test_a_few_large_numbers_among_others_swallow_nothing():
    """A bias with one large entry is no reason inside a model: the other sums have their fractions."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4] c = {9000, 0.5, 0.5, -9000}> {
        m = MatMul (x, w)
        a = Add (m, c)
        y = MatMul (a, w)
    }"""
    assert "a" not in kept(text)


def _ending(body, behind="z = Identity (a)"):
    """A layer, an offset, and what follows it up to the output."""
    return f"""g (float[2,3,8] x) => (float[n] y) <
        float[8,3] w, float[3,3] v, float std = {{2}}, float mean = {{32}}, float[3] stds = {{1, 2, 4}},
        float[3] means = {{0, 0, 64}}, float[3] small = {{15, 0, 0}}, float[1,1,3] shaped = {{0, 32, 0}},
        float[3] over = {{0.5, 0.5, 0.25}}, int64[1] at = {{-1}}> {{
        m = MatMul (x, w) {body} {behind} y = Reshape (z, at) }}"""


OFFSETS = {
    "a std and a mean": ("s = Mul (m, std) a = Add (s, mean)", "'mean'"),
    "in one channel": ("s = Mul (m, stds) a = Add (s, means)", "'means'"),
    "of another shape": ("s = Mul (stds, m) a = Add (shaped, s)", "'shaped'"),
    "taken away": ("s = Mul (m, std) a = Sub (s, mean)", "'mean'"),
    "divided": ("s = Div (m, over) a = Add (s, mean)", "'mean'"),
    "a movement between": ("s = Mul (m, std) r = Reshape (s, at) a = Add (r, mean)", "'mean'"),
    "a movement before": (
        "s = Mul (m, std) r = Unsqueeze (means, at) f = Flatten (s) a = Add (s, mean)",
        "'mean'",
    ),
    "bare": ("t = Tanh (m) a = Add (t, means)", "'means'"),
    "of a norm": ("a = LayerNormalization (m, stds, means)", "'means'"),
}
BEHIND = [
    "z = Identity (a)",
    "z = Reshape (a, at)",
    "c = Transpose (a) b = Unsqueeze (c, at) z = Relu (b)",
    "b = Mul (a, std) z = Neg (b)",
    "z = Concat <axis = 0> (a, a)",
]


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("way", OFFSETS)
def test_an_offset_at_the_end_stays(way, behind):
    """Where it is large beside what it is added to, in one channel or in all, whatever moves behind it."""
    body, name = OFFSETS[way]
    told = kept(_ending(body, behind))
    assert f"in {name} absorbs what it is added to" in told["a"]
    assert not {"m", "s", "t"} & told.keys()


@pytest.mark.parametrize(
    ("body", "behind"),
    [
        ("s = Mul (m, stds) a = Add (s, small)", "z = Identity (a)"),  # less than 16 times as large
        ("s = Mul (m, std) a = Add (s, mean)", "z = MatMul (a, v)"),  # inside a model
        ("s = Mul (m, std) a = Add (s, mean)", "b = Sigmoid (a) z = Identity (b)"),
        ("s = Mul (m, std) a = Add (s, mean)", "z = Mul (a, m)"),
    ],
)
def test_other_offsets_are_half(body, behind):
    """At the end or not."""
    assert "a" not in kept(_ending(body, behind))


@pytest.mark.parametrize(("size", "stays"), [(0.01, True), (1.0, False)])
@pytest.mark.parametrize(
    "layer",
    ["y = Gemm (x, w, b)", "y = Gemm <transB = 1> (x, w, b)", "m = MatMul (x, w) y = Add (m, b)"],
)
def test_a_large_bias_of_the_last_layer_stays(layer, size, stays):
    """Beside the length of its weights, by channel; those of a convolution are first."""
    weights = ",".join([str(size)] * 16)
    text = f"""g (float[64,4] x) => (float[64,4] y)
        <float[4,4] w = {{{weights}}}, float[4] b = {{0, 0, 4, 0}}> {{ {layer} }}"""
    assert ("y" in kept(text)) == stays
    conv = f"""g (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <float[4,4,1,1] w = {{{weights}}}, float[4] b = {{0, 0, 4, 0}}> {{ y = Conv (x, w, b) }}"""
    assert ("y" in kept(conv)) == stays


CASES = Path(__file__).parents[1].parent / "shared" / "cases"


@pytest.mark.parametrize("name", ["62_two", "62_mixed"])
@pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared")
def test_a_weather_model_keeps_what_varies(name):
    """Its de-normalisation is float32 alone, and forced into half the verdict and the search fail for it."""
    pytest.importorskip("onnxruntime")
    from amp_rewrite.tuning.tune import tune  # noqa: PLC0415

    proto, feeds = onnx.load(CASES / f"{name}.onnx"), dict(np.load(CASES / f"{name}.npz"))
    result = amp_rewrite.rewrite(proto)
    assert result.report.nodes.half == 5
    assert amp_rewrite.verify(proto, result.model, feeds, Tolerances(error=1e-3), device="cpu").ok
    forced = Options(pins=Pins(force_half="/Add"))
    verdict = amp_rewrite.verify(proto, amp_rewrite.rewrite(proto, forced).model, feeds, device="cpu")
    assert verdict.is_far
    assert verdict.error > 0.1 > 1e-3 > verdict.outputs[0].metrics.relative_l2
    assert not tune(proto, feeds, forced, max_error=1e-3, device="cpu").is_met


def test_a_factor_swallows_nothing():
    """What a large number multiplies keeps its digits."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float c = {4096}> {
        m = MatMul (x, w)
        y = Mul (m, c)
    }"""
    assert "y" not in kept(text)
