"""The certificate: which results are the original but for precision, and which compute something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper

from amp_rewrite import Options, certify, rewrite
from tests.certificate_rows import changed, check, model, rows, store

MODELS = Path(__file__).parents[2] / "shared" / "models"
MODES = {
    "float16": {},
    "bfloat16": {"half": "bfloat16"},
    "half_io": {"io": "half"},
    "force_all": {"level": "unsafe-force-all"},
    "keep_functions": {"keep_functions": True},
}


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
@pytest.mark.parametrize("mode", MODES)
def test_shared_models_are_proved(mode, tmp_path):
    """Results are the originals but for precision, whatever was asked for."""
    for path in proved_in(mode):
        result = rewrite(path, Options(check=False, **MODES[mode]), output=tmp_path / "r.onnx")
        found = certify(path, result.model)
        assert found.proved, f"{path}: {found}"


def proved_in(mode):
    """Every second shared model; where tests/test_models.py has all the others, the train steps."""
    training = mode in ("float16", "bfloat16")
    return sorted(MODELS.glob("training/*.onnx")) if training else sorted(MODELS.glob("*/*.onnx"))[::2]


PLAIN = """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.1, 2.0, 3.0, 4.0}> {
    c = Constant<value = float[1] {0.3}>() a = MatMul(x, w) b = Add(a, c) d = Relu(b) y = Exp(d) }"""
TWO = "(float[2] x) => (float[2] y) { a = Sub(x, x) b = Neg(x) y = Sub(a, b) }"
NODES = """
(float[2] x) => (float[2] y) <float[2] w = {1.1, 70000.0}> { a = Mul(x, w) y = Sub(a, x) }
    itself                       |                            | proved: 2 nodes
    Casts to bfloat16 and back
        | a = Mul(x, w) -> h = Cast<to = 10>(x) f = Cast<to = 1>(h) a = Mul(f, w) | proved: 2 nodes
    other names and an unread node
        | a = Mul(x, w) -> z = Exp(x) b = Mul(x, v); w = {1 -> v = {1; Sub(a -> Sub(b | proved: 2 nodes
    inputs swapped               | Sub(a, x) -> Sub(x, a)     | not proved: the input 'x'
    factors swapped              | Mul(x, w) -> Mul(w, x)     | not proved: the input 'x'
    an Add for a Sub             | Sub( -> Add(               | not proved: Add
    a Cast to int64 and back
        | a = Mul(x, w) -> i = Cast<to = 7>(x) f = Cast<to = 1>(i) a = Mul(f, w) | not proved: Cast
    a stored bit                 | 1.1 -> 1.1000001           | not proved: element 0
    clamped though it is no mask | 70000.0 -> 32752.0         | not proved: more than a mask
    clamped to another value     | 70000.0 -> 32736.0         | not proved: element 1
    another shape                | float[2] w -> float[1,2] w | not proved: shape
    an output of another name    | y -> z                     | not proved: outputs
    an input of another name     | x -> z                     | not proved: inputs

(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.1, 2.0, 3.0, 4.0}> {
        c = Constant<value = float[1] {0.3}>() a = MatMul(x, w) b = Add(a, c) d = Relu(b) y = Exp(d) }
    four nodes              |  | proved: 4 nodes
    a Cast before a node    | a = MatMul(x, w) -> h = Cast<to = 10>(x) a = MatMul(h, w) | proved: 4 nodes
    a Cast behind a node    | y = Exp(d) -> e = Exp(d) y = Cast<to = 1>(e) | proved: 4 nodes
    a Constant in half      | float[1] {0.3} -> float16[1] {13517} | proved: 4 nodes
    a weight in half
        | float[2,2] w = {1.1, 2.0, 3.0, 4.0} -> float16[2,2] w = {15462, 16384, 16896, 17408}
        | proved: 4 nodes
    a weight rounded up
        | float[2,2] w = {1.1, 2.0, 3.0, 4.0} -> float16[2,2] w = {15463, 16384, 16896, 17408}
        | not proved: element 0
    another weight          | 1.1 -> 1.2 | not proved: element 0
    another Constant        | 0.3 -> 0.4 | not proved: element 0
    a Cast to integers
        | d = Relu(b) -> i = Cast<to = 6>(b) d = Relu(i) | not proved: of different types
    a Cast for a node       | Relu(b) -> Cast<to = 1>(b) | not proved: not the same
    a Cast of another value | d = Relu(b) -> h = Cast<to = 10>(a) d = Relu(h) | not proved: not the same
    an unread node that is gone
        | d = Relu -> z = Sqrt(b) d = Relu | z = Sqrt(b) -> | proved: 4 nodes
    another axis
        | Exp -> Softmax<axis = 0> | axis = 0 -> axis = 1 | not proved: attribute 'axis' differs

(int64[2] x) => (float[2] y) { a = Add(x, x) b = Mul(a, a) y = Cast<to = 1>(b) }
    a Cast of integers | b = Mul(a, a) -> h = Cast<to = 10>(a) b = Mul(h, h) | not proved: not the same

(float[2] x) => (float[2] y) { a = Sub(x, x) b = Neg(x) y = Sub(a, b) }
    another order of nodes     | a = Sub(x, x) b = Neg(x) -> b = Neg(x) a = Sub(x, x) | proved: 3 nodes
    nodes that are not sorted
        | a = Sub(x, x) b = Neg(x) ->; y = Sub(a, b) -> y = Sub(a, b) b = Neg(x) a = Sub(x, x)
        | proved: 3 nodes
    another input              | Neg(x) -> Neg(a) | not proved: not the same
    swapped inputs             | Sub(a, b) -> Sub(b, a) | not proved: not the same
    another operator           | Neg -> Abs | not proved: not the same
    another output             | b = -> y =; y = Sub(a, b) -> b = Sub(a, y) | not proved: not the same
    an output of another value | y = Sub(a, b) -> z = Sub(a, b) y = Cast<to = 1>(b) | not proved: not the same

(float[1,1,4] x) => (float[1,1,4] y) { a = MaxPool<kernel_shape=[1]>(x) b = Neg(x) y = Add(a, b) }
    one more output | a = Max -> a, m = Max | not proved: different outputs

(float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }
    one random value for two | Sub(a, b) -> Sub(a, a) | not proved: stands for two

(float[2] x) => (float[2] y) { c = Cast <to = 1> (x) y = Add (c, x) }
    a Cast that does not say to what | to = 1 -> into = 10 | not proved
    a Cast to a number that is none  | to = 1 -> to = 10.0 | not proved

(float[2] x) => (float[2] y) { c = Cast (x) y = Add (x, x) }
    a Cast to nobody knows what | Add (x -> Add (c | not proved
"""


UNNAMED = AttributeProto(type=AttributeProto.INT, i=1)


def change_axis(result):
    """The axis is another, and beside it stands an attribute without a name."""
    result.graph.node[0].attribute[0].i = 1
    result.graph.node[0].attribute.append(UNNAMED)


OTHER_NODES = {
    "another axis and an attribute without a name": (
        "(float[2,2] x) => (y) { y = ArgMax <axis = 0> (x) }",
        change_axis,
        "not proved",
    ),
    "an attribute without a name": (
        "(float[2,2] x) => (y) { y = Softmax (x) }",
        lambda result: result.graph.node[0].attribute.append(UNNAMED),
        "not proved",
    ),
}


@rows(NODES, OTHER_NODES)
def test_nodes_and_what_they_read(row):
    """Names, order, Casts between floats and rounded constants make no difference; all else is found."""
    check(row)


TYPES = """
(float[2] x) => (y) { h = other.A (x) e = Exp (h) z = Add (h, x) y = Add (z, e) }
    a Cast before what tells the type | e = Exp (h) -> c = Cast <to = 10> (h) e = Exp (c) | proved

(float[4,256] x) => (float[4,256] y) { h = other.Op(x) k = Exp(x) z = Add(h, x) y = Sub(z, k) }
    a Cast of what is read as a float | k = Exp -> h16 = Cast<to = 10>(h) k = Exp; Add(h -> Add(h16 | proved
    a Cast of it to integers | k = Exp -> h16 = Cast<to = 6>(h) k = Exp; Add(h -> Add(h16 | not proved

(float[2] x) => (float[2] y) <float[2] h> { h = other.A (x) y = Exp (h) }
    a declaration of the original
        | <float[2] h> -> ; y = Exp (h) -> c = Cast <to = 10> (h) y = Exp (c) | proved

(float[2] x) => (float[2] y) { v = other.A (x) w = other.B (x) q = Div (v, w) y = other.C (q) }
    values that the result alone calls floats
        | => (float[2] y) -> => (float[2] y) <float[2] v, float[2] w>;
          q = Div (v, w) -> a = Cast <to = 1> (v) b = Cast <to = 1> (w) q = Div (a, b)
        | not proved

(float[2] x) => (float[2] y) <float[2] h> { z = d.f (x) h = Neg (x) y = Add (z, h) }
        <domain: "d", opset_import: ["": 17, "other": 1]> f (a) => (o) {
        h = other.A (a) k = Cast <to = 1> (h) o = other.B (k) }
    a declaration of another value of that name
        | (float[2] x) => (float[2] y) { h = other.A (x) z = other.B (h) n = Neg (x) y = Add (z, n) }
        | not proved

(float[2] x) => (float[2] y) <float[2] k> {
        k = other.A (x) j = other.I (x) c = CastLike (x, k)
        d = other.B (c) e = other.C (k, j) y = Add (d, e) }
    the type of another value of that name
        | <float[2] k> -> ; other.A -> other.*; other.I -> other.A; other.* -> other.I; (k, j) -> (j, k)
        | not proved

(float[2] x) => (float[2] y) <float[2] k> { k = other.A (x) c = CastLike (x, k) y = other.B (c) }
    a type that the original declares             |                              | <float[2] k> -> | proved
    a type that it declares, of what was integers | (float[2] x) -> (int32[2] x) | <float[2] k> -> | proved

(float[2] x) => (float[2] y) { y = d.f (x) }
        <domain: "d", opset_import: ["": 17, "other": 1]> f (a) => (o) { o = other.A (a) }
    a declaration of what a function gives
        | => (float[2] y) -> => (float16[2] y); y = d.f (x) -> z = d.f (x) y = Cast <to = 10> (z) | proved

(float[2] x) => (float[2] y) <int64 i = {0}> {
        s = SequenceEmpty () t = SequenceInsert (s, x) y = SequenceAt (t, i) }
    a sequence of half
        | s = Seq -> h = Cast <to = 10> (x) s = Seq; Empty -> Empty <dtype = 10>; (s, x) -> (s, h);
          y = -> z =; (t, i) -> (t, i) y = Cast <to = 1> (z)
        | proved
    an empty sequence of integers
        | s = Seq -> h = Cast <to = 10> (x) s = Seq; Empty -> Empty <dtype = 7>; (s, x) -> (s, h);
          y = -> z =; (t, i) -> (t, i) y = Cast <to = 1> (z)
        | not proved

(float[1,8,4,4] x, float[8,8,1,1] w) => (float[128] y) <int64[1] all = {-1}> {
        b = com.microsoft.nchwc.Conv <kernel_shape = [1,1]> (x, w)
        r = com.microsoft.nchwc.ReorderOutput <channels = 8> (b) t = Reshape (r, all) y = Sin (t) }
    channels in blocks
        | t = Reshape (r, all) -> h = Cast <to = 10> (r) t = Reshape (h, all);
          y = Sin (t) -> s = Sin (t) y = Cast <to = 1> (s)
        | proved

26: (float16[2] x) => (float[2] y) {
        b = Cast <to = 16> (x) i = BitCast <to = 5> (b) y = Cast <to = 1> (i) }
    the bits of another half type | b = Cast <to = 16> (x) -> ; (b) -> (x) | not proved

26: (float[2] x) => (int32[2] y) { r = Relu (x) y = BitCast <to = 6> (r) }
    bits of float32 | r = Relu (x) -> h = Cast <to = 10> (x) s = Relu (h) r = Cast <to = 1> (s) | proved

26: (int32[2] x) => (y) <float[2] w = {1.1, 2}> {
        h = Cast <to = 10> (w) f = Cast <to = 1> (h) b = BitCast <to = 6> (f) y = Add (x, b) }
    bits of what was half on its way
        | 26: (int32[2] x) => (y) <int32[2] b = {1066192077, 1073741824}> { y = Add (x, b) } | not proved

() => (float[2] y) <int32[2] w = {1, 2}> { y = Cast <to = 1> (w) }
    stored int32 as uint32 | int32 -> uint32 | not proved: int32 is uint32
"""


@rows(TYPES)
def test_types_that_nobody_declares(row):
    """What is a float where it is read as one may be cast; integers and bits may not."""
    check(row)


def test_bits_of_half_types_are_those_of_one_type():
    """A BitCast reads the type that it read: a Cast in front of it changes its result."""
    text = "(float16[2] x) => (float16[2] y) { b = BitCast<to = 16>(x) c = BitCast<to = 10>(b) y = Neg(c) }"
    change = "b = BitCast<to = 16>(x) -> h = Cast<to = 16>(x) b = BitCast<to = 16>(h)"
    assert certify(model(text), model(text)).proved
    assert "attribute 'to' differs" in certify(model(text), changed(text, change)).problem


def test_long_and_doubled_rows_are_followed_once():
    """Neither the depth of a model nor the number of its paths matters."""
    nodes = [helper.make_node("Add", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(20_000)]
    infos = [helper.make_tensor_value_info(name, 1, [1]) for name in ("v0", "v20000")]
    chain = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]))
    check((chain, chain, "proved: 20000 nodes"))


@pytest.mark.parametrize("asked", [{}, {"half": "bfloat16"}, {"metadata": False}], ids=str)
def test_a_plain_result_is_proved(asked):
    """All nodes of the original are counted, and none of the Casts."""
    original = model(PLAIN)
    result = rewrite(original, Options(**asked)).model
    assert len(result.graph.node) > len(original.graph.node)
    check((original, result, "proved: 4 nodes"))


def test_a_bit_of_a_small_weight():
    """Weights that are compared many at a time are compared."""
    before = model(PLAIN)
    store("w", np.float32([[1.1, 2], [3, 4]]))(before)
    after = rewrite(before).model
    check((before, after, "proved"))
    (half,) = after.graph.initializer
    assert half.data_type == TensorProto.FLOAT16
    half.raw_data = bytes([half.raw_data[0] ^ 1]) + half.raw_data[1:]
    check((before, after, "not proved"))


@pytest.mark.parametrize("number", [1e-44, -1e-40, np.uint32(0x7F80_0001).view(np.float32), np.nan, np.inf])
def test_other_weights_of_odd_numbers_are_refused(number):
    """Without an error: subnormal numbers alone, a signalling NaN."""
    before, after = model(PLAIN), model(PLAIN)
    store("w", np.float32([[5e-45, 7e-45], [9e-45, 1e-44]]))(before)
    store("w", np.full((2, 2), number, np.float32))(after)
    check((before, after, "not proved"))


@pytest.mark.parametrize("operator", ["com.microsoft.NoSuch", "other.Op"])
def test_an_unknown_operator_reads_what_it_read(operator):
    """Whether or not its domain has others: no schema says that it computes the same in half."""
    text = f"(float[2] x) => (float[2] y) {{ h = Neg(x) u = {operator}(h) y = Neg(u) }}"
    change = "h = Neg(x) -> c = Cast<to = 10>(x) h = Neg(c); y = Neg(u) -> d = Cast<to = 1>(u) y = Neg(d)"
    assert not certify(model(text), changed(text, change)).proved
    assert certify(model(text), model(text)).proved


def test_metadata_of_nodes_is_not_compared():
    """However long it is; the overload of a node is."""
    before, after = model(TWO), model(TWO)
    for text in ("", "short", "long" * 99):
        after.graph.node[0].metadata_props.add(key="amp_rewrite", value=text)
        check((before, after, "proved"))
    after.graph.node[0].overload = "other"
    check((before, after, "not proved: they are of different overloads"))


def test_nothing_is_proved_of_a_model_without_outputs():
    """It computes nothing that anybody sees."""
    blind = model("(float[2] x) => () { y = Exp (x) }")
    assert certify(blind, blind).problem == "the original has no outputs, so there is nothing to prove"
