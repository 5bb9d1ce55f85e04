"""The certificate: Casts and rounded values between the nodes of the original, and what else is no Cast."""

from __future__ import annotations

import pytest
from onnx import TensorProto, numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.errors import ModelError


def model(text, opset=17):
    """A model by the text of its graph, whose types nobody checks."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


PLAIN = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.1, 2.0, 3.0, 4.0}> {
    c = Constant<value = float[1] {0.3}>() a = MatMul(x, w) b = Add(a, c) d = Relu(b) y = Exp(d) }"""
HALVES = "float16[2,2] w = {15462, 16384, 16896, 17408}"
WIDE = "float[2,2] w = {1.1, 2.0, 3.0, 4.0}"
INTEGERS = "g (int64[2] x) => (float[2] y) { a = Add(x, x) b = Mul(a, a) y = Cast<to = 1>(b) }"
BITS = """g (float16[2] x) => (float16[2] y) { b = BitCast<to = 16>(x) c = BitCast<to = 10>(b) y = Neg(c) }"""
BRANCHES = """g (bool c, float[1] x) => (float[1] y) { a = Exp(x)
    y = If (c) <then_branch = t () => (float[1] u) { u = Exp(a) },
                else_branch = e () => (float[1] v) { v = Neg(x) }> }"""
TWO = "g (float[2] x) => (float[2] y) { a = Sub(x, x) b = Neg(x) y = Sub(a, b) }"
RANDOM = "g (float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
POOL = "g (float[1,1,4] x) => (float[1,1,4] y) { a = MaxPool<kernel_shape=[1]>(x) b = Neg(x) y = Add(a, b) }"
EQUAL = {
    "itself": (PLAIN, PLAIN, 4),
    "a Cast before a node": (
        PLAIN,
        PLAIN.replace("a = MatMul(x, w)", "h = Cast<to = 10>(x) a = MatMul(h, w)"),
        4,
    ),
    "a Cast behind a node": (PLAIN, PLAIN.replace("y = Exp(d)", "e = Exp(d) y = Cast<to = 1>(e)"), 4),
    "a Constant in half": (PLAIN, PLAIN.replace("float[1] {0.3}", "float16[1] {13517}"), 4),
    "a weight in half": (PLAIN, PLAIN.replace(WIDE, HALVES), 4),
    "nodes that are gone": (PLAIN.replace("d = Relu", "z = Sqrt(b) d = Relu"), PLAIN, 4),
    "a body": (BRANCHES, BRANCHES, 4),
    "another order of nodes": (TWO, TWO.replace("a = Sub(x, x) b = Neg(x)", "b = Neg(x) a = Sub(x, x)"), 3),
}
UNEQUAL = {
    "a Cast of integers": (
        INTEGERS,
        INTEGERS.replace("b = Mul(a, a)", "h = Cast<to = 10>(a) b = Mul(h, h)"),
        "not the same",
    ),
    "a Cast to integers": (
        PLAIN,
        PLAIN.replace("d = Relu(b)", "i = Cast<to = 6>(b) d = Relu(i)"),
        "of different types",
    ),
    "a Cast and no more": (PLAIN, PLAIN.replace("d = Relu(b)", "d = Cast<to = 1>(b)"), "not the same"),
    "a Cast of another value": (
        PLAIN,
        PLAIN.replace("d = Relu(b)", "h = Cast<to = 10>(a) d = Relu(h)"),
        "not the same",
    ),
    "another input": (TWO, TWO.replace("Neg(x)", "Neg(a)"), "not the same"),
    "swapped inputs": (TWO, TWO.replace("Sub(a, b)", "Sub(b, a)"), "not the same"),
    "another operator": (TWO, TWO.replace("Neg", "Abs"), "not the same"),
    "an attribute": (
        PLAIN.replace("Exp", "Softmax<axis = 0>"),
        PLAIN.replace("Exp", "Softmax<axis = 1>"),
        "attribute 'axis' differs",
    ),
    "another output": (
        TWO,
        TWO.replace("b = ", "y = ").replace("y = Sub(a, b)", "b = Sub(a, y)"),
        "not the same",
    ),
    "an output of another value": (
        TWO,
        TWO.replace("y = Sub(a, b)", "z = Sub(a, b) y = Cast<to = 1>(b)"),
        "not the same",
    ),
    "one more output": (POOL, POOL.replace("a = Max", "a, m = Max"), "different outputs"),
    "a weight in half": (PLAIN, PLAIN.replace(WIDE, HALVES.replace("62", "63")), "element 0"),
    "a weight": (PLAIN, PLAIN.replace("1.1", "1.2"), "element 0"),
    "a Constant": (PLAIN, PLAIN.replace("0.3", "0.4"), "element 0"),
    "a random value that stands for two": (
        RANDOM,
        RANDOM.replace("Sub(a, b)", "Sub(a, a)"),
        "stands for two",
    ),
    "bits of half": (
        BITS,
        BITS.replace("b = ", "h = Cast<to = 16>(x) b = ").replace("(x) c", "(h) c"),
        "attribute 'to' differs",
    ),
}


@pytest.mark.parametrize("what", EQUAL)
def test_what_is_the_original_with_casts_is_proved(what):
    """Casts, stored values that are rounded, and another order make no difference."""
    original, rewritten, nodes = EQUAL[what]
    found = certify(model(original), model(rewritten))
    assert found.proved, found
    assert found.nodes == nodes


@pytest.mark.parametrize("what", UNEQUAL)
def test_what_is_another_model_is_not_proved(what):
    """The first place where the two differ is named."""
    original, rewritten, problem = UNEQUAL[what]
    found = certify(model(original), model(rewritten))
    assert not found.proved
    assert problem in found.problem


@pytest.mark.parametrize("asked", [{}, {"half": "bfloat16"}, {"metadata": False}], ids=str)
def test_a_plain_result_is_proved(asked):
    """All nodes of the original are counted, and none of the Casts."""
    original = model(PLAIN)
    result = rewrite(original, Options(**asked)).model
    assert len(result.graph.node) > len(original.graph.node)
    assert certify(original, result).nodes == 4


def test_a_bit_of_a_small_weight():
    """Weights that are compared many at a time are compared."""
    before = model(PLAIN)
    (weight,) = before.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), "w"))
    after = rewrite(before).model
    assert certify(before, after).proved
    (half,) = after.graph.initializer
    assert half.data_type == TensorProto.FLOAT16
    half.raw_data = bytes([half.raw_data[0] ^ 1]) + half.raw_data[1:]
    assert not certify(before, after).proved


@pytest.mark.parametrize("name", ["w", "x", "c", "d"])
def test_a_name_that_is_given_twice(name):
    """A result that gives a name twice is no model."""
    after = model(PLAIN.replace("a = MatMul", "w2 = Cast<to = 10>(x) a = MatMul"))
    after.graph.node[1].output[0] = name
    with pytest.raises(ModelError):
        certify(model(PLAIN), after)


def test_metadata_of_nodes_is_not_compared():
    """However long it is; the overload of a node is."""
    before, after = model(TWO), model(TWO)
    for text in ("", "short", "long" * 99):
        after.graph.node[0].metadata_props.add(key="amp_rewrite", value=text)
        assert certify(before, after).proved
    after.graph.node[0].overload = "other"
    assert certify(before, after).problem == "they are of different overloads"


def test_a_fill_that_is_stored_elsewhere_is_read():
    """A node may say the same and refer to a file that nobody named the folder of."""
    text = "g (int64[1] n) => (float[N] y) { a = ConstantOfShape<value = float[1] {1.5}>(n) y = Exp(a) }"
    before, after = model(text), model(text)
    assert certify(before, after).proved
    for each in (before, after):
        tensor = each.graph.node[0].attribute[0].t
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="fill.bin")
    with pytest.raises(ModelError, match="in which folder"):
        certify(before, after)
