"""The certificate: values stored as v * 2^-e, whose powers of two cancel, and results where they do not."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate.certificate import Licence

NO_FIT = "it reads values as "
LEAVES = "it leaves as 2^"
EPSILON = "its epsilon does not have the exponent of its data"
ATTRIBUTE = "their attribute 'epsilon' differs"
TWO = "it stands for two values"
ELEMENT = "element "
OTHERS = "the two are not the same"

W = "float[4] w = {3[/4], 5[/4], 7[/4], 9[/4]}"
"""A weight of the original, and of the result: `v[/n]` is v, and v / n; `[[a|b]]` is a, and b."""
M = "m = Mul (x, w)"
RATIO = f"{M} y = Div (m, m)"
K = "float k = {4}"
UP = "[[|y = Mul (u, k)]]"

PROVED = {
    # the stored values, the nodes, and the number of changes
    "a residual stream and a written-out norm": (
        f"{W}, float e = {{0.01[/16]}}, float two = {{2}}",
        f"""{M} r = Relu (m) d = Add (r, m) p = Pow (d, two) v = ReduceMean <axes = [-1]> (p) o = Add (v, e)
        q = Sqrt (o) y = Div (d, q)""",
        2,
    ),
    "a norm": (
        f"{W}, float[4] g = {{1, 2, 3, 4}}",
        f"{M} y = LayerNormalization <epsilon = 0.01[/16]> (m, g)",
        2,
    ),
    "a norm and its weights": (
        f"{W}, float[4] g = {{1[/4], 2[/4], 3[/4], 4[/4]}}, {K}",
        f"{M} [[y|u]] = LayerNormalization <epsilon = 0.01[/16]> (m, g) {UP}",
        4,
    ),
    "a fused norm and its sum": (
        f"{W}, float[4] g = {{1, 2, 3, 4}}, {K}",
        f"""{M} n, , , s = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.01[/16]> (m, m, g)
        [[|u = Mul (s, k)]] y = Add (n, [[s|u]])""",
        3,
    ),
    "an output": (f"{W}, {K}", f"[[y|u]] = Mul (x, w) {UP}", 2),
    "a constant before a value": (f"{W}, {K}", "[[y|u]] = Mul (x, w) [[|y = Mul (k, u)]]", 2),
    "an input": (
        f"{W}, float k = {{0.25}}, float four = {{4}}",
        "[[|h = Mul (x, k)]] [[y|u]] = Add ([[x|h]], w) [[|y = Mul (u, four)]]",
        3,
    ),
    "two Muls, one after the other": (
        f"{W}, float k = {{2}}",
        "[[y|t]] = Mul (x, w) [[|u = Mul (t, k) y = Mul (u, k)]]",
        3,
    ),
    "products of products": (
        f"{W}, {K}",
        f"{M} g = Sigmoid (x) s = Mul (x, g) [[y|u]] = Mul (s, m) {UP}",
        2,
    ),
    "powers of two that change places": (
        f"{W}, float h = {{0.5[/0.5]}}, float k = {{2}}",
        f"{M} [[y|u]] = Mul (m, h) {UP}",
        3,
    ),
    "two powers of two of the original": (
        f"{W}, float h = {{0.5}}, {K}",
        f"{M} n = Mul (m, h) [[y|u]] = Mul (n, h) {UP}",
        2,
    ),
    "a square": (
        f"{W}, float two = {{2}}, float k = {{16}}",
        f"{M} [[y = Mul (m, m)|u = Pow (m, two)]] {UP}",
        2,
    ),
    "a reciprocal": (
        f"{W}, float one = {{1}}, float k = {{0.25}}",
        f"{M} [[y = Reciprocal (m)|u = Div (one, m)]] {UP}",
        2,
    ),
    "a fill": (
        f"int64[1] s = {{4}}, {K}",
        f"f = ConstantOfShape <value = float[1] {{3[/4]}}> (s) [[y|u]] = Mul (x, f) {UP}",
        2,
    ),
    "a constant that is folded": (
        f"[[{W}|float[4] d = {{1.5, 2.5, 3.5, 4.5}}]], {K}".replace("[/4]", ""),
        f"[[d = Add (w, w)|]] [[y|u]] = Mul (x, d) {UP}",
        2,
    ),
    "infinities and zeros": (
        f"{W}, float low = {{-inf}}, float[4] zeros = {{0, 0, 0, 0}}, {K}",
        f"""{M} z = Add (m, zeros) p = Max (z, zeros) b = Greater (z, zeros) a = Where (b, low, p)
        [[|u = Mul (a, k)]] y = Softmax ([[a|u]])""",
        2,
    ),
    "movements": (
        f"{W}, {K}, int64[1] four = {{4}}, int64[2] shape = {{2, 4}}",
        f"""{M} c = Concat <axis = 0> (m, m) a, b = Split <axis = 0> (c) l, i = TopK (a, four)
        t = Transpose (l) r = Reshape (t, shape) h = Abs (r) n = Neg (h)
        s = Sum (n, b) [[y|u]] = LeakyRelu (s) {UP}""",
        2,
    ),
    "pools": (
        f"""{W}, {K}, int64[4] image = {{1, 2, 2, 2}}, float[1] slope = {{0.3}}, int64[1] flag = {{0}},
        float[1,4] box = {{0, 0, 2, 2}}, float[1,5] boxes = {{0, 0, 0, 1, 1}}""",
        f"""{M} c = Reshape (m, image) p = PRelu (c, slope) a = MaxPool <kernel_shape = [1, 2]> (p)
        b = LpPool <kernel_shape = [2, 1]> (p) d = GlobalMaxPool (c) e = GlobalLpPool (c)
        f = AveragePool <kernel_shape = [2, 2]> (c) g = ReduceMax <axes = [2]> (c)
        h = ReduceMin <axes = [3]> (c) i = ReduceL1 <axes = [3]> (c)
        l = RoiAlign <output_height = 2, output_width = 2> (c, box, flag)
        n = MaxRoiPool <pooled_shape = [1, 1]> (c, boxes) o = Sum (a, b, d, e, f, g, h, i, l, n)
        q = ReduceMean <axes = [0, 1, 2, 3], keepdims = 0> (o) [[y|u]] = Add (m, q) {UP}""",
        2,
    ),
    "what has no exponent": (
        f"{W}",
        f"""{M} a = ArgMax <axis = 1> (m) b = ArgMin <axis = 1> (m) c = IsInf (m) d = IsNaN (m)
        e = NonZero (m) f = Hardmax (m) g = Sign (m) h = LpNormalization (m)
        z = ReduceMax <keepdims = 0> (e) i = Add (a, b) j = Add (i, z) l = Cast <to = 1> (j) n = Or (c, d)
        o = Where (n, l, f) y = Sum (o, g, h, l)""",
        1,
    ),
    "numbers quantised as they come": (
        f"{W}, {K}",
        f"{M} q, s, z = DynamicQuantizeLinear (m) [[y|u]] = DequantizeLinear (q, s, z) {UP}",
        2,
    ),
    "rotations": (
        f"""{W}, {K}, int64[1] at = {{0}}, int64[3] heads = {{1, 2, 4}}, int64[2] shape = {{2, 4}},
        float[2,2] c = {{0.5, 0.6, 0.7, 0.8}}, float[2,2] s = {{0.1, 0.2, 0.3, 0.4}}""",
        f"""{M} h = Reshape (m, heads) r = com.microsoft.RotaryEmbedding (h, at, c, s)
        [[y|u]] = Reshape (r, shape) {UP}""",
        2,
    ),
    "quotients and roots": (f"{W}", f"{M} p = Mul (m, m) s = ReduceSum (p) r = Sqrt (s) y = Div (m, r)", 1),
    "a sum of squares": (
        f"{W}",
        f"""{M} s = ReduceSumSquare <axes = [-1]> (m) r = Sqrt (s) l = ReduceL2 <axes = [-1]> (m)
        q = Div (r, l) y = Add (q, x)""",
        1,
    ),
    "powers": (
        f"{W}, float half = {{0.5}}, float three = {{3}}",
        f"{M} a = Abs (m) p = Pow (a, half) q = Mul (p, p) d = Div (m, q) y = Pow (d, three)",
        1,
    ),
    "bounds": (
        f"{W}, float low = {{-2[/4]}}, float high = {{9[/4]}}, {K}",
        f"{M} [[y|u]] = Clip (m, low, high) {UP}",
        4,
    ),
    "a bound that is subnormal in half": (
        "float w = {3[/128]}, float low = {0.0001[/128]}, float high = {9[/128]}, float k = {128}",
        f"{M} [[y|u]] = Clip (m, low, high) {UP}",
        4,
    ),
    "bounds as Max and Min": (
        f"{W}, float low = {{-2[/4]}}, float high = {{9[/4]}}, {K}",
        f"{M} [[y = Clip (m, low, high)|l = Max (m, low) u = Min (l, high)]] {UP}",
        4,
    ),
    "a comparison": (
        f"{W}, float t = {{2[/4]}}, {K}",
        f"{M} g = GreaterOrEqual (m, t) [[y|u]] = Where (g, m, t) {UP}",
        3,
    ),
    "what a body reads": (
        f"{W}, float[4] g = {{1, 2, 3, 4}}, bool c = {{1}}",
        f"""{M} y = If (c) <then_branch = t () => (u) {{
        u = LayerNormalization <epsilon = 0.01[/16]> (m, g) }},
        else_branch = e () => (v) {{ v = Identity (x) }}>""",
        2,
    ),
    "whether it is 0": (
        f"{W}",
        f"{M} c = Cast <to = 9> (m) n = Not (c) y = Cast <to = 1> (n)",
        1,
    ),
    "the largest of what is scattered": (
        f"{W}, int64[2,4] at = {{0, 0, 0, 1, 1, 1, 1, 1}}, {K}",
        f'{M} n = Neg (m) [[y|u]] = ScatterElements <reduction = "max"> (n, at, m) {UP}',
        2,
        18,
    ),
    "a BatchNormalization": (
        f"{W}, float[4] s = {{1, 2, 3, 4}}, float[4] b = {{1[/4], 2[/4], 3[/4], 4[/4]}}, {K}",
        f"{M} [[y|u]] = BatchNormalization <epsilon = 0.01> (m, s, b, b, s) {UP}",
        3,
    ),
    "quantised numbers": (
        f"{W}, float s = {{0.5[/4]}}, uint8 z = {{8}}, {K}",
        f"{M} q = QuantizeLinear (m, s, z) [[y|u]] = DequantizeLinear (q, s, z) {UP}",
        3,
    ),
    "weights in four bits": (
        f"""{W}, float[4,1] s = {{1[/4], 2[/4], 3[/4], 4[/4]}},
        uint8[4,1,8] q = {{{", ".join(["137"] * 32)}}},
        float k = {{16}}, float[4] b = {{1[/16], 2[/16], 3[/16], 4[/16]}}""",
        f"""{M} h = Concat <axis = 1> (m, m, m, m) [[y|u]] = com.microsoft.MatMulNBits
        <K = 16, N = 4, bits = 4, block_size = 16> (h, q, s, , , b) {UP}""",
        4,
    ),
    "a bias": (
        f"""{W}, float[4,4] v = {{1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7}},
        float[4] b = {{1[/4], 2[/4], 3[/4], 4[/4]}}, {K}""",
        f"{M} [[y|u]] = Gemm (m, v, b) {UP}",
        3,
    ),
    "a copy": (
        "float[4] w = {3, 5, 7, 9} [[|, float[4] v = {0.75, 1.25, 1.75, 2.25}]]",
        "m = Mul (x, [[w|v]]) n = Mul (x, w) b = ReduceSum (m) a = Div (m, b) y = Add (a, n)",
        1,
    ),
}
REFUSED = {
    # the stored values, the nodes, and the problem
    "a sum": (f"{W}", f"{M} y = Add (m, x)", NO_FIT),
    "a sigmoid": (f"{W}, {K}", f"{M} [[y|u]] = Sigmoid (m) {UP}", NO_FIT),
    "a softmax": (f"{W}", f"{M} y = Softmax (m)", NO_FIT),
    "what leaves": (f"{W}", f"{M} y = Relu (m)", f"{LEAVES}-2 "),
    "a Mul too many": (f"{W}, {K}", f"[[y|t]] = Mul (x, w) [[|u = Mul (t, k)]] {UP}", f"{LEAVES}2 "),
    "a Mul by another power": (f"{W}, float k = {{2}}", f"[[y|u]] = Mul (x, w) {UP}", f"{LEAVES}-1 "),
    "a Mul by a negative number": (f"{W}, float k = {{-4}}", f"[[y|u]] = Mul (x, w) {UP}", OTHERS),
    "a Mul by another number": (f"{W}, float k = {{5}}", f"[[y|u]] = Mul (x, w) {UP}", OTHERS),
    "a Mul with axes": (f"{W}, float[1,1,1] k = {{4}}", f"[[y|u]] = Mul (x, w) {UP}", OTHERS),
    "a Mul of three factors": (
        f"{W}, {K}",
        "[[y|u]] = Mul (x, w) [[|y = Mul (u, k, k)]]",
        "they have different numbers of inputs",
    ),
    "an odd root": (
        "float[4] w = {3[/2], 5[/2], 7[/2], 9[/2]}, float k = {2}",
        f"{M} [[y|u]] = Sqrt (m) {UP}",
        NO_FIT,
    ),
    "an epsilon as it was": (f"{W}, float[4] g = {{1,2,3,4}}", f"{M} y = LayerNormalization (m, g)", EPSILON),
    "another epsilon": (
        f"{W}, float[4] g = {{1,2,3,4}}",
        f"{M} y = LayerNormalization <epsilon = 0.01[/4]> (m, g)",
        EPSILON,
    ),
    "an odd epsilon": (
        f"{W}, float[4] g = {{1,2,3,4}}",
        f"{M} y = LayerNormalization <epsilon = 0.01[/32]> (m, g)",
        ATTRIBUTE,
    ),
    "an epsilon alone": (
        "float[4] g = {1,2,3,4}",
        "y = LayerNormalization <epsilon = 0.01[/16]> (x, g)",
        EPSILON,
    ),
    "an epsilon that is subnormal": (
        f"{W}, float[4] g = {{1,2,3,4}}",
        f"{M} y = LayerNormalization <epsilon = 1.5e-38[/16]> (m, g)",
        ATTRIBUTE,
    ),
    "the epsilon of a BatchNormalization": (
        "float[4] s = {1,2,3,4}",
        "y = BatchNormalization <epsilon = 0.01[/16]> (x, s, s, s, s)",
        ATTRIBUTE,
    ),
    "the epsilon in a norm of two inputs": (
        f"{W}, float[4] g = {{1, 2, 3, 4}}",
        f"{M} y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.01[/16]> (m, x, g)",
        NO_FIT,
    ),
    "a written-out epsilon": (
        f"{W}, float e = {{0.01[/8]}}",
        f"{M} p = Mul (m, m) v = ReduceMean <axes = [-1]> (p) o = Add (v, e) q = Sqrt (o) y = Div (m, q)",
        NO_FIT,
    ),
    "elements of two exponents": ("float[4] w = {3[/4], 5[/4], 7[/2], 9[/4]}", RATIO, ELEMENT),
    "another element": ("float[4] w = {3.1[/4], 5[/4.000001], 7[/4], 9[/4]}", RATIO, ELEMENT),
    "an element that becomes subnormal": (
        "float[4] w = {3[/4], 2e-38[/4], 7[/4], 9[/4]}",
        RATIO,
        ELEMENT,
    ),
    "an element that becomes infinite": (
        "float[4] w = {3[/0.0625], 5[/0.0625], 7[/0.0625], [[3e38|inf]]}",
        RATIO,
        ELEMENT,
    ),
    "what stands for a product and a factor": (
        "float k = {4[/16]}, float[4] w = {3[/4], 5[/4], 7[/4], 9[/4]}",
        "m = Mul (x, w) n = Mul (m, k) s = Softmax (n) t = Softmax ([[m|n]]) y = Sub (s, t)",
        TWO,
    ),
    "what stands for two constants": (
        "float[4] w = {3, 5, 7, 9}, float[4] v = {12, 20, 28, 36}",
        "m = Mul (x, w) n = Mul (x, [[v|w]]) a = Div (m, m) b = Div (n, n) y = Sub (a, b)",
        TWO,
    ),
    "what leaves a body": (
        f"{W}, bool c = {{1}}",
        f"""{M} y = If (c) <then_branch = t () => (u) {{ u = Neg (m) }},
        else_branch = e () => (v) {{ v = Identity (x) }}>""",
        LEAVES,
    ),
    "what is carried": (
        f"{W}, int64 n = {{2}}, bool c = {{1}}",
        f"""{M} y = Loop (n, c, m) <body = b (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] t) {{
        d = Identity (c) t = Neg (s) }}>""",
        NO_FIT,
    ),
    "a mask": (
        "float[4] f = {[[-3.4e38|-32752]], 8[/2], 0, 0}",
        "a = Add (x, f) y = Softmax (a)",
        ELEMENT,
    ),
    "an exponent": (f"{W}, float[4] b = {{2, 3, 4, 5}}", f"{M} y = Pow (b, m)", NO_FIT),
    "a power of another number": (f"{W}", f"{M} y = Pow (m, x)", NO_FIT),
    "steps": (f"{W}, {K}", f"{M} [[y|u]] = Round (m) {UP}", NO_FIT),
    "an activation with a bend": (f"{W}, {K}", f"{M} [[y|u]] = Elu (m) {UP}", NO_FIT),
    "the variance of a BatchNormalization": (
        "float[4] s = {1,2,3,4}, float[4] v = {1[/16], 2[/16], 3[/16], 4[/16]}, float k = {0.25}",
        f"[[y|u]] = BatchNormalization (x, s, s, s, v) {UP}",
        NO_FIT,
    ),
}


def pair(stored, nodes, opset=17):
    """The original and the result."""
    text = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> g '
    text += f"(float[2,4] x) => (float[2,4] y) <{stored}> {{ {nodes} }}"
    number, choice = r"([-\d.e]+)\[/([\d.]+)\]", r"\[\[(.*?)\|(.*?)\]\]"
    before = re.sub(number, r"\1", re.sub(choice, r"\1", text))
    after = re.sub(number, lambda m: repr(float(m[1]) / float(m[2])), re.sub(choice, r"\2", text))
    return parser.parse_model(before), parser.parse_model(after)


def output(model):
    """The output of a model in float32."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).standard_normal((2, 4), np.float32)
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("case", PROVED)
def test_what_cancels_is_proved(case):
    """In float32, where the output has the same bits, and in half, whose other licences hold as well."""
    stored, nodes, count, *opset = PROVED[case]
    original, result = pair(stored, nodes, *opset)
    found = certify(original, result)
    assert found.proved, found
    assert found.licences[Licence.RESCALED] == count
    np.testing.assert_array_equal(output(original), output(result))
    for half in ("float16", "bfloat16"):
        options = Options(half=half, level="unsafe-force-all", check=False, certify=False)
        found = certify(original, rewrite(result, options).model)
        assert found.proved, found
        assert found.licences[Licence.RESCALED] == count


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_cancel_is_refused(case):
    """With the reason."""
    *texts, problem = REFUSED[case]
    found = certify(*pair(*texts))
    assert not found.proved
    assert found.problem.startswith(problem), found


BOUNDS = (
    "D = Clip (V, e)",
    "D = Max (e, V)",
    "D = Add (V, e)",
    "s = Max (V, e) t = Sum (V, e) D = Sub (t, s)",
)


@pytest.mark.parametrize("nodes", BOUNDS)
@pytest.mark.parametrize(("exponent", "is_right"), [(1, True), (12, True), (-12, True), (-20, False)])
def test_a_bound_that_half_lifts_has_the_exponent_of_its_data(nodes, exponent, is_right):
    """1e-12 is the least number of half at each exponent from -16 on."""
    before = nodes.replace("V", "x").replace("D", "y")
    after = nodes.replace("V", "m").replace("D", "u")
    after = f"h = Mul (x, k) m = Cast <to = 10> (h) {after} f = Cast <to = 1> (u) y = Mul (f, l)"
    powers = f"float k = {{{2.0**-exponent!r}}}, float l = {{{2.0**exponent!r}}}"
    original, _ = pair(f"{powers}, float e = {{1e-12}}", before)
    result, _ = pair(f"{powers}, float16 e = {{1}}", after)
    found = certify(original, result)
    assert found.proved == is_right, found


def test_weights_that_a_norm_went_into_are_rescaled():
    """The numbers that are computed anew have an exponent as well."""
    original, _ = pair(
        """float[2,2,1,1] w = {3, 5, 7, 9}, float[2] s = {1, 2}, float[2] v = {3, 4},
        int64[4] image = {1, 2, 2, 2}, int64[2] shape = {2, 4}""",
        """i = Reshape (x, image) c = Conv (i, w) n = BatchNormalization (c, s, v, v, v)
        l = ReduceL1 (n) q = Div (n, l) y = Reshape (q, shape)""",
    )
    result = rewrite(original, Options(level="unsafe-force-all", check=False)).model
    for tensor in result.graph.initializer:
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype == np.float16:
            tensor.CopyFrom(numpy_helper.from_array(numbers / np.float16(4), tensor.name))
    found = certify(original, result)
    assert found.licences == {Licence.MERGED: 1, Licence.RESCALED: 2}, found


# ---- larger models, rescaled by hand, and faults in them


LARGER = {
    # the shapes of weights, those that are divided by 4, other stored values, and the nodes
    "a residual stream": (
        {"w": (4, 4), "a": (4,), "v": (4, 4), "g": (4,), "o": (4, 4), "b": (4,)},
        "wao",
        f"float e = {{0.01[/16]}}, float two = {{2}}, {K}",
        """m = MatMul (x, w) n = Add (m, a) r = Relu (n) f = MatMul (r, v) h = Add (f, n) p = Pow (h, two)
        s = ReduceMean <axes = [-1]> (p) d = Add (s, e) q = Sqrt (d) c = Div (h, q) l = Mul (c, g)
        i = MatMul (l, o) j = Add (i, h) t = LayerNormalization <epsilon = 0.02[/16]> (j, g, b)
        [[|u = Mul (i, k)]] z = Tanh ([[i|u]]) y = Add (t, z)""",
    ),
    "convolutions": (
        {"w": (4, 2, 1, 1), "b": (4,), "v": (4, 4, 1, 1), "g": (4,), "o": (2, 4, 1, 1)},
        "wb",
        f"int64[4] image = {{1, 2, 2, 2}}, int64[2] shape = {{2, 4}}, {K}",
        """i = Reshape (x, image) a = Conv (i, w, b) r = Relu (a) c = Conv (r, v) d = Add (c, a)
        n = InstanceNormalization <epsilon = 0.02[/16]> (d, g, g) s = Sigmoid (n) p = Mul (d, s)
        [[q|u]] = Conv (p, o) [[|q = Mul (u, k)]] y = Reshape (q, shape)""",
    ),
}


def larger(name):
    """The original and the result."""
    weights, smaller, *texts = LARGER[name]
    original, result = pair(*texts)
    for weight, shape in weights.items():
        numbers = np.random.default_rng(5).standard_normal(shape, np.float32)
        original.graph.initializer.append(numpy_helper.from_array(numbers, weight))
        numbers = numbers / np.float32(4 if weight in smaller else 1)
        result.graph.initializer.append(numpy_helper.from_array(numbers, weight))
    return original, result


def copy(model):
    """A copy of a model."""
    return onnx.ModelProto.FromString(model.SerializeToString())


def faults(result):
    """Results with one fault each, by what it is."""
    powers = set()
    for at, tensor in enumerate(result.graph.initializer):
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype.kind != "f":
            continue
        powers |= {tensor.name} if not tensor.dims and numbers == 4 else set()
        bits = numbers.copy()
        bits.reshape(-1).view(f"u{numbers.itemsize}")[0] ^= 1
        for what, other in (("twice", numbers * 2), ("half of", numbers / 2), ("a bit of", bits)):
            mutant, stored = copy(result), np.asarray(other, numbers.dtype)
            mutant.graph.initializer[at].CopyFrom(numpy_helper.from_array(stored, tensor.name))
            yield f"{what} {tensor.name}", mutant
    for at, node in enumerate(result.graph.node):
        for position, attribute in enumerate(node.attribute):
            for factor in (0.25, 2, 4, 16) if attribute.name == "epsilon" else ():
                mutant = copy(result)
                mutant.graph.node[at].attribute[position].f *= factor
                yield f"epsilon times {factor}", mutant
        if node.op_type == "Mul" and not powers.isdisjoint(node.input):
            mutant = copy(result)
            mutant.graph.node[at].op_type = "Identity"
            mutant.graph.node[at].input.remove(*powers.intersection(node.input))
            yield f"no {node.output[0]}", mutant
            mutant = copy(result)
            mutant.graph.node[at].output[0] += "_once"
            again = helper.make_node("Mul", [mutant.graph.node[at].output[0], *powers], node.output)
            mutant.graph.node.insert(at + 1, again)
            yield f"{node.output[0]} twice", mutant


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("name", LARGER)
def test_faults_in_rescaled_models_are_refused(name, kind):
    """Unless the output has the same bits."""
    original, result = larger(name)
    if kind != "float32":
        options = Options(half=kind, level="unsafe-force-all", check=False, certify=False)
        result = rewrite(result, options).model
    expected = output(result)
    assert certify(original, result).proved
    wrong = dict(faults(result))
    assert len(wrong) > 15
    for what, mutant in wrong.items():
        is_proved = certify(original, mutant).proved
        assert not is_proved or np.array_equal(output(mutant), expected), what
