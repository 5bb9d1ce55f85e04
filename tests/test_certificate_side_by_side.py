"""Results that are proved node by node, without being numbered: what that takes, and what it leaves alone."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from onnx import TensorProto, numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate import numbering, side_by_side
from amp_rewrite.certificate.side_by_side import identical
from amp_rewrite.errors import AmpRewriteError
from tests.random_models import models, options
from tests.test_laws import LAW


def model(text, opset=17):
    """A model by the text of its graph, whose types nobody checks."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def told(original, rewritten):
    """The certificate that is found node by node; None where that does not tell."""
    return side_by_side.proved(numbering.number(original, None, {}), rewritten, None)


def numbered(original, rewritten):
    """The certificate where nothing is proved node by node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "proved", lambda *_: None)
        return certify(original, rewritten)


@pytest.mark.parametrize("asked", [{}, {"half": "bfloat16"}, {"metadata": False}], ids=str)
def test_a_plain_result_is_proved_node_by_node(asked):
    """The certificate says what that of the numbered result says."""
    original = model(PLAIN)
    result = rewrite(original, Options(**asked)).model
    found = told(original, result)
    assert found is not None
    assert found.nodes == 4
    assert len(result.graph.node) > len(original.graph.node)
    assert found == numbered(original, result)


@LAW
@given(models(), options())
def test_it_agrees_with_the_proof_of_the_numbered_result(original, asked):
    """What is proved node by node is proved of the numbered result, and with the same uses of licences."""
    try:
        result = rewrite(original, asked).model
    except AmpRewriteError:
        return
    found = told(original, result) if not original.functions else None
    plain = numbered(original, result)
    assert plain.proved
    assert found is None or found.licences == plain.licences


PLAIN = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.1, 2.0, 3.0, 4.0}> {
    c = Constant<value = float[1] {0.3}>() a = MatMul(x, w) b = Add(a, c) d = Relu(b) y = Exp(d) }"""
HALVES = "float16[2,2] w = {15462, 16384, 16896, 17408}"
WIDE = "float[2,2] w = {1.1, 2.0, 3.0, 4.0}"
ALIKE = {
    "itself": PLAIN,
    "a Cast before a node": PLAIN.replace("a = MatMul(x, w)", "h = Cast<to = 10>(x) a = MatMul(h, w)"),
    "a Cast behind a node": PLAIN.replace("y = Exp(d)", "e = Exp(d) y = Cast<to = 1>(e)"),
    "a Constant in half": PLAIN.replace("float[1] {0.3}", "float16[1] {13517}"),
    "a weight in half": PLAIN.replace(WIDE, HALVES),
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_it_proves(what):
    """Casts, and stored values that are rounded."""
    found = told(model(PLAIN), model(ALIKE[what]))
    assert found is not None
    assert found.proved
    assert found.nodes == 4
    assert found == numbered(model(PLAIN), model(ALIKE[what]))


def test_nodes_that_are_gone_are_passed_over():
    """A node that nothing reads need not stand in the result."""
    original = PLAIN.replace("d = Relu", "z = Sqrt(b) d = Relu")
    found = told(model(original), model(PLAIN))
    assert found is not None
    assert found.nodes == 4
    assert found == numbered(model(original), model(PLAIN))


INTEGERS = "g (int64[2] x) => (float[2] y) { a = Add(x, x) b = Mul(a, a) y = Cast<to = 1>(b) }"
BITS = """g (float16[2] x) => (float16[2] y) { b = BitCast<to = 16>(x) c = BitCast<to = 10>(b) y = Neg(c) }"""
BRANCHES = """g (bool c, float[1] x) => (float[1] y) { a = Exp(x)
    y = If (c) <then_branch = t () => (float[1] u) { u = Exp(a) },
                else_branch = e () => (float[1] v) { v = Neg(x) }> }"""
TWO = "g (float[2] x) => (float[2] y) { a = Sub(x, x) b = Neg(x) y = Sub(a, b) }"
RANDOM = "g (float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
POOL = "g (float[1,1,4] x) => (float[1,1,4] y) { a = MaxPool<kernel_shape=[1]>(x) b = Neg(x) y = Add(a, b) }"
OTHER = {
    "a Cast of integers": (INTEGERS, INTEGERS.replace("b = Mul(a, a)", "h = Cast<to = 10>(a) b = Mul(h, h)")),
    "a Cast to integers": (PLAIN, PLAIN.replace("d = Relu(b)", "i = Cast<to = 6>(b) d = Relu(i)")),
    "a Cast and no more": (PLAIN, PLAIN.replace("d = Relu(b)", "d = Cast<to = 1>(b)")),
    "a Cast of another value": (PLAIN, PLAIN.replace("d = Relu(b)", "h = Cast<to = 10>(a) d = Relu(h)")),
    "another input": (TWO, TWO.replace("Neg(x)", "Neg(a)")),
    "swapped inputs": (TWO, TWO.replace("Sub(a, b)", "Sub(b, a)")),
    "another operator": (TWO, TWO.replace("Neg", "Abs")),
    "an attribute": (PLAIN.replace("Exp", "Softmax<axis = 0>"), PLAIN.replace("Exp", "Softmax<axis = 1>")),
    "another output": (TWO, TWO.replace("b = ", "y = ").replace("y = Sub(a, b)", "b = Sub(a, y)")),
    "an output of another value": (TWO, TWO.replace("y = Sub(a, b)", "z = Sub(a, b) y = Cast<to = 1>(b)")),
    "one more output": (POOL, POOL.replace("a = Max", "a, m = Max")),
    "a weight in half": (PLAIN, PLAIN.replace(WIDE, HALVES.replace("62", "63"))),
    "a weight": (PLAIN, PLAIN.replace("1.1", "1.2")),
    "a Constant": (PLAIN, PLAIN.replace("0.3", "0.4")),
    "a random value that stands for two": (RANDOM, RANDOM.replace("Sub(a, b)", "Sub(a, a)")),
    "bits of half": (BITS, BITS.replace("b = ", "h = Cast<to = 16>(x) b = ").replace("(x) c", "(h) c")),
    "a body that may read another value": (BRANCHES, BRANCHES),
    "another order of nodes": (TWO, TWO.replace("a = Sub(x, x) b = Neg(x)", "b = Neg(x) a = Sub(x, x)")),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_what_it_leaves_alone(what):
    """What is not the original with Casts, and what it does not know."""
    before, after = map(model, OTHER[what])
    assert told(before, after) is None


def test_a_bit_of_a_small_weight():
    """Weights that are compared many at a time are compared."""
    before = model(PLAIN)
    (weight,) = before.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), "w"))
    after = rewrite(before).model
    assert told(before, after) is not None
    (half,) = after.graph.initializer
    assert half.data_type == TensorProto.FLOAT16
    half.raw_data = bytes([half.raw_data[0] ^ 1]) + half.raw_data[1:]
    assert told(before, after) is None


def test_a_name_that_is_given_twice():
    """A result that gives a name twice is left to what refuses it."""
    after = model(PLAIN.replace("a = MatMul", "w2 = Cast<to = 10>(x) a = MatMul"))
    for name in ("w", "x", "c", "d"):
        after.graph.node[1].output[0] = name
        assert told(model(PLAIN), after) is None


def test_another_opset_is_left_alone():
    """An operator of another version may mean another thing."""
    assert told(model(PLAIN, 13), model(PLAIN, 14)) is None


def test_what_is_stored_elsewhere_is_left_alone():
    """A node may say the same and refer to another file."""
    text = "g (int64[1] n) => (float[N] y) { a = ConstantOfShape<value = float[1] {1.5}>(n) y = Exp(a) }"
    before, after = model(text), model(text)
    assert told(before, after) is not None
    for each in (before, after):
        tensor = each.graph.node[0].attribute[0].t
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="fill.bin")
    assert told(before, after) is None


UNKNOWN = b"\x7a\x01x"
"""A field that no version of ONNX knows yet: number 15, of one byte."""


def test_nodes_are_identical_but_for_metadata():
    """Metadata that a result adds, however long, and nothing else."""
    before = model(TWO).graph.node[0]
    after = onnx.NodeProto.FromString(before.SerializeToString())
    for text in ("", "short", "long" * 99):
        after.metadata_props.add(key="amp_rewrite", value=text)
        assert identical(before, after)
    assert not identical(before, onnx.NodeProto.FromString(after.SerializeToString() + UNKNOWN))
    after.overload = "other"
    assert not identical(before, after)
    assert not identical(after, before)
