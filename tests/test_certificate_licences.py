"""The certificate: each licence, by what it allows and by what looks like it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate import folding
from tests.certificate_rows import check, edited, model, rows, store, written

MASKS = """
12: (float[2,2] x, bool[2,2] k, bool q, int64[2,2] n) => (y)
        <float fill = {-3.4e38}, float zero = {0}> { NODES }
    an Add                     | NODES -> f = Where (k, fill, zero) a = Add (x, f) y = Softmax (a) |  | proved
    a Where                    | NODES -> a = Where (k, x, fill) b = Transpose (a) y = Softmax (b) |  | proved
    a Max                      | NODES -> a = Max (x, fill) y = Softmax (a) |  | proved
    a product with integers
        | NODES -> c = Cast <to = 1> (n) f = Mul (c, fill) a = Add (x, f) y = Softmax (a) | | proved
    a written-out softmax
        | NODES -> a = Where (k, x, fill) m = ReduceMax <axes = [-1]> (a) s = Sub (a, m)
          e = Exp (s) t = ReduceSum (e) y = Div (e, t)
        | | proved
    a body
        | NODES -> y = If (q) <then_branch = t () => (u) { a = Where (k, x, fill) u = Softmax (a) },
          else_branch = e () => (v) { v = Identity (x) }>
        | | proved
    a product with floats      | NODES -> f = Mul (x, fill) y = Softmax (f) |  | not proved
    a product                  | NODES -> y = Mul (x, fill) |  | not proved
    a threshold                | NODES -> y = Less (x, fill) |  | not proved
    a default where nothing is | NODES -> y = Where (k, x, fill) |  | not proved
    a count                    | NODES -> y = Div (x, fill) |  | not proved
    what is also compared
        | NODES -> a = Where (k, x, fill) l = Less (a, zero) b = Where (l, x, a) y = Softmax (b)
        | | not proved
    a logarithm                | NODES -> a = Where (k, x, fill) y = LogSoftmax (a) |  | not proved
    what leaves a body
        | NODES -> a = If (q) <then_branch = t () => (u) { u = Where (k, x, fill) },
          else_branch = e () => (v) { v = Identity (x) }> y = Softmax (a)
        | | not proved
    what a foreign operator reads
        | NODES -> f = other.Op (fill) a = Add (x, f) y = Softmax (a) | | not proved
"""


@pytest.mark.parametrize("clamped", ["float fill = {-32752}", "float16 fill = {63487}"])
@rows(MASKS)
def test_only_masks_are_clamped(row, clamped):
    """A value beyond half's range may be clamped where softmaxes alone see of it that it is large."""
    original, _, verdict = row
    check((original, f"float fill = {{-3.4e38}} -> {clamped}", verdict))


LICENCES = """
(float[3] x) => (float[3] y) <float[3] w = {70000.0, -90000.0, 1.1}> { a = Add (x, w) y = Softmax (a) }
    what was half on its way | {70000.0, -90000.0, 1.1} -> {inf, -32752, 1.099609375}
        | proved: restored 1, clamped 1, overflowed 1

(float[2] x, float[2] s) => (y) <float[2] s = {1.1, 70000}> { y = Add (x, s) }
    a default that is clamped | 70000 -> 32752 | not proved: more than a mask

(float[2] x, int64[1] s) => (float[2] y) { c = ConstantOfShape (s) y = Add (x, c) }
    a fill of zero, stated | Shape -> Shape <value = float16[1] {0}> | proved
    a fill that was zero   | Shape -> Shape <value = float[1] {5}>   | not proved
    a fill that is zero
        | Shape -> Shape <value = float[1] {5}> | <value = float[1] {5}> -> | not proved

(double[2] x) => (double[2] y) { y = Reciprocal (x) }
    a double divided as a float
        | => (double[2] y) -> => (double[2] y) <float o = {1}>; Reciprocal (x) -> Div (o, x) | not proved

(float[2] x) => (float[2] y) <float h = {6}> { y = Clip (x, "", h) }
    a bound that is infinite
        | h = {6} -> h = {6}, float l = {-3.4028234663852886e38};
          y = Clip (x, "", h) -> m = Max (x, l) y = Min (m, h)
        | proved
    a bound that the original does not have
        | h = {6} -> h = {6}, float l = {-32752};
          y = Clip (x, "", h) -> m = Max (x, l) y = Min (m, h)
        | not proved
    a bound that became infinite
        | h = {6} -> h = {6}, float16 l = {64512};
          y = Clip (x, "", h) -> m = Max (x, l) y = Min (m, h)
        | proved: overflowed 1, max and min 1

(float[2] x, float l) => (float[2] y) <float low = {0}, float high = {6}> { y = Clip (x, low, high) }
    a Clip, Max and Min |  | y = Clip (x, low, high) -> m = Max (x, low) y = Min (m, high) | proved
    a lower bound that is NaN  | {0} -> {nan} | y = Clip (x, low, high) -> m = Max (x, low) y = Min (m, high)
        | not proved
    an upper bound that is NaN | {6} -> {nan} | y = Clip (x, low, high) -> m = Max (x, low) y = Min (m, high)
        | not proved
    a bound that is given      | (x, low -> (x, l | y = Clip (x, l, high) -> m = Max (x, l) y = Min (m, high)
        | not proved

(float[2] x) => (y) { i = Identity (x) j = Identity (i) y = Neg (j) }
    two Identities | i = Identity (x) j = Identity (i) -> ; (j) -> (x) | not proved

(float[2] x) => (y) { i = Exp (x) y = Identity (i) }
    an Identity alone | i = Exp (x) y = Identity (i) -> y = Exp (x) | not proved
    an Identity of something else
        | y = Identity -> y = Neg | i = Exp (x) y = Neg (i) -> y = Exp (x) | not proved

12: (float[1,1,4,4] x) => (y) { y, i = MaxPool <kernel_shape = [2, 2]> (x) }
    an output               |             | y, i -> y       | not proved
    the name of an output   |             | y, i -> y, ""   | not proved
    an output without one   | y, i -> y,"" | y,"" -> y | proved: 1 nodes
    an output that was none | y, i -> y | y = -> y, i = | not proved

12: (float[2,2,3] x) => (y) <float[2] s = {1, 1}, float[2] b = {0, 0}> {
        y, m, v, n, w = BatchNormalization <epsilon = 1.0> (x, s, b, b, s) }
    outputs that say that it trains |  | y, m, v, n, w -> y | not proved
    their names at opset 9
        | 12: -> 9:; <epsilon = 1.0> -> | y, m, v, n, w -> y, "", "", "", "" | not proved

12: (float[4] x) => (y) { y, z = Split (x) }
    an output of a Split | y, z -> y | not proved

12: (float[1,1,4,4] x) => (y) <float[2,1,1,1] w = {1, 2}, float[1,2,1,1] a = {1, 2}, float[2] s = {2, 3},
        float[2] b = {1, 1}, float[2] m = {0, 1}, float[2] v = {1, 1}> {
            c = Conv (x, w) d = Add (c, a) y = BatchNormalization <epsilon = 0.0> (d, s, b, m, v) }
    a norm behind a sum
        | 12: (float[1,1,4,4] x) => (y) <float[2,1,1,1] w = {2, 6}, float[2] b = {3, 4}> {
          y = Conv (x, w, b) }
        | proved: merged 1
    a norm behind another sum
        | 1,4,4] x -> 1,4,2] x; float[1,2,1,1] a -> float[2] a
        | 12: (float[1,1,4,2] x) => (y) <float[2,1,1,1] w = {2, 6}, float[2] b = {3, 4}> {
          y = Conv (x, w, b) }
        | not proved

(float[1,1,2,2] x) => (float[1,1,2,2] y)
        <float[1,1,1,1] w = {3}, float[1] b = {2}, float[1] one = {1}, float[1] v = {0.99999}> {
            c = other.Conv (x, w, b) y = BatchNormalization (c, one, b, b, v) }
    a norm behind a foreign operator
        | (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {3}, float[1] b = {2}> {
          y = other.Conv (x, w, b) }
        | not proved

(float[2,1] x) => (float[2,1] y)
        <float[1,1] w = {3}, float[1] b = {0}, float[1] o = {1}, float[1] v = {0.99999}> {
            p = Gemm (x, w, b) c = BatchNormalization (p, o, b, b, v) y = Add (c, o) }
    merged weights in half
        | (float[2,1] x) => (float[2,1] y)
          <float16[1,1] w = {16896}, float16[1] b = {0}, float16[1] o = {15360}> {
          c = Gemm (x, w, b) y = Add (c, o) }
        | proved: merged 1
    other merged weights
        | (float[2,1] x) => (float[2,1] y)
          <float16[1,1] w = {17152}, float16[1] b = {0}, float16[1] o = {15360}> {
          c = Gemm (x, w, b) y = Add (c, o) }
        | not proved
    merged weights of another half type than the rest
        | (float[2,1] x) => (float[2,1] y)
          <float16[1,1] w = {16896}, float16[1] b = {0}, bfloat16[1] o = {16256}> {
          c = Gemm (x, w, b) y = Add (c, o) }
        | not proved: values are stored in two half types
    merged weights that overflow
        | w = {3} -> w = {70000}; c = Batch -> y = Batch; y = Add (c, o) ->
        | (float[2,1] x) => (float[2,1] y) <float16[1,1] w = {31744}, float16[1] b = {0}> {
          y = Gemm (x, w, b) }
        | proved: merged 1, overflowed 1
"""


@rows(LICENCES)
def test_licences(row):
    """A use of each is counted; what looks like one, and computes something else, is not proved."""
    check(row)


FOLDED = """
(int64[2] x) => (int64[2] y) <int64[2] a = {-7, 9}, int64[2] b = {3, 2}> { q = Div (a, b) y = Add (x, q) }
    a quotient
        | (int64[2] x) => (int64[2] y) <int64[2] q = {-2, 4}> { y = Add (x, q) } | proved
    a quotient by zero
        | {-7 -> {1; {3 -> {0
        | (int64[2] x) => (int64[2] y) <int64[2] q = {0, 4}> { y = Add (x, q) } | not proved
    a remainder by zero
        | {-7 -> {1; {3 -> {0; Div -> Mod
        | (int64[2] x) => (int64[2] y) <int64[2] q = {0, 1}> { y = Add (x, q) } | not proved
    a quotient that no integer is
        | {-7 -> {-9223372036854775808; {3 -> {-1
        | (int64[2] x) => (int64[2] y) <int64[2] q = {0, 4}> { y = Add (x, q) } | not proved
    a quotient by what is computed
        | {-7 -> {4; {3 -> {2; q = Div (a, b) -> c = Neg (b) q = Div (a, c)
        | (int64[2] x) => (int64[2] y) <int64[2] q = {-2, -4}> { y = Add (x, q) } | not proved

(float[2] x) => (float[2] y) <int64[2] s = {8192, 8192}, float w = {0.5}> {
        e = Expand (w, s) m = MatMul (e, e) q = ReduceSum <keepdims = 0> (m) y = Add (x, q) }
    a product of large matrices
        | (float[2] x) => (float[2] y) <float q = {1}> { y = Add (x, q) }
        | not proved: what is folded is too large to compute anew
    a product of two vectors
        | {8192, 8192} -> {2048, 1}; MatMul (e, e) -> MatMul (e, t); m = -> t = Transpose (e) m =
        | (float[2] x) => (float[2] y) <float q = {1048576}> { y = Add (x, q) }
        | proved: folded 1

(float[2] x) => (y) <int64[2] n = {4, 1}, float[1,1] c = {1}> {
        a = Expand (c, n) q = Einsum <equation = "ax,bx,cx,dx->"> (a, a, a, a) y = Add (x, q) }
    a product of several small factors
        | (float[2] x) => (y) <int64[2] n = {4, 1}, float[1,1] c = {1}, float q = {256}> { y = Add (x, q) }
        | proved
    one that is large on its way
        | {4, 1} -> {1000, 1}
        | (float[2] x) => (y) <int64[2] n = {1000, 1}, float[1,1] c = {1}, float q = {1e12}> {
          y = Add (x, q) }
        | not proved: what is folded is too large to compute anew
"""


@rows(FOLDED)
def test_what_is_folded_is_computed_anew(row):
    """Where that is little work, and ends no program."""
    check(row)


def test_most_work_bounds_what_is_computed_anew(monkeypatch):
    """A product of two vectors counts each element of its result."""
    monkeypatch.setattr(folding, "MOST_WORK", 2048 * 2048)
    original, folded, _ = dict(written(FOLDED))["a product of two vectors"]
    found = certify(model(original), model(folded))
    assert found.problem == "what is folded is too large to compute anew"


def test_a_table_of_angles_is_computed_anew():
    """A product of positions and frequencies, each element of which reads one of either, is little work."""
    text = '(int64[1] x) => (float[1,64] y) { q = Einsum <equation = "i,j->ij"> (p, f) y = Gather (q, x) }'
    original, folded = model(text), model(edited(text, 'q = Einsum <equation = "i,j->ij"> (p, f) ->'))
    positions, frequencies = np.arange(1 << 16, dtype="f4"), np.linspace(0, 1, 64, dtype="f4")
    store("p", positions)(original)
    store("f", frequencies)(original)
    store("q", np.outer(positions, frequencies))(folded)
    check((original, folded, "proved: folded 1"))


ROUNDED = """19: (float[2] x) => (float[2] y) <float[2] w = {0.3, 12.7}, float two = {2}> {
    h = Cast <to = %s> (w) f = Cast <to = 1> (h) m = Mul (f, two) y = Add (x, m) }"""
HALF, BFLOAT, FLOAT8, FLOAT8_WIDE, INT8, INT64, BOOL = 10, 16, 17, 19, 3, 7, 9


@pytest.mark.parametrize("to", [HALF, BFLOAT, FLOAT8, FLOAT8_WIDE, INT8, INT64, BOOL])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_what_the_original_rounds_itself_is_folded(to, half):
    """A constant on its way through another type is what that holds of it, in the result and in its proof."""
    result = rewrite(model(ROUNDED % to), Options(half=half, level="unsafe-force-all"))
    assert result.report.certificate.proved


TWICE = """(float[2] x) => (float[2] y) <float[2] w = {0.3, 1.1}> {
    h = Cast <to = 10> (w) f = Cast <to = 1> (h) c = d.twice (f)
    i = Cast <to = 16> (c) j = Cast <to = 1> (i) m = Neg (j) y = Add (x, m) }
    <domain: "d", opset_import: ["": 17]> twice (a) => (b) { b = Add (a, a) }"""
DOUBLED = np.float32([0.3, 1.1]).astype(np.float16) * np.float16(2)


@pytest.mark.parametrize(
    ("stored", "verdict"),
    [
        (-DOUBLED.astype(ml_dtypes.bfloat16).astype(np.float32), "proved"),
        (np.float32([-0.6, -2.2]), "proved"),
        (np.float32([-0.6, -2.3]), "not proved"),
    ],
    ids=str,
)
def test_casts_before_and_after_a_call_round_what_is_folded(stored, verdict):
    """What a function is given and gives is read through the Casts around its call."""
    result = model("(float[2] x) => (float[2] y) { y = Add (x, m) }")
    store("m", stored)(result)
    check((TWICE, result, verdict))


@pytest.mark.parametrize(
    ("attribute", "verdict"),
    [
        ("saturate = 1", "proved"),
        ("saturate = 2", "not proved"),
        ("saturate = 0", "not proved"),
        ('round_mode = "down"', "not proved"),
        ("other = 1", "not proved"),
    ],
)
def test_a_cast_with_further_attributes_is_no_cast_for_precision(attribute, verdict):
    """No runtime, or not every one, takes it for one; what is its default says nothing."""
    plain = "24: (float[2] x) => (float[2] y) { y = Neg (x) }"
    cast = f"h = Cast <to = 10, {attribute}> (x) f = Cast <to = 1> (h) y = Neg (f)"
    check((plain, f"y = Neg (x) -> {cast}", verdict))
    check((plain.replace("y = Neg (x)", cast), plain, verdict))


SHAPES = """
(float[N] x, int64 n) => (float[M] y) <bool yes = {1}> { y = Loop (n, yes, x) <body = b (
        int64 i, bool go, float[N] s) => (bool go, float[N] t) <float[N] u> { u = Exp (s) t = Neg (u) }> }
    what a loop carries   | float[N] s -> float[3] s   | not proved
    what a loop gives     | float[N] t -> float[3] t   | not proved
    what stands in a loop | float[N] u -> float[3,3] u | not proved

(float[N] x, bool q) => (float[M] y) { y = If (q) <then_branch = t () => (float[N] u) { u = Exp (x) },
        else_branch = e () => (float[N] v) { v = Neg (x) }> }
    what a branch gives         | float[N] u -> float[3] u   | not proved
    what the other branch gives | float[N] v -> float[2,2] v | not proved

(float[N,N] x) => (y) <int64[2,K] n> { n = NonZero (x) y = Transpose (n) }
    how many are not zero   | 2,K -> 2,5 | not proved
    how many axes there are | 2,K -> 3,K | not proved

(float[N] x, int64[R] s) => (y) <float[A,B] h> { h = Reshape (x, s) y = Exp (h) }
    what is given             | A,B -> A,3   | not proved
    the rank of what is given | A,B -> A,B,C | not proved

(float[2,N] x) => (y) <float[2,N] h, float[2,N] e> { h = com.microsoft.Gelu (x) e = Exp (h) y = Neg (e) }
    what is made of an operator that onnx does not know | float[2,N] e -> float[3,N] e | not proved
"""


@pytest.mark.parametrize("declares", ["the same", "nothing"])
@rows(SHAPES)
def test_a_declared_shape_is_the_original_s_or_follows(row, declares):
    """A runtime believes a shape that it cannot infer: a result may not declare another."""
    text, change, verdict = row
    original = model(text)
    if declares == "nothing":
        del original.graph.value_info[:]
    check((text, "", "proved"))
    check((original, edited(text, change), verdict))


UNDECLARED = """
(float[2,N] x) => (y) <float[2,N] h> { h = com.microsoft.Gelu (x) y = Exp (h) }
    another shape of an operator that onnx does not know | 2,N] h -> 2,3] h | not proved

(float[2,3] x) => (y) { e = Exp (x) n = Neg (e) y = Transpose (n) }
    a shape that follows from the inputs | => (y) -> => (y) <float[2,3] e>               | proved
    a shape that does not follow         | => (y) -> => (y) <float[2,3] e, float[3,3] n> | not proved
"""


@rows(UNDECLARED)
def test_what_the_original_does_not_declare(row):
    """Is inferred from the inputs; of onnxruntime's own operators the original tells it."""
    check(row)


LIFTS = {
    "by onnxconverter-common": (
        "1e-9, -1e-9, 0, 5e-8, -3, 9e-8",
        [1e-7, -1e-7, 0, 1e-7, -3, 1e-7],
        "proved: lifted 3",
    ),
    "by onnxruntime": (
        "1e-9, -1e-9, 0, 5e-8, -3, 1e-7",
        [6e-8, -6e-8, 0, 6e-8, -3, 1e-7],
        "proved: lifted 2",
    ),
    "of zero": ("0, 0, 0, 0, 0, 0", [1e-7, 0, 0, 0, 0, 0], "not proved"),
    "to the other sign": ("1e-9, 0, 0, 0, 0, 0", [-1e-7, 0, 0, 0, 0, 0], "not proved"),
    "too far": ("1e-9, 0, 0, 0, 0, 0", [2e-7, 0, 0, 0, 0, 0], "not proved"),
    "of what is larger": ("3e-7, 0, 0, 0, 0, 0", [1e-7, 0, 0, 0, 0, 0], "not proved"),
}


@pytest.mark.parametrize("case", LIFTS)
def test_tiny_weights_may_be_lifted(case):
    """Other converters raise what would become 0 in half to 1e-7 or 2^-24."""
    numbers, lifted, verdict = LIFTS[case]
    text = f"(float[6] x) => (float[6] y) <float[6] w = {{{numbers}}}> {{ y = Add (x, w) }}"
    check((text, store("w", np.float16(lifted)), verdict))
