"""The certificate: each licence, by what it allows and by what looks like it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate.certificate import Licence


def model(text, opset=17, ir_version=8):
    """A model by the text of its graph; `other` is a domain that nobody knows."""
    imports = f'["": {opset}, "com.microsoft": 1, "other": 1]'
    return parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> g {text}")


SCORES = "(float[2,2] x, bool[2,2] k, int64[2,2] n) => (y) <float fill = {-3.4e38}, float zero = {0}> { %s }"
MASKS = {
    "Add": "f = Where (k, fill, zero) a = Add (x, f) y = Softmax (a)",
    "Where": "a = Where (k, x, fill) b = Transpose (a) y = Softmax (b)",
    "Max": "a = Max (x, fill) y = Softmax (a)",
    "a product with integers": "c = Cast <to = 1> (n) f = Mul (c, fill) a = Add (x, f) y = Softmax (a)",
    "a written-out softmax": """a = Where (k, x, fill) m = ReduceMax <axes = [-1]> (a) s = Sub (a, m)
        e = Exp (s) t = ReduceSum (e) y = Div (e, t)""",
    "a body": """y = If (q) <then_branch = t () => (u) { a = Where (k, x, fill) u = Softmax (a) },
        else_branch = e () => (v) { v = Identity (x) }>""",
}
NO_MASKS = {
    "a product with floats": "f = Mul (x, fill) y = Softmax (f)",
    "a product": "y = Mul (x, fill)",
    "a threshold": "y = Less (x, fill)",
    "a default where nothing is": "y = Where (k, x, fill)",
    "a count": "y = Div (x, fill)",
    "what is also compared": "a = Where (k, x, fill) l = Less (a, zero) b = Where (l, x, a) y = Softmax (b)",
    "a logarithm": "a = Where (k, x, fill) y = LogSoftmax (a)",
    "what leaves a body": """a = If (q) <then_branch = t () => (u) { u = Where (k, x, fill) },
        else_branch = e () => (v) { v = Identity (x) }> y = Softmax (a)""",
    "what an operator of nobody's reads": "f = other.Op (fill) a = Add (x, f) y = Softmax (a)",
}


@pytest.mark.parametrize("half", ["float32", "float16"])
@pytest.mark.parametrize("case", [*MASKS, *NO_MASKS])
def test_only_masks_are_clamped(case, half):
    """A value beyond half's range may be clamped where softmaxes alone see of it that it is large."""
    text = SCORES.replace("bool[2,2] k", "bool[2,2] k, bool q") % (MASKS | NO_MASKS)[case]
    original, result = model(text, 12), model(text.replace("-3.4e38", "-32752"), 12)
    if half == "float16":
        result.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(-32752, np.float16), "fill"))
    found = certify(original, result)
    assert found.proved == (case in MASKS), found


ROUNDED = """(float[2] x) => (float[2] y) <float[2] w = {0.3, 12.7}, float two = {2}> {
    h = Cast <to = %s> (w) f = Cast <to = 1> (h) m = Mul (f, two) y = Add (x, m) }"""
HALF, BFLOAT, FLOAT8, FLOAT8_WIDE, INT8, INT64, BOOL = 10, 16, 17, 19, 3, 7, 9


@pytest.mark.parametrize("to", [HALF, BFLOAT, FLOAT8, FLOAT8_WIDE, INT8, INT64, BOOL])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_what_the_original_rounds_itself_is_folded(to, half):
    """A constant on its way through another type is what that holds of it, in the result and in its proof."""
    original = model(ROUNDED % to, 19, 9)
    result = rewrite(original, Options(half=half, level="unsafe-force-all"))
    assert result.report.certificate.proved


def test_casts_before_and_after_a_call_round_what_is_folded():
    """What a function is given and gives is read through the Casts around its call."""
    text = """<ir_version: 8, opset_import: ["": 17, "d": 1]> g (float[2] x) => (float[2] y)
        <float[2] w = {0.3, 1.1}> { h = Cast <to = 10> (w) f = Cast <to = 1> (h) c = d.twice (f)
        i = Cast <to = 16> (c) j = Cast <to = 1> (i) m = Neg (j) y = Add (x, m) }
        <domain: "d", opset_import: ["": 17]> twice (a) => (b) { b = Add (a, a) }"""
    stored = "(float[2] x) => (float[2] y) <float[2] m = {%s, %s}> { y = Add (x, m) }"
    rounded = np.float32([0.3, 1.1]).astype(np.float16) * np.float16(2)
    numbers = -rounded.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert certify(parser.parse_model(text), model(stored % tuple(numbers.tolist()))).proved
    assert certify(parser.parse_model(text), model(stored % (-0.6, -2.2))).proved
    assert not certify(parser.parse_model(text), model(stored % (-0.6, -2.3))).proved


CAST = "(float[2] x) => (float[2] y) { h = Cast <to = 10%s> (x) f = Cast <to = 1> (h) y = Neg (f) }"
PLAIN = "(float[2] x) => (float[2] y) { y = Neg (x) }"


@pytest.mark.parametrize("said", [", saturate = 2", ", saturate = 0", ', round_mode = "down"', ", other = 1"])
def test_a_cast_with_further_attributes_is_no_cast_for_precision(said):
    """No runtime, or not every one, takes it for one; what is its default says nothing."""
    odd, plain, default = model(CAST % said, 24), model(PLAIN, 24), model(CAST % ", saturate = 1", 24)
    assert certify(default, plain).proved
    assert certify(plain, default).proved
    assert not certify(plain, odd).proved
    assert not certify(odd, plain).proved
    assert certify(odd, odd).proved


CLIPPED = (
    "(float[2] x, float l) => (float[2] y) <float low = {%s}, float high = {%s}> { y = Clip (x, %s, high) }"
)
BOUNDED = CLIPPED.replace("y = Clip (x, %s, high)", "m = Max (x, %s) y = Min (m, high)")
BOUNDS = {
    ("0", "6", "low"): True,
    ("nan", "6", "low"): False,
    ("0", "nan", "low"): False,
    ("0", "6", "l"): False,
}


@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_clip_is_max_and_min_where_no_bound_is_nan(bounds):
    """A Clip ignores a bound that is NaN; of a Max or a Min all becomes NaN."""
    assert certify(model(CLIPPED % bounds), model(BOUNDED % bounds)).proved == BOUNDS[bounds]


LOOPED = """(float[N] x, int64 n) => (float[M] y) <bool yes = {1}> { y = Loop (n, yes, x) <body = b (
    int64 i, bool go, float[%s] s) => (bool go, float[%s] t) <float[%s] u> { u = Exp (s) t = Neg (u) }> }"""
CHOSEN = """(float[N] x, bool q) => (float[M] y) {
    y = If (q) <then_branch = t () => (float[%s] u) { u = Exp (x) },
    else_branch = e () => (float[%s] v) { v = Neg (x) }> }"""
FOUND = "(float[N,N] x) => (y) <int64[%s] n> { n = NonZero (x) y = Transpose (n) }"
SIZED = "(float[N] x, int64[R] s) => (y) <float[%s] h> { h = Reshape (x, s) y = Exp (h) }"
CONTRIB = "(float[2,N] x) => (y) <float[%s] h> { h = com.microsoft.Gelu (x) y = Exp (h) }"
AFTER = (
    "(float[2,N] x) => (y) <float[2,N] h, float[%s] e> { h = com.microsoft.Gelu (x) e = Exp (h) y = Neg (e) }"
)
SHAPES = {
    "what a loop carries": (LOOPED, ("N", "N", "N"), ("3", "N", "N")),
    "what a loop gives": (LOOPED, ("N", "N", "N"), ("N", "3", "N")),
    "what stands in a loop": (LOOPED, ("N", "N", "N"), ("N", "N", "3,3")),
    "what a branch gives": (CHOSEN, ("N", "N"), ("3", "N")),
    "what the other branch gives": (CHOSEN, ("N", "N"), ("N", "2,2")),
    "how many are not zero": (FOUND, "2,K", "2,5"),
    "how many axes there are": (FOUND, "2,K", "3,K"),
    "what is given": (SIZED, "A,B", "A,3"),
    "the rank of what is given": (SIZED, "A,B", "A,B,C"),
    "what is made of that": (AFTER, "2,N", "3,N"),
}


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("declares", ["the same", "nothing"])
def test_a_declared_shape_is_the_original_s_or_follows(case, declares):
    """A runtime believes a shape that it cannot infer: a result may not declare another."""
    text, said, other = SHAPES[case]
    original, result = model(text % said), model(text % other)
    if declares == "nothing":
        del original.graph.value_info[:]
    assert not certify(original, result).proved
    assert certify(model(text % said), model(text % said)).proved


def test_of_an_operator_that_onnx_does_not_know_the_original_tells_the_shape():
    """What it does not declare is left to onnxruntime, which infers shapes of its own operators."""
    assert certify(model(CONTRIB % "2,N"), model(CONTRIB % "2,N")).proved
    assert not certify(model(CONTRIB % "2,N"), model(CONTRIB % "2,3")).proved


def test_sizes_that_follow_from_the_inputs_may_be_declared():
    """Though the original declares none."""
    text = "(float[2,3] x) => (y) <float[2,3] e> { e = Exp (x) n = Neg (e) y = Transpose (n) }"
    original = model(text)
    del original.graph.value_info[:]
    assert certify(original, model(text)).proved
    assert not certify(original, model(text.replace("> {", ", float[3,3] n> {"))).proved


FLAT = """(float[2,2,2] x, int64[2] i) => (float[2,2,2] y) <float[%s] h> {
    h = Gather (x, i) y = Softmax <axis = 1> (h) }"""


def test_a_wrong_rank_proves_no_other_version():
    """Softmax of axis 1 is one of the last axis where a value has two: it has three, whatever is declared."""
    assert not certify(model(FLAT % "A,B", 11), model(FLAT % "A,B", 13)).proved
    two = FLAT.replace("2,2,2", "2,2")
    assert certify(model(two % "2,2", 11), model(two % "2,2", 13)).proved


TINY = "(float[6] x) => (float[6] y) <%s[6] w = {%s}> { y = Add (x, w) }"
LIFTS = {
    "by onnxconverter-common": (
        "1e-9, -1e-9, 0, 5e-8, -3, 9e-8",
        np.float16([1e-7, -1e-7, 0, 1e-7, -3, 1e-7]),
        3,
    ),
    "by onnxruntime": ("1e-9, -1e-9, 0, 5e-8, -3, 1e-7", np.float16([6e-8, -6e-8, 0, 6e-8, -3, 1e-7]), 2),
    "of zero": ("0, 0, 0, 0, 0, 0", np.float16([1e-7, 0, 0, 0, 0, 0]), None),
    "to the other sign": ("1e-9, 0, 0, 0, 0, 0", np.float16([-1e-7, 0, 0, 0, 0, 0]), None),
    "too far": ("1e-9, 0, 0, 0, 0, 0", np.float16([2e-7, 0, 0, 0, 0, 0]), None),
    "of what is larger": ("3e-7, 0, 0, 0, 0, 0", np.float16([1e-7, 0, 0, 0, 0, 0]), None),
}


@pytest.mark.parametrize("case", LIFTS)
def test_tiny_weights_may_be_lifted(case):
    """Other converters raise what would become 0 in half to 1e-7 or 2^-24."""
    numbers, raised, count = LIFTS[case]
    original = model(TINY % ("float", numbers))
    result = model(TINY % ("float", numbers))
    result.graph.initializer[0].CopyFrom(numpy_helper.from_array(raised, "w"))
    found = certify(original, result)
    assert found.proved == (count is not None)
    assert not found.proved or found.licences == {Licence.LIFTED: count}


POOLED = """(float[1,1,4,4] x) => (y) {
    y%s = MaxPool <kernel_shape = [2, 2]> (x) }"""
NORM = """(float[2,2,3] x) => (y) <float[2] s = {1, 1}, float[2] b = {0, 0}> {
    y%s = BatchNormalization <epsilon = 1.0> (x, s, b, b, s) }"""
LEFT_OUT = {
    "Identity": (
        "(float[2] x) => (y) { i = Identity (x) j = Identity (i) y = Neg (j) }",
        "(float[2] x) => (y) { y = Neg (x) }",
        {Licence.IDENTITY: 2},
    ),
    "an Identity alone": (
        "(float[2] x) => (y) { i = Exp (x) y = Identity (i) }",
        "(float[2] x) => (y) { y = Exp (x) }",
        {Licence.IDENTITY: 1},
    ),
    "an output": (POOLED % ", i", POOLED % "", {Licence.UNUSED_OUTPUT: 1}),
    "the name of an output": (POOLED % ", i", POOLED % ', ""', {Licence.UNUSED_OUTPUT: 1}),
    "an output that was none": (POOLED % "", POOLED % ", i", None),
    "outputs that say that it trains": (NORM % ", m, v, n, w", NORM % "", None),
    "an output of a Split": (
        "(float[4] x) => (y) { y, z = Split (x) }",
        "(float[4] x) => (y) { y = Split (x) }",
        None,
    ),
    "an Identity of something else": (
        "(float[2] x) => (y) { i = Identity (x) y = Neg (i) }",
        "(float[2] x) => (y) { y = Exp (x) }",
        None,
    ),
    "a norm behind a sum": (
        """(float[1,1,4,4] x) => (y) <float[2,1,1,1] w = {1, 2}, float[1,2,1,1] a = {1, 2},
        float[2] s = {2, 3},
        float[2] b = {1, 1}, float[2] m = {0, 1}, float[2] v = {1, 1}> {
            c = Conv (x, w) d = Add (c, a) y = BatchNormalization <epsilon = 0.0> (d, s, b, m, v) }""",
        """(float[1,1,4,4] x) => (y) <float[2,1,1,1] w = {2, 6},
        float[2] b = {3, 4}> { y = Conv (x, w, b) }""",
        {Licence.MERGED: 1},
    ),
    "a norm behind another sum": (
        """(float[1,1,4,2] x) => (y) <float[2,1,1,1] w = {1, 2}, float[2] a = {1, 2}, float[2] s = {2, 3},
        float[2] b = {1, 1}, float[2] m = {0, 1}, float[2] v = {1, 1}> {
            c = Conv (x, w) d = Add (c, a) y = BatchNormalization <epsilon = 0.0> (d, s, b, m, v) }""",
        """(float[1,1,4,2] x) => (y) <float[2,1,1,1] w = {2, 6},
        float[2] b = {3, 4}> { y = Conv (x, w, b) }""",
        None,
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_does_nothing_may_be_left_out(case):
    """As onnxslim does: Identities, outputs that nobody reads, and norms in the weights before a sum."""
    original, result, used = LEFT_OUT[case]
    found = certify(model(original, 12), model(result, 12))
    assert found.proved == (used is not None), found
    assert used is None or found.licences == used
