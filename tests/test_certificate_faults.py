"""The certificate: models that look like the original and are not, and right ones that look different."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from amp_rewrite import certify
from amp_rewrite.certificate import folding
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError


def model(text, opset=17, ir_version=8):
    """A model by the text of its graph; the domain `other` is known to nobody."""
    imports = f'["": {opset}, "other": 1, "d": 1]'
    return parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> g {text}")


def copy(of):
    """A copy of a model."""
    return onnx.ModelProto.FromString(of.SerializeToString())


NOISE = "r = RandomNormal <shape = [2]> ()"
OUTSIDE = f"""(float[2] x) => (float[2] y) <int64 n = {{3}}> {{
    {NOISE} y = Loop (n, "", x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {{
        d = Identity (c) t = Add (s, r) }}> }}"""
INSIDE = OUTSIDE.replace(NOISE, "").replace("t = Add", f"{NOISE} t = Add")
PRELU = "(float[1,4,4,4] x, float[4] s) => (float[1,4,4,4] y) { y = PRelu (x, s) }"
TRANSPOSED = """(float[1,1,3,3] x, float[1,1,3,3] w) => (float[1,1,6,6] y) {
    y = ConvTranspose <strides = [2, 2], output_shape = [6, 6]> (x, w) }"""
FILL = "(float[2] x, int64[1] s) => (float[2] y) { c = ConstantOfShape %s (s) y = Add (x, c) }"
FIVE = "<value = float[1] {5}>"
HALVES = "(float16[2] x) => (float[2] y) { %s y = Cast <to = 1> (i) }"
BITS = HALVES % "i = BitCast <to = 5> (x)"
OTHER_BITS = HALVES % "b = Cast <to = 16> (x) i = BitCast <to = 5> (b)"
DIVIDED = "(float[2] x) => (float[2] y) { v = other.A (x) w = other.B (x) q = Div (v, w) y = other.C (q) }"
DIVIDED_AS_FLOATS = """(float[2] x) => (float[2] y) <float[2] v, float[2] w> {
    v = other.A (x) w = other.B (x) a = Cast <to = 1> (v) b = Cast <to = 1> (w) q = Div (a, b)
    y = other.C (q) }"""
CALLED = """(float[2] x) => (float[2] y) <float[2] h> { z = d.f (x) h = Neg (x) y = Add (z, h) }
    <domain: "d", opset_import: ["": 17, "other": 1]> f (a) => (o) {
        h = other.A (a) k = Cast <to = 1> (h) o = other.B (k) }"""
NOT_CAST = "(float[2] x) => (float[2] y) { h = other.A (x) z = other.B (h) n = Neg (x) y = Add (z, n) }"
FOREIGN_NORM = """(float[1,1,2,2] x) => (float[1,1,2,2] y)
    <float[1,1,1,1] w = {3}, float[1] b = {2}, float[1] one = {1}, float[1] v = {0.99999}> {
        c = other.Conv (x, w, b) y = BatchNormalization (c, one, b, b, v) }"""
FOREIGN = """(float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {3}, float[1] b = {2}> {
    y = other.Conv (x, w, b) }"""
SHADOWED = """(float[2] x) => (float[2] y) { y = %sRelu (x) }
    <domain: "%s", opset_import: ["": 17]> Relu (a) => (o) { o = Neg (a) }"""

REQUIRED = """(float[1,1,2,2] x, float[0] r, float[4] s) => (float[1,1,4,4] y) {
    y = Resize <mode = "nearest"> (x, %s, s) }"""
TO_ANYTHING = "(float[2] x) => (float[2] y) { c = Cast (x) y = Add (%s, x) }"

UNEQUAL = {
    "noise that is drawn anew in each round": (model(OUTSIDE), model(INSIDE)),
    "noise that is drawn once for all rounds": (model(INSIDE), model(OUTSIDE)),
    "slopes of channels, and of the last axis": (model(PRELU, 6, 3), model(PRELU, 7, 3)),
    "padding at the other end": (model(TRANSPOSED, 9), model(TRANSPOSED, 11)),
    "a fill that was zero": (model(FILL % ""), model(FILL % FIVE)),
    "a fill that is zero": (model(FILL % FIVE), model(FILL % "")),
    "the bits of another half type": (model(OTHER_BITS, 26, 10), model(BITS, 26, 10)),
    "values that the result alone calls floats": (model(DIVIDED), model(DIVIDED_AS_FLOATS)),
    "a declaration of another value of that name": (model(CALLED), model(NOT_CAST)),
    "an input that was optional": (model(REQUIRED % '""', 13), model(REQUIRED % '""', 11)),
    "a Cast to nobody knows what": (model(TO_ANYTHING % "x"), model(TO_ANYTHING % "c")),
    "a double divided as a float": (
        model("(double[2] x) => (double[2] y) { y = Reciprocal (x) }"),
        model("(double[2] x) => (double[2] y) <float o = {1}> { y = Div (o, x) }"),
    ),
    "an operator of others of a known name": (model(FOREIGN_NORM), model(FOREIGN)),
}


@pytest.mark.parametrize("what", UNEQUAL)
def test_what_computes_something_else_is_not_proved(what):
    """Each computes something else than its original, which is proved equal to itself."""
    original, rewritten = UNEQUAL[what]
    assert certify(original, original).proved
    assert not certify(original, rewritten).proved


EQUAL = {
    "a fill of zero, stated": (model(FILL % ""), model(FILL % "<value = float16[1] {0}>")),
    "bits of float32": (
        model("(float[2] x) => (int32[2] y) { r = Relu (x) y = BitCast <to = 6> (r) }", 26, 10),
        model(
            """(float[2] x) => (int32[2] y) {
            h = Cast <to = 10> (x) s = Relu (h) r = Cast <to = 1> (s) y = BitCast <to = 6> (r) }""",
            26,
            10,
        ),
    ),
    "a Cast before what tells the type": (
        model("(float[2] x) => (y) { h = other.A (x) e = Exp (h) z = Add (h, x) y = Add (z, e) }"),
        model(
            """(float[2] x) => (y) {
            h = other.A (x) c = Cast <to = 10> (h) e = Exp (c) z = Add (h, x) y = Add (z, e) }"""
        ),
    ),
    "a declaration of the original": (
        model("(float[2] x) => (float[2] y) <float[2] h> { h = other.A (x) y = Exp (h) }"),
        model("(float[2] x) => (float[2] y) { h = other.A (x) c = Cast <to = 10> (h) y = Exp (c) }"),
    ),
    "a rank behind an Unsqueeze and a Slice": (
        model(
            """(float[2,2] x) => (y) <int64[1] o = {0}, int64[1] e = {2}, float[2,2] w = {1, 2, 3, 4}> {
            u = Unsqueeze (x, o) s = Slice (u, o, e) y = MatMul (s, w) }"""
        ),
        model(
            """(float[2,2] x) => (y) <int64[1] o = {0}, int64[1] e = {2}, float[1,2,2] w = {1, 2, 3, 4}> {
            u = Unsqueeze (x, o) s = Slice (u, o, e) y = MatMul (s, w) }"""
        ),
    ),
}


@pytest.mark.parametrize("what", EQUAL)
def test_what_computes_the_same_is_proved(what):
    """Though it is written otherwise."""
    found = certify(*EQUAL[what])
    assert found.proved, found


def test_what_overflows_on_the_way_through_half_is_counted():
    """A float32 value that was half says what became infinite, and what was clamped."""
    held = "(float[3] x) => (float[3] y) <float[3] w = {%s}> { a = Add (x, w) y = Softmax (a) }"
    original = model(held % "70000.0, -90000.0, 1.1")
    half = np.array([np.inf, -32752, 1.1], np.float16).astype(np.float32)
    restored = copy(original)
    restored.graph.initializer[0].CopyFrom(numpy_helper.from_array(half, "w"))
    counted = {Licence.RESTORED: 1, Licence.CLAMPED: 1, Licence.OVERFLOWED: 1}
    assert certify(original, restored).licences == counted


def stored(tensor):
    """A model that stores a tensor."""
    info = helper.make_tensor_value_info("y", tensor.data_type, list(tensor.dims))
    node = helper.make_node("Identity", [tensor.name], ["y"])
    return helper.make_model(helper.make_graph([node], "g", [], [info], [tensor]))


def test_texts_are_compared_whatever_bytes_stand_beside_them():
    """A tensor of texts has no bytes of its own."""
    one, other = (
        TensorProto(name="t", dims=[1], data_type=TensorProto.STRING, string_data=[text], raw_data=b"")
        for text in (b"a", b"b")
    )
    assert certify(stored(one), stored(one)).proved
    assert certify(stored(one), stored(other)).problem == "the texts differ"


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_tensor_in_a_file_is_read_from_there(tmp_path, kind):
    """Whatever bytes the model holds as well: runtimes read the file."""
    told = np.array([1, 2], np.float32)
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, numbers in zip(paths, (told, np.array([7, 9], kind)), strict=True):
        made = stored(numpy_helper.from_array(told.astype(numbers.dtype), "t"))
        made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        tensor = made.graph.initializer[0]
        numbers.tofile(path.with_suffix(".bin"))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{path.stem}.bin")
        path.write_bytes(made.SerializeToString())
    assert certify(paths[0], paths[0]).proved
    assert "element 0 was 1.0, and is 7.0" in certify(*paths).problem


PLAIN = "(float[2] x, bool c) => (float[2] y) { y = %s }"


def without_inputs(operator):
    """A node that reads nothing."""
    made = model(PLAIN % "Exp (x)")
    made.graph.node.insert(0, helper.make_node(operator, [], ["z"], to=1))
    return made


def without_type():
    """An If whose branches are attributes without a type."""
    branches = "If (c) <then_branch = t () => (u) { u = Exp (x) }, else_branch = e () => (u) { u = Neg (x) }>"
    made = model(PLAIN % branches)
    for attribute in made.graph.node[0].attribute:
        attribute.type = AttributeProto.UNDEFINED
    return made


BAD = {
    "a Cast of nothing": (lambda: without_inputs("Cast"), "Cast without all of its inputs"),
    "a norm of nothing": (lambda: without_inputs("BatchNormalization"), "without all of its inputs"),
    "a body without a type": (without_type, "a body 'then_branch' without a type"),
    "a function named like an operator": (lambda: model(SHADOWED % ("", "")), "like the operator Relu"),
    "a function named like one of others": (
        lambda: model((SHADOWED % ("com.microsoft.", "com.microsoft")).replace("Relu", "Gelu")),
        r"like the operator com\.microsoft\.Gelu",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_model_is_said(what):
    """In one line, which says what is wrong."""
    make, said = BAD[what]
    with pytest.raises(ModelError, match=said):
        certify(make(), make())


@pytest.mark.parametrize("operator", ["Constant", "Cast"])
def test_a_node_without_outputs_makes_no_value(operator):
    """Not that of the node behind it."""
    made = model("(float[2] x) => (float[2] y) <float[2] k = {0, 0}> { z = Abs (x) y = Identity (k) }")
    other = copy(made)
    other.graph.node[1].CopyFrom(helper.make_node("Neg", ["x"], ["y"]))
    given = {"to": 1} if operator == "Cast" else {"value": numpy_helper.from_array(np.zeros(2, np.float32))}
    inputs = ["x"] if operator == "Cast" else []
    other.graph.node.insert(1, helper.make_node(operator, inputs, [], **given))
    assert not certify(made, other).proved


ODD_TEXT = {
    "an operator": (b"Softmax", b"Softm\x80x"),
    "an attribute": (b"axis", b"ax\x80s"),
    "a domain": (b"other", b"\x80ther"),
    "a body": (b"then_branch", b"then_bran\x80h"),
    "an operator that is folded": (b"Sqrt", b"\x80qrt"),
}


@pytest.mark.parametrize("what", ODD_TEXT)
def test_a_text_that_is_no_utf_8_is_no_traceback(what):
    """A file may hold any bytes where a name stands."""
    text, odd = ODD_TEXT[what]
    branches = "If (c) <then_branch = t () => (u) { u = Exp (s) }, else_branch = e () => (u) { u = Neg (s) }>"
    whole = f"(float[2] x, bool c) => (float[2] y) <float[2] k = {{4, 9}}> {{ %s s = Softmax <axis = 0> (x) \
        z = other.A (x) b = {branches} d = Add (z, b) y = Add (d, q) }}"
    made = model(whole % "q = Sqrt (k)").SerializeToString()
    folded = model((whole % "").replace("float[2] k = {4, 9}", "float[2] q = {2, 3}"))
    assert certify(made, folded).licences == {Licence.FOLDED: 1}
    assert not certify(made.replace(text, odd), folded).proved


def test_a_version_beyond_all_is_no_traceback():
    """It is of no schema."""
    made = model(PLAIN % "Exp (x)")
    other = copy(made)
    other.opset_import[0].version = 1 << 40
    assert not certify(made, other).proved


def test_a_body_of_an_operator_that_has_none_proves_nothing():
    """What it reads is not followed."""
    made = model(PLAIN % "Exp (x)")
    body = helper.make_graph([helper.make_node("Exp", ["x"], ["u"])], "b", [], [])
    made.graph.node[0].op_type = "Unknown"
    made.graph.node[0].attribute.append(helper.make_attribute("body", body))
    other = copy(made)
    other.graph.node[0].attribute[0].g.node[0].op_type = "Neg"
    assert certify(made, other).problem == "their attribute 'body' differs"


HUGE = "(float[2] x) => (float[2] y) <int64[2] s = {8192, 8192}, float w = {0.5}> { %s y = Add (x, q) }"


def test_what_would_take_long_to_compute_anew_is_not(monkeypatch):
    """A few bytes say to multiply two large matrices; it is said at once."""
    computed = HUGE % "e = Expand (w, s) m = MatMul (e, e) q = ReduceSum <keepdims = 0> (m)"
    original, folded = (
        model(computed),
        model("(float[2] x) => (float[2] y) <float q = {1}> { y = Add (x, q) }"),
    )
    assert certify(original, folded).problem == "what is folded is too large to compute anew"
    original.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([2048, 1]), "s"))
    folded.graph.initializer[0].float_data[:] = [2048.0 * 2048 / 4]
    original.graph.node.insert(1, helper.make_node("Transpose", ["e"], ["t"]))
    original.graph.node[2].input[1] = "t"
    assert certify(original, folded).licences == {Licence.FOLDED: 1}
    monkeypatch.setattr(folding, "MOST_WORK", 2048 * 2048)
    assert not certify(original, folded).proved


def test_a_loop_needs_no_condition():
    """Optional inputs at the end may be left out, and nothing that is carried may follow them."""
    looping = model("""(float[2] x) => (float[3,2] y) <int64 n = {3}> {
        y = Loop (n, "") <body = b (int64 i, bool c) => (bool d, float[2] z) { d = Identity (c) z = Exp (x) }>
        }""")
    assert certify(looping, looping).proved


def test_a_table_of_angles_is_computed_anew():
    """A product of positions and frequencies, each element of which reads one of either, is little work."""
    text = "(int64[1] x) => (float[1,64] y) { %s y = Gather (q, x) }"
    original = model(text % 'q = Einsum <equation = "i,j->ij"> (p, f)', 17)
    folded = model(text % "", 17)
    positions, frequencies = np.arange(1 << 16, dtype="f4"), np.linspace(0, 1, 64, dtype="f4")
    for name, array in (("p", positions), ("f", frequencies)):
        original.graph.initializer.append(numpy_helper.from_array(array, name))
    table = numpy_helper.from_array(np.outer(positions, frequencies), "q")
    folded.graph.initializer.append(table)
    assert certify(original, folded).licences == {Licence.FOLDED: 1}


def test_sizes_that_are_joined_again_and_again_are_counted_once():
    """Each of twelve Concats reads the one before ten times; the rank is known at once."""
    joined = "".join(f"c{i + 1} = Concat <axis = 0> ({', '.join([f'c{i}'] * 10)}) " for i in range(12))
    text = (
        f"(float[2] x) => (y) {{ c0 = Shape (x) {joined} r = Reshape (x, c12) y = Softmax <axis = %s> (r) }}"
    )
    assert certify(*(model(text % (10**12 - 1), opset, 7) for opset in (11, 13))).proved
    assert not certify(*(model(text % 1, opset, 7) for opset in (11, 13))).proved


def merged(number, weight_type=TensorProto.FLOAT16, other=TensorProto.FLOAT16):
    """A product with a norm in it, and a sum with another stored value, in half types."""
    text = """(float[2,1] x) => (float[2,1] y) <float[1,1] w = {%s}, float[1] b = {0}, float[1] o = {1}> {
        c = Gemm (x, w, b) y = Add (c, o) }"""
    made = model(text % number)
    for tensor, kind in zip(made.graph.initializer, (weight_type, weight_type, other), strict=True):
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return made


def test_merged_weights_are_of_the_half_type_of_all():
    """There is one in a result."""
    original = model(
        """(float[2,1] x) => (float[2,1] y)
        <float[1,1] w = {3}, float[1] b = {0}, float[1] o = {1}, float[1] v = {0.99999}> {
            p = Gemm (x, w, b) c = BatchNormalization (p, o, b, b, v) y = Add (c, o) }"""
    )
    assert certify(original, merged(3)).licences == {Licence.MERGED: 1}
    assert not certify(original, merged(3.5)).proved
    found = certify(original, merged(3, other=TensorProto.BFLOAT16))
    assert found.problem == "values are stored in two half types"
