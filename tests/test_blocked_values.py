"""Values that onnxruntime keeps with their channels in blocks, and a calibration that reduces them."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import amp_rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.running import blocked_values, handed_out, measuring_sessions
from tests import text

pytest.importorskip("onnxruntime")

WEIGHTS = "<float[5, 3, 3, 3] v, float[5] b, float[5, 5, 1, 1] w, float[16, 5, 1, 1] u, float[7, 16, 1, 1] t>"
NETWORK = f"""g (float[1, 3, 9, 8] x) => (float[1, 5, 9, 8] k, float[1, 7, 9, 8] o) {WEIGHTS} {{
    c = Conv <pads = [1, 1, 1, 1]> (x, v, b)
    r = Relu (c)
    e = Conv (r, w)
    f = Add (e, c)
    g = Sigmoid (f)
    h = Mul (f, g)
    k = Add (h, g)
    n = Conv (k, u)
    o = Conv (n, t)
}}"""
"""Blocks that are full (n) and that are not; zeros do not fill those of g and k, and h may be positive."""
IN_BLOCKS = {"c", "e", "f", "o"}


def network(seed, sign=None, graph=NETWORK):
    """NETWORK with random weights; with positive ones and a bias of one sign, where that is given."""
    proto, random = text.model(graph), np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        array = random.standard_normal(tuple(tensor.dims)).astype(np.float32)
        if sign is not None:
            array = np.abs(array) * (sign if tensor.name == "b" else 1)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


def samples(count=4, sign=None):
    """Random images; of one sign, where it is given."""
    random = np.random.default_rng(count)
    arrays = [random.standard_normal((1, 3, 9, 8)).astype(np.float32) for _ in range(count)]
    return [{"x": array if sign is None else sign * np.abs(array)} for array in arrays]


@pytest.fixture
def told(monkeypatch):
    """What is said of each model whose values are reduced in blocks, with all values reduced within runs."""
    found, reduce = [], blocked_values.reduce
    monkeypatch.setattr(handed_out, "MOST", 0)
    monkeypatch.setattr(blocked_values, "_ENOUGH", 1)

    def recorded(graph, **given):
        found.append(reduce(graph, **given))
        return found[-1]

    monkeypatch.setattr(blocked_values, "reduce", recorded)
    amp_rewrite.observe(network(0), samples(3), device="cpu")
    if found == [None]:
        pytest.skip("onnxruntime keeps nothing in blocks on this machine")
    found.clear()
    return found


def in_order(model, given, monkeypatch):
    """What is seen of a model without values in blocks."""
    with monkeypatch.context() as patch:
        patch.setattr(blocked_values, "_ENOUGH", len(model.graph.node) + 1)
        return amp_rewrite.observe(model, given, device="cpu")


def same(seen, expected):
    """Whether the same was seen, as far as the kernels of convolutions compute the same."""
    assert seen.keys() == expected.keys()
    for name, extremes in seen.items():
        other = expected[name]
        size = max(abs(other.low), abs(other.high))
        assert extremes.low == pytest.approx(other.low, rel=1e-5, abs=1e-6 * size), name
        assert extremes.high == pytest.approx(other.high, rel=1e-5, abs=1e-6 * size), name
        assert extremes.samples == other.samples, name


@pytest.mark.parametrize("seed", range(3))
def test_extremes_in_blocks_are_those_in_order(seed, told, monkeypatch):
    """Zeros that fill blocks show nowhere: values of both signs hide them, others are reduced in order."""
    model = network(seed)
    expected = in_order(model, samples(), monkeypatch)
    assert not told
    same(amp_rewrite.observe(model, samples(), device="cpu"), expected)
    assert told == [IN_BLOCKS]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("first", [0, 3], ids=["from the first on", "later"])
def test_values_of_one_sign_are_seen(first, sign, told, monkeypatch):
    """What is positive or negative throughout is reduced in order from the sample on that shows it."""
    model = network(0, sign)
    given = [*samples(first), *samples(3, sign)]
    expected = in_order(model, given, monkeypatch)
    same(amp_rewrite.observe(model, given, device="cpu"), expected)
    assert told[0] == IN_BLOCKS
    assert not told[-1]


def test_only_what_was_added_reads_blocks(told, monkeypatch):
    """A reduction of the model itself reads values in order: zeros would be among them."""
    model = network(0, sign=1)
    model.graph.node.append(helper.make_node("ReduceMin", ["c"], ["least"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("least", onnx.TensorProto.FLOAT, []))
    given = samples(4, sign=1)
    seen = amp_rewrite.observe(model, given, device="cpu")
    same(seen, in_order(model, given, monkeypatch))
    assert seen["least"].low == seen["c"].low > 0
    assert told[0] == IN_BLOCKS - {"c"}


MOVED = """g (float[1, 3, 9, 8] x) => (float[1, 9, 8, 5] o) <float[5, 3, 1, 1] w, float[5] b> {
    c = Conv (x, w, b)
    t = Transpose <perm = [0, 2, 3, 1]> (c)
    s = Add (t, t)
    o = Softmax (s)
}"""
SCALED = """g (float[1, 3, 9, 8] x) => (float[1, 5, 9, 8] o) <float[5, 3, 1, 1] w, float[5, 1, 1] b> {
    c = Conv (x, w)
    s = Sigmoid (c)
    o = Mul (s, b)
}"""


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("graph", [MOVED, SCALED], ids=["moved", "scaled"])
def test_what_onnxruntime_moves_and_makes_is_seen(graph, sign, told, monkeypatch):
    """A sum gets another name in front of a Transpose; what is scaled is filled by what fills its input."""
    model, given = network(0, sign, graph), samples(4, sign)
    seen = amp_rewrite.observe(model, given, device="cpu")
    same(seen, in_order(model, given, monkeypatch))
    assert seen["s"].low > 0 or seen["s"].high < 0
    assert told[0] == {"c"}


def test_a_default_of_an_input_may_be_given(told, monkeypatch):
    """A run may be given an input that has a default, and one without is not asked of it."""
    model = network(0)
    model.graph.input.append(helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [7, 16, 1, 1]))
    given = [{**sample, "t": np.ones((7, 16, 1, 1), np.float32)} for sample in samples()]
    for each in (given, samples()):
        same(amp_rewrite.observe(model, each, device="cpu"), in_order(model, each, monkeypatch))
    assert told


def test_models_without_blocks_take_no_further_session(told):
    """Where onnxruntime keeps nothing in blocks, it is asked once."""
    model = text.model(
        "g (float[1,3,8] x) => (float[1,5,8] y) <float[5,3,1] w> { c = Conv (x, w) y = Sin (c) }"
    )
    given = [{"x": np.full((1, 3, 8), size, np.float32)} for size in (1, 1, 1, 1e6, 1e6)]
    seen = amp_rewrite.observe(model, given, device="cpu")
    assert seen["c"].beyond
    assert told == [None]


@pytest.mark.parametrize(("weight", "expected"), [("w", True), ("q", False)])
def test_weights_that_are_dequantised_are_in_no_block(weight, expected, monkeypatch):
    """No further session is opened for a model that has no others."""
    monkeypatch.setattr(blocked_values, "_ENOUGH", 1)
    source = f"""g (float[1,3,8,8] x) => (float[1,5,8,8] y)
        <float[5,3,1,1] w, int8[5,3,1,1] i, float s = {{1}}> {{
        q = DequantizeLinear (i, s)
        y = Conv (x, {weight}) }}"""
    assert blocked_values.are_likely(text.unchecked(source).graph) is expected


def test_a_model_that_onnxruntime_does_not_take_back_is_seen(told, monkeypatch):
    """As without blocks."""
    expected = in_order(network(0), samples(), monkeypatch)
    opened = measuring_sessions.open_session

    def refusing(model, *given):
        if any(node.op_type == "ReorderOutput" for node in model.graph.node):
            raise ModelError("refused")
        return opened(model, *given)

    monkeypatch.setattr(measuring_sessions, "open_session", refusing)
    assert amp_rewrite.observe(network(0), samples(), device="cpu") == expected
    assert told


OPTIMISED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft.nchwc": 1]>
g (float[1, 3, 9, 8] x) => (float highest, float[1, 5, 9, 8] d) <float[16, 3, 1, 1] w> {
    b = com.microsoft.nchwc.Conv (x, w)
    q = Sigmoid (b)
    s = Add (b, q)
    t = com.microsoft.nchwc.Conv (x, w, , s)
    v = com.microsoft.nchwc.ReorderOutput <channels = 5> (b)
    z = com.microsoft.nchwc.ReorderOutput <channels = 5> (s)
    y = com.microsoft.nchwc.ReorderOutput <channels = 16> (s)
    u = com.microsoft.nchwc.ReorderOutput <channels = 5> (t)
    d = com.microsoft.nchwc.ReorderOutput <channels = 5> (b)
    amp_rewrite_reduced1 = ReduceMax <keepdims = 0> (v)
    amp_rewrite_reduced2 = ReduceMax <keepdims = 0> (z)
    amp_rewrite_reduced3 = ReduceMax <keepdims = 0> (y)
    amp_rewrite_reduced4 = ReduceMax <keepdims = 0> (u)
    amp_rewrite_reduced5 = ReduceMax <keepdims = 0> (d)
    highest = Max (amp_rewrite_reduced1, amp_rewrite_reduced2, amp_rewrite_reduced3, amp_rewrite_reduced4,
        amp_rewrite_reduced5) }"""


def test_which_values_are_read_in_blocks():
    """Those whose blocks are full or filled by zeros and that nobody else reads, behind what makes them."""
    graph = text.unchecked(OPTIMISED).graph
    assert blocked_values.reduce(graph, checked={"v", "z", "u"}) == {"v"}
    nodes = [(node.op_type, *node.input) for node in graph.node]
    assert nodes[1:6:2] == [("ReduceMax", "b"), ("Add", "b", "q"), ("Conv", "x", "w", "", "s")]
    assert nodes[4] == ("ReduceMax", "s")
    reduced = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "ReduceMax"}
    assert list(reduced.values()).count("s") == 1
    assert {"z", "u", "d"} < set(reduced.values())
