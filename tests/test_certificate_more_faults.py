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
UNEQUAL = {
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


EQUAL = {
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


AMBIGUOUS = {
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
