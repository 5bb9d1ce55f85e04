"""The certificate: results that say the same in another way, which a runtime reads otherwise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from amp_rewrite import certify
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError


def model(text, opset=17, ir_version=8):
    """A model by the text of its graph, with functions or without; the domain `other` is known to nobody."""
    imports = f'["": {opset}, "com.microsoft": 1, "other": 1, "d": 1]'
    return parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> g {text}")


def with_scale(result, **powers):
    """A result that declares these stored values to be powers of a fixed loss scale of 1024."""
    told = {"scale": {"value": 1024.0}, "state": {"finite": None}, "powers": powers}
    result.metadata_props.add(key="amp_rewrite.train.loss_scale", value=json.dumps(told))
    return result


DIVIDED = "(float[2] x) => (float[2] y) <float s = {1024}> { %s }"
BATCHES = """(float[2,2,2] x) => (y) <float[%s] w = {1, 2, 3, 4}> {
    y = com.microsoft.FusedMatMul <transBatchA = %s> (x, w) }"""
CLIP = '(float[2] x) => (float[2] y) <float h = {6}> { y = Clip (x, "", h) }'
MAX_AND_MIN = """(float[2] x) => (float[2] y) <float h = {6}, float l = {%s}> {
    m = Max (x, l) y = Min (m, h) }"""
QUOTIENT = "(int64[2] x) => (int64[2] y) <int64[2] a = {%s, 9}, int64[2] b = {%s, 2}> { %s y = Add (x, q) }"
LEAST, FOLDED = -(1 << 63), "(int64[2] x) => (int64[2] y) <int64[2] q = {%s}> { y = Add (x, q) }"
RESHAPED = (
    "(float[N] x, int64[R] s) => (y) <float[%s] w = {1, 2, 3, 4}> { h = Reshape (x, s) y = MatMul (h, w) }"
)
RANK_SAID = (RESHAPED % "1,2,2").replace("> {", ", float[A,B,C] h> {", 1)
NORM = """(float[2,2,3] x) => (y) <float[2] s = {1, 1}, float[2] b = {0, 0}> {
    y, a, c, d, e = BatchNormalization (x, s, b, b, s) }"""
NORMED = """(float[2,2] x) => (y) <float[2,2] w = {1, 2, 3, 4}, float[2] s = {1, 1}, float[2] b = {1, 2},
    float[2] m = {0, 0}, float[2] v = {0.99999, 0.99999}> {
        p = MatMul (x, w) y = BatchNormalization (p, s, b, m, v) }"""
ADDED = """(float[2,2] x) => (y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> {
    p = MatMul (x, w) y = Add %s (p, b) }"""


def without_other_outputs():
    """A norm that trains at opset 9, and one that leaves out the outputs which say so."""
    trained, other = model(NORM, 9), model(NORM, 9)
    other.graph.node[0].output[1:] = [""] * 4
    return trained, other


LARGEST = "(float[2,2] x) => (y) { y = ArgMax <axis = %s> (x) }"
BITS = """(int32[2] x) => (y) <float[2] w = {1.1, 2}> {
    h = Cast <to = 10> (w) f = Cast <to = 1> (h) b = BitCast <to = 6> (f) y = Add (x, b) }"""
BITS_STORED = "(int32[2] x) => (y) <int32[2] b = {1066192077, 1073741824}> { y = Add (x, b) }"


def of_another_axis():
    """The index of the largest along an axis, and along another beside an attribute without a name."""
    one, other = model(LARGEST % 0), model(LARGEST % 1)
    other.graph.node[0].attribute.add(type=AttributeProto.INT, i=1)
    return one, other


def with_an_attribute_more():
    """A node, and the same with an attribute without a name."""
    one, other = (model("(float[2,2] x) => (y) { y = Softmax (x) }") for _ in range(2))
    other.graph.node[0].attribute.add(type=AttributeProto.INT, i=1)
    return one, other


def labels(*numbers, version=4):
    """A table of labels for integers."""
    made = model("(int64[2] x) => (y) { y = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2]> (x) }")
    made.opset_import.add(domain="ai.onnx.ml", version=version)
    table = numpy_helper.from_array(np.array(numbers, np.float32))
    made.graph.node[0].attribute.append(helper.make_attribute("values_tensor", table))
    return made


CAST = "(float[2] x) => (float[2] y) { c = Cast <%s> (x) y = Add (c, x) }"


def without_import():
    """A model, and the same without the version of its operators."""
    one, other = model(CAST % "to = 1"), model(CAST % "to = 1")
    del other.opset_import[:]
    return one, other


OF_VERSIONS = """<ir_version: 9, opset_import: ["": %s, "d": 1]> g (float[2,2,2] x) => (y) { y = d.f (x) }
    <domain: "d", opset_import: ["": %s]> f (a) => (o) { o = %s (a) }"""


LIKE_ANOTHER = """(float[2] x) => (float[2] y) %s {
    k = other.%s (x) j = other.%s (x) c = CastLike (x, k)
    d = other.B (c) e = other.C (%s) y = Add (d, e) }"""
UNEQUAL = {
    "the type of another value of that name": (
        model(LIKE_ANOTHER % ("<float[2] k>", "A", "I", "k, j")),
        model(LIKE_ANOTHER % ("", "I", "A", "j, k")),
    ),
    "a function of another version than the model": (
        parser.parse_model(OF_VERSIONS % (13, 13, "Softmax <axis = 1>")),
        parser.parse_model(OF_VERSIONS % (11, 13, "Softmax <axis = 1>")),
    ),
    "a Cast that does not say to what": (model(CAST % "to = 1"), model(CAST % "into = 10")),
    "a Cast to a number that is none": (model(CAST % "to = 1"), model(CAST % "to = 10.0")),
    "operators of any version": without_import(),
    "an attribute without a name before another": of_another_axis(),
    "an attribute without a name": with_an_attribute_more(),
    "a version of times to come": (
        model("(float[2] x) => (y) { y = Relu (x) }"),
        model("(float[2] x) => (y) { y = Relu (x) }", 1000),
    ),
    "labels of times to come": (labels(1, 2), labels(1, 2, version=1000)),
    "an attribute that is clamped": (labels(1, 70000), labels(1, 32752)),
    "bits of what was half on its way": (model(BITS, 26, 10), model(BITS_STORED, 26, 10)),
    "a rank that the result alone declares": (model(RESHAPED % "2,2"), model(RANK_SAID)),
    "a norm that trains no more": without_other_outputs(),
    "a sum along another axis": (
        model(NORMED, 9),
        model(ADDED % "<broadcast = 1, axis = 0>", 6),
    ),
    "a quotient by what is declared to be a loss scale": (
        model(DIVIDED % "y = Div (x, s)"),
        with_scale(model(DIVIDED % "m = Mul (x, s) y = Div (m, s)"), s=1),
    ),
    "a first axis that is put elsewhere": (model(BATCHES % ("2,2", 1)), model(BATCHES % ("1,2,2", 1))),
    "a bound that the original does not have": (model(CLIP), model(MAX_AND_MIN % -32752)),
    "a quotient by zero": (model(QUOTIENT % (1, 0, "q = Div (a, b)")), model(FOLDED % "0, 4")),
    "a remainder by zero": (model(QUOTIENT % (1, 0, "q = Mod (a, b)")), model(FOLDED % "0, 1")),
    "a quotient that no integer is": (
        model(QUOTIENT % (LEAST, -1, "q = Div (a, b)")),
        model(FOLDED % "0, 4"),
    ),
    "a quotient by what is computed": (
        model(QUOTIENT % (4, 2, "c = Neg (b) q = Div (a, c)")),
        model(FOLDED % "-2, -4"),
    ),
}


@pytest.mark.parametrize("what", UNEQUAL)
def test_what_computes_something_else_is_not_proved(what):
    """Or may, or may end the program that computes it: each original is proved equal to itself."""
    original, rewritten = UNEQUAL[what]
    assert certify(original, original).proved
    assert not certify(original, rewritten).proved


SLICED = """(float[2,3,2] x) => (y) <int64[1] a = {0}, int64[2] n = {1, 1}, float[%s] w = {1, 2, 3, 4}> {
    b, c = Split <axis = 0> (x, n) y = MatMul (b, w) }"""
LIKE = """(%s[2] x) => (float[2] y) %s { k = other.A (x) c = CastLike (x, k) y = other.B (c) }"""
UNKNOWN = """(float[2] x) => (%s[2] y) { %s = d.f (x) %s }
    <domain: "d", opset_import: ["": 17, "other": 1]> f (a) => (o) { o = other.A (a) }"""
EQUAL = {
    "a type that the original declares, and nothing is cast": (
        model(LIKE % ("float", "<float[2] k>")),
        model(LIKE % ("float", "")),
    ),
    "a type that the original declares, of what was integers": (
        model(LIKE % ("int32", "<float[2] k>")),
        model(LIKE % ("int32", "")),
    ),
    "a declaration of what a function gives": (
        model(UNKNOWN % ("float", "y", "")),
        model(UNKNOWN % ("float16", "z", "y = Cast <to = 10> (z)")),
    ),
    "a function whose version means the same": (
        parser.parse_model(OF_VERSIONS % (13, 13, "Softmax <axis = -1>")),
        parser.parse_model(OF_VERSIONS % (11, 13, "Softmax <axis = -1>")),
    ),
    "a rank that onnx infers": (model(SLICED % "2,2"), model(SLICED % "1,2,2")),
    "a sum along the last axis": (model(NORMED, 9), model(ADDED % "", 9)),
    "axes that stay": (model(BATCHES % ("2,2", 0)), model(BATCHES % ("1,2,2", 0))),
    "a bound that is infinite": (model(CLIP), model(MAX_AND_MIN % -3.4028234663852886e38)),
    "a quotient": (model(QUOTIENT % (-7, 3, "q = Div (a, b)")), model(FOLDED % "-2, 4")),
}


@pytest.mark.parametrize("what", EQUAL)
def test_what_computes_the_same_is_proved(what):
    """Though it is written otherwise."""
    found = certify(*EQUAL[what])
    assert found.proved, found


def with_sparse(text, name):
    """A model with a sparse stored value."""
    made = model(text)
    values = numpy_helper.from_array(np.array([3], np.float32), name)
    indices = numpy_helper.from_array(np.array([1], np.int64), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    return made


def test_a_sparse_default_of_an_input_is_not_its_value():
    """A caller may give another."""
    text = "(float[2] x, float[2] s) => (float[2] y) { y = Add (x, %s) }"
    original = with_sparse(text % "s", "s")
    assert certify(original, original).proved
    assert not certify(original, with_sparse(text % "t", "t")).proved
    other = with_sparse(text % "s", "s")
    other.graph.sparse_initializer[0].values.CopyFrom(numpy_helper.from_array(np.array([4], "f4"), "s"))
    assert certify(original, other).problem == "the default value of the input 's' differs"


HELD = "(float[2] x) => (float[2] y) { k = Constant <value_float = 5.0> () y = Mul (x, k) }"
CALLED = """(float[2] x) => (float[2] y) { y = d.f (x) }
    <domain: "d", opset_import: ["": 17]> f (a) => (o) { o = Exp (a) }
    <domain: "d", opset_import: ["": 17]> f (a) => (o) { o = Neg (a) }"""


def of_another_type():
    """A Constant whose name says a float, and whose type says two."""
    made = model(HELD)
    given = made.graph.node[0].attribute[0]
    given.type = AttributeProto.FLOATS
    given.floats.extend([3, 4])
    return made


def with_another_value():
    """A Constant with another attribute before its value."""
    made = model(HELD)
    made.graph.node[0].attribute.insert(0, helper.make_attribute("other", 7.0))
    return made


BRANCHES = """(float[2] x, bool c) => (float[2] y) { a = Exp (x) y = If (c) <
    then_branch = t () => (float[2] u) { %s u = Add (a, x) },
    else_branch = e () => (float[2] v) { v = Neg (%s) }> }"""


def with_a_name_twice(read="a"):
    """A branch that stores a value of the name of one around it; what the other branch reads."""
    made = model(BRANCHES % ("", read))
    tensor = numpy_helper.from_array(np.array([5, 5], np.float32), "a")
    made.graph.node[1].attribute[0].g.initializer.append(tensor)
    return made


AMBIGUOUS = {
    "names": (with_a_name_twice, "defines 'a' in a body, and around it"),
    "names of nodes": (
        lambda: model(BRANCHES % ("a = Neg (x)", "a")),
        "defines 'a' in a body, and around it",
    ),
    "a type": (of_another_type, "'value_float' of another type"),
    "values of a constant": (with_another_value, "without a value, or with several"),
    "functions": (lambda: model(CALLED), "two functions 'f'"),
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_what_runtimes_read_otherwise_is_no_model(what):
    """Some go by the type of an attribute, or by the place, others by its name."""
    make, said = AMBIGUOUS[what]
    with pytest.raises(ModelError, match=said):
        certify(make(), make())


def test_attributes_of_one_name_are_an_error():
    """The first or the last of them counts."""
    made, other = (model("(float[2,2] x) => (y) { y = Softmax <axis = 0> (x) }") for _ in range(2))
    other.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    with pytest.raises(ModelError, match="two attributes 'axis'"):
        certify(other, made)


def test_a_bound_that_became_infinite_is_counted():
    """In float32 it is the largest number, as of a Clip without one."""
    infinite = model(MAX_AND_MIN % 0)
    tensor = next(tensor for tensor in infinite.graph.initializer if tensor.name == "l")
    tensor.CopyFrom(TensorProto(name="l", data_type=TensorProto.FLOAT16, raw_data=b"\x00\xfc"))
    found = certify(model(CLIP), infinite)
    assert found.licences == {Licence.OVERFLOWED: 1, Licence.MAX_AND_MIN: 1}


def test_sizes_that_no_memory_has_are_an_error():
    """Though one of them is 0, so that nothing is stored."""
    made, folded = (
        model(f"(float[2] x) => (y) {{ {node} y = other.A (n) }}") for node in ("n = Neg (w)", "")
    )
    for each, name in ((made, "w"), (folded, "n")):
        each.graph.initializer.append(
            TensorProto(name=name, dims=[0, 1 << 62, 1 << 62], data_type=1, raw_data=b"")
        )
    with pytest.raises(ModelError, match="sizes that are too large"):
        certify(made, folded)


@pytest.mark.parametrize("offset", ["1_0", "\N{ARABIC-INDIC DIGIT ONE}", " 1", "-1", "1" * 30, "1" * 5000])
def test_an_offset_is_written_in_digits(tmp_path, offset):
    """Python reads numbers where a runtime does not."""
    made = model("(float[2] x) => (y) { y = Add (x, w) }")
    tensor = TensorProto(name="w", dims=[2], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", offset)):
        tensor.external_data.add(key=key, value=value)
    made.graph.initializer.append(tensor)
    (tmp_path / "w.bin").write_bytes(bytes(64))
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="cannot be read from"):
        certify(path, path)


def test_a_default_is_not_clamped():
    """The caller may give another value, and reads this one."""
    made = model("(float[2] x, float[2] s) => (y) <float[2] s = {1.1, 70000}> { y = Add (x, s) }")
    other = model("(float[2] x, float[2] s) => (y) <float[2] s = {1.1, 32752}> { y = Add (x, s) }")
    assert "more than a mask" in certify(made, other).problem


def test_merged_weights_that_overflow_are_counted():
    """They are infinite, as rounding makes them."""
    text = """(float[2,1] x) => (float[2,1] y) <float[1,1] w = {70000}, float[1] b = {0}%s> {
        %s = Gemm (x, w, b) %s }"""
    norm = "y = BatchNormalization (p, o, b, b, v)"
    original = model(text % (", float[1] o = {1}, float[1] v = {0.99999}", "p", norm))
    merged = model(text % ("", "y", ""))
    for tensor in merged.graph.initializer:
        with np.errstate(over="ignore"):
            array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert certify(original, merged).licences == {Licence.MERGED: 1, Licence.OVERFLOWED: 1}


TABLES = "(float[2] x) => (y) <int64[2] n = {%s, 1}, float[1,1] c = {1}%s> { %s y = Add (x, q) }"
PRODUCTS = 'a = Expand (c, n) q = Einsum <equation = "ax,bx,cx,dx->"> (a, a, a, a)'


@pytest.mark.parametrize(("size", "proved"), [(4, True), (1000, False)])
def test_a_product_of_several_factors_may_be_large_on_its_way(size, proved):
    """Though each of them is small, and what comes of it."""
    folded = model(TABLES % (size, f", float q = {{{float(size**4)}}}", ""))
    found = certify(model(TABLES % (size, "", PRODUCTS)), folded)
    assert found.proved is proved
    assert proved or found.problem == "what is folded is too large to compute anew"


def test_what_a_sequence_holds_has_the_same_shape():
    """As every input and output has."""
    made, other = (model("(float[2] x) => (y) { y = SequenceConstruct (x) }") for _ in range(2))
    for each, size in ((made, 2), (other, 3)):
        held = helper.make_tensor_type_proto(TensorProto.FLOAT, [size])
        each.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(held))
    assert certify(made, made).proved
    assert certify(made, other).problem == "'y' of the outputs has another type or shape"


def test_a_name_may_be_stored_around_a_body_and_in_it():
    """As long as no other body of the node reads the one around them."""
    assert certify(with_a_name_twice("x"), with_a_name_twice("x")).proved


@pytest.mark.parametrize("inputs", [[], ["x"]])
def test_a_cast_like_nothing_is_an_error(inputs):
    """It says no type."""
    made = model("(float[2] x) => (y) { y = Exp (x) }")
    made.graph.node[0].op_type = "CastLike"
    made.graph.node[0].input[:] = inputs
    with pytest.raises(ModelError, match="CastLike without all of its inputs"):
        certify(made, made)


def test_a_cast_like_whose_name_is_no_utf_8_is_no_traceback():
    """A file may hold any bytes where a name stands."""
    made = model("(float[2] x, int64[1] k) => (y) { named = CastLike (x, k) y = Neg (named) }")
    odd = made.SerializeToString().replace(b"named", b"n\xe5med")
    assert certify(made, odd).proved
