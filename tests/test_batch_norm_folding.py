"""BatchNormalization, folded into the weights of the product before it."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import pipeline
from amp_rewrite.model import loading, serialization
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing import batch_norm_folding
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import model_files, text

CONV = """g (float[1,4,5,5] x) => (float[1,6,5,5] y)
<float[6,{inputs},1,1] w{weights}, float[6] scale, float[6] shift, float[6] mean, float[6] var> {{
    [conv] h = Conv {attributes} (x, w{bias})
    [bn] y = BatchNormalization {mode} (h, scale, shift, mean, var) }}"""
TRANSPOSED = """g (float[1,4,5,5] x) => (float[1,{channels},5,5] y)
<float[4,3,1,1] w, float[{channels}] b, float[{channels}] scale, float[{channels}] shift,
 float[{channels}] mean, float[{channels}] var> {{
    [conv] h = ConvTranspose <group={group}> (x, w, b)
    [bn] y = BatchNormalization (h, scale, shift, mean, var) }}"""
GEMM = """g (float[2,4] x) => (float[2,3] y)
<float[{weight}] w{more}, float[3] scale, float[3] shift, float[3] mean, float[3] var> {{
    [gemm] h = Gemm {attributes} (x, w{bias})
    [bn] y = BatchNormalization (h, scale, shift, mean, var) }}"""
MATMUL = """g (float[2,4] x) => (float[2,3] y)
<float[4,3] w, float[3] scale, float[3] shift, float[3] mean, float[3] var> {
    [product] h = MatMul (x, w)
    [bn] y = BatchNormalization (h, scale, shift, mean, var) }"""


def conv(attributes="", bias="", weights="", inputs=4, mode=""):
    """A convolution with a BatchNormalization behind it."""
    return CONV.format(attributes=attributes, bias=bias, weights=weights, inputs=inputs, mode=mode)


def gemm(attributes="", bias=", b", more=", float[3] b", weight="4,3"):
    """A Gemm with a BatchNormalization behind it."""
    return GEMM.format(attributes=attributes, bias=bias, more=more, weight=weight)


def drawn(proto):
    """The same model with numbers in its weights that differ from channel to channel, and in sign."""
    random = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        array = random.standard_normal(list(tensor.dims), np.float32)
        held = np.abs(array) + 0.1 if tensor.name.startswith("var") else array
        tensor.CopyFrom(onnx.numpy_helper.from_array(held.astype(np.float32), tensor.name))
    return proto


def folded(proto, half=FLOAT16, kept=()):
    """The model in float32 after folding, and what changed."""
    loaded = loading.load(proto)
    changes = batch_norm_folding.fold(loaded.model, half, kept)
    made = serialization.to_proto(loaded)
    onnx.checker.check_model(made, full_check=True)
    return made, changes


OPSET_7 = '<ir_version: 3, opset_import: ["" : 7]> '


@pytest.mark.parametrize(
    "before",
    [
        conv(),
        conv(bias=", b", weights=", float[6] b"),
        conv("<group=2>", inputs=2),
        conv("<pads=[1,1,1,1], strides=[1,1], kernel_shape=[1,1]>").replace("[1,6,5,5] y", "[1,6,7,7] y"),
        conv(mode="<epsilon=0.25>"),
        conv(mode="<training_mode=0>"),
        TRANSPOSED.format(group=1, channels=3),
        TRANSPOSED.format(group=2, channels=6),
        gemm(),
        gemm("<transB=1>", weight="3,4"),
        gemm("<alpha=0.5>"),
        gemm(bias="", more=""),
        gemm(more=", float[1,3] b"),
        MATMUL,
    ],
)
def test_what_is_computed_stays(before):
    """Folded weights give what the two nodes gave, to float32's rounding, and the statistics are gone."""
    proto = drawn(text.model(before))
    made, changes = folded(proto)
    assert [change.node for change in changes] == ["bn"]
    assert not any("BatchNormalization" in node for node in text.nodes(made))
    assert text.stored(made).keys().isdisjoint({"scale", "shift", "mean", "var"})
    text.agree(proto, made, 1e-6)


def test_the_product_takes_the_place():
    """The product makes the value that the BatchNormalization made; a missing bias is added."""
    made, changes = folded(drawn(text.model(conv())))
    assert text.nodes(made) == ["y = Conv(x, w, h__bias)"]
    assert changes == (FormChange(FormChangeKind.MERGED, "bn", "conv"),)


def test_a_matmul_leaves_an_addition():
    """A MatMul has no bias: the shift is added behind it, under the name of the BatchNormalization."""
    made, _ = folded(drawn(text.model(MATMUL)))
    assert text.nodes(made) == ["h = MatMul(x, w)", "y = Add(h, y__shift)"]
    assert made.graph.node[1].name == "bn"


def test_statistics_as_inputs_of_ir_3():
    """Where initializers are inputs as well, the statistics go from both, and a new bias is in both."""
    proto = drawn(text.unchecked(OPSET_7 + conv()))
    kinds = [(tensor.name, tensor.dims) for tensor in proto.graph.initializer]
    proto.graph.input.extend(onnx.helper.make_tensor_value_info(n, 1, dims) for n, dims in kinds)
    made, changes = folded(proto)
    assert changes
    assert [given.name for given in made.graph.input] == ["x", "w", "h__bias"]
    text.agree(proto, made, 1e-6)


def test_a_chain_folds_as_a_whole():
    """Several BatchNormalizations in a row all go into the product."""
    before = (
        conv()
        .replace("[bn] y =", "[bn] k = BatchNormalization (h, scale, shift, mean, var) [bn2] y =")
        .replace("(h, scale, shift, mean, var) }", "(k, scale, shift, mean, var) }")
    )
    proto = drawn(text.model(before))
    made, changes = folded(proto)
    assert [(change.node, change.into) for change in changes] == [("bn", "conv"), ("bn2", "conv")]
    text.agree(proto, made, 1e-6)


def test_what_others_read_is_copied():
    """A weight with another reader stays for it."""
    before = (
        conv()
        .replace("=> (float[1,6,5,5] y)", "=> (float[1,6,5,5] y, float[1,6,5,5] z)")
        .replace("[conv]", "[other] z = Conv (x, w) [conv]")
    )
    proto = drawn(text.model(before))
    made, _ = folded(proto)
    assert text.nodes(made) == ["z = Conv(x, w)", "y = Conv(x, w__folded, h__bias)"]
    text.agree(proto, made, 1e-6)


def test_inside_a_body():
    """A branch is folded like any other graph, with weights of the graph around it."""
    proto = drawn(
        text.model(
            """g (float[1,4,5,5] x, bool c) => (float[1,6,5,5] y)
            <float[6,4,1,1] w, float[6] scale, float[6] shift, float[6] mean, float[6] var> {
                y = If (c) <then_branch = t () => (float[1,6,5,5] a) {
                        h = Conv (x, w)  a = BatchNormalization (h, scale, shift, mean, var) },
                    else_branch = e () => (float[1,6,5,5] b) {
                        k = Conv (x, w)  b = BatchNormalization (k, scale, shift, mean, var) }> }"""
        )
    )
    made, changes = folded(proto)
    assert len(changes) == 2
    text.agree(proto, made, 1e-6)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (conv(), conv().replace("=> (", "=> (float[1,6,5,5] h, ")),
        (conv(), conv().replace("y)\n", "y, float[1,6,5,5] z)\n").replace("[bn]", "z = Relu (h) [bn]")),
        (conv(), conv().replace("[bn]", "k = Relu (h) [bn]").replace("(h, s", "(k, s")),
        (conv(), conv().replace("4,5,5] x)", "4,5,5] x, float[6] mean)").replace(" float[6] mean,", "")),
        (conv(), conv().replace("4,5,5] x)", "4,5,5] x, float[6,4,1,1] w)").replace("float[6,4,1,1] w,", "")),
        (gemm(), gemm("<beta=0.5>")),
        (gemm(), gemm(more=", float[2,3] b")),
        (gemm(), gemm(more=", float[2,1] b")),
        (
            MATMUL,
            MATMUL.replace("2,4] x", "2,3,4] x").replace("2,3] y", "2,3,3] y"),
        ),
    ],
)
def test_what_stays(before, after):
    """Nothing is folded where others read the product, or a number is not stored, or not one a channel."""
    assert folded(drawn(text.model(before)))[1]
    proto = drawn(text.model(after))
    made, changes = folded(proto)
    assert changes == ()
    assert text.nodes(made) == text.nodes(proto)


def test_training_stays():
    """A BatchNormalization that trains normalises by the batch."""
    outputs = "[bn] y, m, v = BatchNormalization <training_mode=1>"
    proto = text.model(conv().replace("[bn] y = BatchNormalization ", outputs))
    assert folded(proto)[1] == ()


@pytest.mark.parametrize(
    ("scale", "var", "half", "folds"),
    [
        (1.0, 1.0, FLOAT16, True),
        (1e5, 1.0, FLOAT16, False),  # weights overflow
        (1e5, 1.0, BFLOAT16, True),
        (1.0, 1e10, FLOAT16, False),  # no bits are left of the weights
        (1.0, 1e10, BFLOAT16, True),
        (1.0, -1.0, FLOAT16, False),  # the root of a negative number
        (1e38, 1e-30, BFLOAT16, False),
    ],
)
def test_the_range_of_half(scale, var, half, folds):
    """Folding makes no weight that half cannot hold where it held the unfolded one."""
    proto = drawn(text.model(conv()))
    held = {"scale": scale, "var": var, "shift": 0.0, "mean": 0.0}
    for tensor in proto.graph.initializer:
        if tensor.name in held:
            array = np.full(list(tensor.dims), held[tensor.name], np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert bool(folded(proto, half)[1]) == folds


def test_a_dead_channel_does_not_count():
    """A channel that is next to nothing beside the others keeps none of them from being folded."""
    proto = drawn(text.model(conv()))
    for tensor in proto.graph.initializer:
        if tensor.name == "scale":
            array = np.array([1, 1, 1, 1, 1, 1e-12], np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert folded(proto)[1]


def test_a_large_weight_is_folded_when_it_is_read(tmp_path):
    """A large weight in a file is multiplied as it is written, and nothing of it is held until then."""
    before = """g (float[1,700] x) => (float[1,700] y)
    <float[700,700] w, float[700] scale, float[700] shift, float[700] mean, float[700] var> {
        h = Gemm (x, w)  y = BatchNormalization (h, scale, shift, mean, var) }"""
    proto = drawn(text.model(before))
    source = tmp_path / "m.onnx"
    model_files.save_external(onnx.ModelProto.FromString(proto.SerializeToString()), source, "m.data")
    loaded = loading.load(source)
    assert batch_norm_folding.fold(loaded.model, FLOAT16, ())
    weight = loaded.model.graph.initializers["w"].const_value
    assert isinstance(weight, ir.LazyTensor)
    in_memory, _ = folded(proto)
    np.testing.assert_array_equal(weight.numpy(), text.stored(in_memory)["w"])


DENIED = operator_lists.load("default").override(Kind.DENY, ["BatchNormalization"])
GRAPPLER = Options(lists=operator_lists.load("tensorflow"), follow=False)


@pytest.mark.parametrize(
    "asked",
    [
        Options(fold=False),
        Options(pins=Pins(keep_full="bn")),
        Options(pins=Pins(force_half="b.")),
        Options(lists=DENIED),
        GRAPPLER,
    ],
)
def test_who_asks_for_the_node_gets_it(asked):
    """`fold` turns it off, as do a pin on the node, a list for its operator, and Grappler's rules."""
    proto = drawn(text.model(conv()))
    assert pipeline.rewrite(proto).report.form_changes
    result = pipeline.rewrite(proto, asked)
    assert result.report.form_changes == ()
    assert any("BatchNormalization" in node for node in text.nodes(result.model))


def test_the_result_is_rewritten_no_further():
    """What was folded has nothing left to fold, and what could not be folded stays as it is."""
    once = pipeline.rewrite(drawn(text.model(conv()))).model
    assert pipeline.rewrite(once).model == once
