"""Coverage against counts by hand: of our results, of those of two other converters, of plain models."""

import json
from operator import attrgetter

import onnx
import pytest

import amp_rewrite
from amp_rewrite.coverage.counts import Counts, measure
from amp_rewrite.errors import ModelError, OptionError
from tests import real_models, text
from tests.text import FUNCTIONS

NETWORK = """g (float[2, 8] x) => (float[2, 4] y)
<float[8] s, float[8, 16] w1, float[16] b1, float[16, 4] w2> {
  [norm] n = LayerNormalization <axis = -1> (x, s)
  [first] h = MatMul (n, w1)
  [bias] hb = Add (h, b1)
  [act] a = Relu (hb)
  [exp] e = Exp (a)
  [second] z = MatMul (e, w2)
  [soft] y = Softmax (z)
}"""
# LayerNormalization 7 x 16, products 2 x 2 x 8 x 16 and 2 x 2 x 16 x 4, Softmax 5 x 8, the others 32 each
NORM, FIRST, ACROSS, SECOND, SOFT = 112, 512, 32, 256, 40
WEIGHTS = 8 + 8 * 16 + 16 + 16 * 4


def test_a_plain_model_is_all_float32():
    """Nothing is half, and there are no Casts."""
    found = measure(text.model(NETWORK))
    assert found.nodes == Counts(full=7)
    assert found.flops == Counts(full=NORM + FIRST + 3 * ACROSS + SECOND + SOFT)
    assert found.weights == Counts(full=4 * WEIGHTS)
    assert (found.casts, found.assumptions, found.flops.share) == ((), (), 0.0)


# As onnxruntime.transformers.float16 writes it with Exp and Softmax blocked and keep_io_types: its Casts
# come last, whatever the order of the nodes should be.
ONNXRUNTIME = """g (float[2, 8] x) => (float[2, 4] y)
<float16[8] s, float16[8, 16] w1, float16[16] b1, float16[16, 4] w2> {
  [norm] n = LayerNormalization <axis = -1> (graph_input_cast_0, s)
  [first] h = MatMul (n, w1)
  [bias] hb = Add (h, b1)
  [act] a = Relu (hb)
  [exp] e_cast_to_fp16 = Exp (a_cast_to_fp32)
  [second] z = MatMul (e, w2)
  [soft] graph_output_cast_0_cast_to_fp16 = Softmax (z_cast_to_fp32)
  [graph_input_cast0] graph_input_cast_0 = Cast <to = 10> (x)
  [graph_output_cast0] y = Cast <to = 1> (graph_output_cast_0)
  [a_cast_to_fp32_node] a_cast_to_fp32 = Cast <to = 1> (a)
  [e_cast_to_fp16_node] e = Cast <to = 10> (e_cast_to_fp16)
  [z_cast_to_fp32_node] z_cast_to_fp32 = Cast <to = 1> (z)
  [graph_output_cast_0_cast_to_fp16_node] graph_output_cast_0 = Cast <to = 10> (graph_output_cast_0_cast_to_fp16)
}"""  # noqa: E501 - one node a line


def test_a_model_of_another_converter_is_counted_as_it_stands():
    """Exp and Softmax are float32, the other five nodes half; each Cast moves six bytes a value: x, a, e, z,
    and the result forth and back.
    """
    found = measure(text.unchecked(ONNXRUNTIME))
    assert found.nodes == Counts(half=5, full=2)
    assert found.flops == Counts(half=NORM + FIRST + 2 * ACROSS + SECOND, full=ACROSS + SOFT)
    assert found.weights == Counts(half=2 * WEIGHTS)
    assert (len(found.casts), found.cast_bytes) == (6, 6 * (16 + 32 + 32 + 8 + 8 + 8))
    assert found.nodes.share == 5 / 7


def test_what_onnxruntimes_converter_makes_is_what_stands_above():
    """The text is up to date: the installed converter gives the same numbers."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    made = float16.convert_float_to_float16(
        text.model(NETWORK), keep_io_types=True, op_block_list=["Exp", "Softmax"]
    )
    found, written = measure(made), measure(text.unchecked(ONNXRUNTIME))
    assert found.summary() == written.summary()


def test_our_own_result_is_counted_as_it_stands():
    """The first norm, Exp and Softmax stay float32; n, a, e and z are cast at the boundaries."""
    result = amp_rewrite.rewrite(text.model(NETWORK))
    found = measure(result.model)
    nodes = result.report.nodes
    assert (found.nodes.half, found.nodes.full) == (nodes.half, nodes.full) == (4, 3)
    assert found.flops == Counts(half=FIRST + 2 * ACROSS + SECOND, full=NORM + ACROSS + SOFT)
    assert found.weights == Counts(half=2 * (WEIGHTS - 8), full=4 * 8)
    assert [cast.name for cast in found.casts] == ["n__float16", "a__float32", "e__float16", "z__float32"]
    assert found.cast_bytes == 6 * (16 + 32 + 32 + 8)


LOOP = """g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) <int64 n = {5}, bool go = {1}> {
  y = Loop (n, go, x) <body = b (int64 i, bool cin, float[2, 4] v) => (bool cout, float[2, 4] u) {
    cout = Identity (cin) h = Cast <to = 10> (v) k = Cast <to = 10> (w)
    p = MatMul (h, k) u = Cast <to = 1> (p) }> }"""
COUNTED = {
    "a node with half data and float32 statistics is mixed": (
        """g (float16[1, 2, 4, 4] x) => (float16[1, 2, 4, 4] y)
        <float[2] s, float[2] b, float[2] m, float[2] v> { y = BatchNormalization (x, s, b, m, v) }""",
        {"nodes": Counts(mixed=1), "flops": Counts(mixed=2 * 32)},
    ),
    "a port that the schema nails to float32 does not count beside others": (
        "g (float16[1, 1, 2, 2] x, float[4] s) => (float16[a, b, c, d] y) { y = Resize (x, , s) }",
        {"nodes": Counts(half=1)},
    ),
    "alone it does": (
        "g (float[1, 6, 4] b, float[1, 2, 6] s) => (int64[n, 3] y) { y = NonMaxSuppression (b, s) }",
        {"nodes": Counts(full=1)},
    ),
    "what is empty does not count": (
        """g (float16[1, 1, 2, 2] x, int64[4] z) => (float16[a, b, c, d] y, float16[a, b, c, d] u)
        <float[0] regions = {}> {
          empty = Constant <value = float[0] {}> ()
          y = Resize (x, empty, , z) u = Resize (x, regions, , z) }""",
        {"nodes": Counts(half=2, other=1)},
    ),
    "nor do omitted outputs": (
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float16[2, 8] x, float16[8] s) => (float16[2, 8] y, float16[2, 8] z) {
          y, , , z = com.microsoft.SkipSimplifiedLayerNormalization (x, x, s) }""",
        {"nodes": Counts(half=1)},
    ),
    "conversions and quantised arithmetic are outside the shares": (
        """g (float[3, 4] x, uint8[4, 5] w) => (float[3, 5] y) <float s = {0.5}, uint8 z = {0}> {
          q = QuantizeLinear (x, s, z) p = QLinearMatMul (q, s, z, w, s, z, s, z)
          d = DequantizeLinear (p, s, z) y = Relu (d) }""",
        {"nodes": Counts(full=1, other=3), "flops": Counts(full=15, other=12 + 2 * 3 * 4 * 5 + 15)},
    ),
    "floats of eight bits are storage": (
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float16[3, 4] x) => (float16[3, 5] y) <float8e4m3fn[4, 5] w, float16 s> {
          d = DequantizeLinear (w, s) y = MatMul (x, d) }""",
        {"nodes": Counts(half=1, other=1), "weights": Counts(half=2, other=20)},
    ),
    "Shape reads no floats, and a Constant is a weight": (
        """g (float[3, 4] x) => (int64[2] s, float[3, 4] y) {
          s = Shape (x) two = Constant <value_float = 2.0> () y = Mul (x, two) }""",
        {"nodes": Counts(full=1, other=2), "weights": Counts(full=4)},
    ),
    "a weight that only Casts to half read is half": (
        """g (float16[3, 4] x) => (float16[3, 5] y) <float[4, 5] w> {
          h = Cast <to = 10> (w) y = MatMul (x, h) }""",
        {"weights": Counts(half=80)},
    ),
    "with another reader it is float32": (
        """g (float16[3, 4] x) => (float16[3, 5] y, float[4, 5] r) <float[4, 5] w> {
          h = Cast <to = 10> (w) y = MatMul (x, h) r = Relu (w) }""",
        {"weights": Counts(full=80)},
    ),
    "a body counts once, its FLOPs and Casts as often as it runs": (
        LOOP,
        {"nodes.half": 1, "flops.half": 5 * 64, "cast_bytes": 5 * 6 * 32},
    ),
    "a call counts as the body of its function": (FUNCTIONS, {"nodes": Counts(full=2)}),
    "integers have no share": (
        "g (int64[2] x) => (int64[2] y) { y = Add (x, x) }",
        {"nodes": Counts(other=1), "nodes.share": None},
    ),
}


@pytest.mark.parametrize(("source", "expected"), COUNTED.values(), ids=COUNTED)
def test_what_counts(source, expected):
    """Nodes, FLOPs and bytes of weights by precision, as counted by hand."""
    found = measure(text.unchecked(source))
    assert {what: attrgetter(what)(found) for what in expected} == expected


def test_what_was_assumed_is_said():
    """Open dimensions, data-dependent trip counts and branches, and unknown operators are reported."""
    found = measure(
        text.unchecked(
            """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
            g (float[batch, 4] x, bool c, int64 n) => (float[batch, 4] y) {
              [magic] m = mine.Magic (x)
              [choice] b = If (c) <then_branch = t () => (a) { a = Relu (m) },
                                   else_branch = e () => (a) { a = Exp (x) }>
              [while] y = Loop (n, c, x) <body = w (int64 i, bool k, float[batch, 4] v)
                => (bool l, float[batch, 4] u) { l = Identity (k) u = Neg (v) }>
            }"""
        )
    )
    one, two, three, four = found.assumptions
    assert one == "open dimensions count as 64 (batch); --dim NAME=SIZE sets them"
    assert "bodies of 1 node" in two
    assert "Loop 'while'" in two
    assert "If 'choice'" in three
    assert "mine:Magic 'magic'" in four
    assert [part.name for part in found.unknown] == ["magic"]


def test_rows_add_up_to_the_whole():
    """The counts by operator add up to the totals; most FLOPs first."""
    found = measure(text.unchecked(ONNXRUNTIME))
    assert [row.operator for row in found.rows][:3] == ["MatMul", "LayerNormalization", "Softmax"]
    for what in ("half", "full", "mixed", "other"):
        assert sum(getattr(row.nodes, what) for row in found.rows) == getattr(found.nodes, what)
        assert sum(getattr(row.flops, what) for row in found.rows) == getattr(found.flops, what)
    assert json.loads(json.dumps(found.to_json()))["flops"]["half"] == found.flops.half


def test_only_casts_between_half_and_float32_are_casts():
    """Casts from integers, to the same type, and between wide floats do not count."""
    found = measure(
        text.model(
            """g (int64[2] i, float[2] x) => (float16[2] a, float[2] b, double[2] c, float16[2] d) {
              a = Cast <to = 10> (i)
              b = Cast <to = 1> (x)
              c = Cast <to = 11> (x)
              d = Cast <to = 10> (x)
            }"""
        )
    )
    assert [(cast.name, cast.before, cast.after, cast.moved) for cast in found.casts] == [
        ("d", "float32", "float16", 12)
    ]


def test_the_model_is_not_changed(tmp_path):
    """Neither an object nor a file is changed; an invalid model is a ModelError."""
    proto = text.unchecked(ONNXRUNTIME)
    before = proto.SerializeToString(deterministic=True)
    measure(proto)
    assert proto.SerializeToString(deterministic=True) == before
    with pytest.raises(ModelError, match="no such file"):
        measure(tmp_path / "none.onnx")
    with pytest.raises(OptionError, match="no open dimension"):
        measure(proto, {"batch": 2})


def test_a_model_at_a_path_keeps_its_weights_outside(tmp_path):
    """External data is counted by its size."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(NETWORK), path, save_as_external_data=True, location="data", size_threshold=0)
    assert measure(path).weights == Counts(full=4 * WEIGHTS)


@pytest.mark.parametrize(
    "name",
    ["bert_tiny_qa.legacy", "silero_vad_v6", "yolox_nano", "llama_tiny_ort_fused", "swin2sr_x2.legacy"],
)
def test_a_report_counts_the_nodes_that_coverage_counts(name):
    """Of the result: without Casts, Shapes, empty inputs and ports of a fixed type; bodies included."""
    result = amp_rewrite.rewrite(real_models.path(name).read_bytes())
    reported, counted = result.report.nodes, measure(result.model).nodes
    assert (reported.half, reported.mixed, reported.full) == (counted.half, counted.mixed, counted.full)
