"""The shapes that onnx infers, in the result."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from amp_rewrite import Options, pipeline, rewrite
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import shape_inference
from amp_rewrite.preparing import value_shapes
from amp_rewrite.process import worker
from tests import text

PRODUCT = """g (float[n,4] x) => (float[n,4] y) <float[4,4] w> {
    h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, w) }"""


def inferred(proto):
    """The shapes of the values that nodes make, in all graphs, as text."""
    model = loading.load(proto).model
    value_shapes.infer_shapes(model, shape_inference.types(model))
    made = (value for node in model.graph.all_nodes() for value in node.outputs)
    return {value.name: str(value.shape) for value in made}


def declared(proto):
    """The element types and dimensions that the value_info of a model declares."""
    names = onnx.TensorProto.DataType.Name
    return {
        info.name: (
            names(info.type.tensor_type.elem_type),
            [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim],
        )
        for info in proto.graph.value_info
    }


def test_the_result_has_them():
    """Each value has its shape in the result, with the type that it has there; Casts as what they read."""
    made = pipeline.rewrite(text.model(PRODUCT)).model
    found = declared(made)
    assert found["x__float16"] == ("FLOAT16", ["n", 4])
    assert found["h"] == found["r"] == found["y__float16"] == ("FLOAT16", ["n", 4])


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([2, 3, 4], "[2,3,4]"),
        (["batch", 3, 4], "[2,3,4]"),
        ([None, None, None], "[2,3,4]"),
        ([2, 3, 5], "[2,3,4]"),  # contradicted
        ([24], "[2,3,4]"),
    ],
)
def test_what_is_declared(said, found):
    """What is right stays, what is open is filled, and what is wrong is replaced, and misleads nobody."""
    proto = text.unchecked(
        "g (float[2,3,4] x) => (float[a,b,c] y) { h = Relu (x)  k = Exp (h)  y = Neg (k) }"
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h", 1, said))
    shapes = inferred(proto)
    assert shapes["h"] == shapes["k"] == found


OPEN_WIDTH = """<ir_version: 11, opset_import: ["" : 23]>
    g (float[2,4,k] x, float[2,2,3,2] p, float[0,3] e) => (float[a,b,c] y) {
    h, key, value = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x, , p, p)
    r = Relu (e)  y = Neg (h) }"""
FUSED = """g (float[n,4] x) => (float[n,4] y) <float[4] w, float[4,6] v> {{
    h, m, d, s = com.microsoft.SkipLayerNormalization (x, x, w)  b = com.microsoft.{} (h, w)
    p = MatMul (b, v)  q = MatMul (s, v)  t = Add (p, q)  z = ReduceSum <keepdims = 0> (t)
    y = Add (x, z) }}"""
SLICED = "g (float[n,4] x, int64[1] s) => (float[{}] y) {{ h = Slice (x, s, s)  y = Relu (h) }}"
PART = """<ir_version: 5, opset_import: ["": {}]> g (float[n,4] x) => (float[a,b] y)
    <int64[1] s = {{0}}, int64[1] e = {{2}}> {{ h = Slice (x, s, e, s)  y = Relu (h) }}"""
MORE = "g (float[n,t,4] x, int64[n,t] ids) => (y) <float[4,12] qkv> {{ {}  y = Relu (h) }}"
FUSED_SHAPES = {"h": "[n,4]", "s": "[n,4]", "b": "[n,4]", "t": "[n,6]"}
SHAPES = {
    "an open dimension keeps its name": (
        "g (float[2,n] x, int64[1] s) => (y) { h = Reshape (x, s)  y = Neg (h) }",
        {"h": ["all"]},
        {"h": "[all]"},
    ),
    # they tell a runtime which sizes are the same, and never reach an output that has no name of its own
    "names that onnx makes up": (SLICED.format("a,b"), {}, {"h": "[unk__0,unk__1]"}),
    "an output without a name": (SLICED.format("?,4"), {}, {"h": "[None,None]"}),
    # a runtime would store the part where the whole has room; onnx says so of Slice at opset 10
    "a part has not the name of the whole": (PART.format(10), {}, {"h": "[None,4]"}),
    "a part since opset 11": (PART.format(11), {}, {"h": "[unk__0,4]"}),
    # where onnx inferred the model once: now it makes up the same names for other sizes
    "names that were made up before": (
        """g (float[n,4] x, int64[1] s, int64[1] t) => (float[a,b] y, float[c,d] z) {
            h = Slice (x, s, s)  k = Relu (h)  m = com.microsoft.Any (x)  l = Slice (x, t, t)
            y = Relu (k)  z = Relu (l) }""",
        {"h": ["unk__2", "unk__3"], "m": ["unk__2", "unk__3"]},
        {"h": "[unk__0,unk__1]", "k": "[unk__0,unk__1]", "m": "[None,None]", "l": "[unk__2,unk__3]"},
    ),
    "an unknown operator is believed": (
        "g (float[2] x) => (y) { h = com.microsoft.Anything (x)  k = Relu (h)  y = Neg (k) }",
        {"h": [7]},
        {"k": "[7]"},
    ),
    # what says more than the first input of an operator of onnxruntime
    "a declared FastGelu": (
        """g (float[n] u, int64[k] s) => (y)
            { x = Reshape (u, s)  h = com.microsoft.FastGelu (x) y = Neg (h) }""",
        {"h": [7]},
        {"h": "[7]"},
    ),
    # values behind what its optimiser fuses have shapes, as they had before
    "BiasGelu": (FUSED.format("BiasGelu"), {}, FUSED_SHAPES),
    "FastGelu": (FUSED.format("FastGelu"), {}, FUSED_SHAPES),
    # attention and products have the shape that they document, where all that it depends on is known
    **{
        line: (
            MORE.format(f"{'h, m' if line.startswith('Embed') else 'h'} = com.microsoft.{line}"),
            {},
            {"h": shape},
        )
        for line, shape in {
            "Attention <num_heads = 2> (x, qkv)": "[n,t,4]",
            "Attention <num_heads = 1, qkv_hidden_sizes = [3, 3, 6]> (x, qkv)": "[n,t,6]",
            "EmbedLayerNormalization (ids, ids, qkv, qkv)": "[n,t,12]",
            "FusedMatMul <transB = 1, alpha = 0.5> (x, x)": "[n,t,t]",
            "FusedMatMul <transA = 1> (x, x)": "[n,4,4]",
            "FusedMatMul <transBatchA = 1> (x, x)": "None",
            "GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (x, x, x)": "[n,t,4]",
            "GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (x)": "None",
            "Attention (x)": "None",
        }.items()
    },
    "shapes that are computed from shapes": (
        """g (float[2,3,4] x) => (float[a,b] y)
            <int64[1] zero = {0}, int64 one = {1}, int64[1] rest = {-1}> {
            s = Shape (x)  d = Gather (s, one)  u = Unsqueeze (d, zero)  c = Concat <axis=0> (u, rest)
            h = Reshape (x, c)  y = Relu (h) }""",
        {},
        {"h": "[3,8]"},
    ),
    # some of them are wrong, and a runtime would refuse the result
    "shapes that contradict each other": (
        "g (float[2,3] x) => (float[a,b] y) { h = Relu (x)  y = MatMul (h, x) }",
        {},
        {"h": "None"},
    ),
    "shapes that do not": (
        "g (float[2,3] x) => (float[a,b] y) { h = Relu (x)  k = Neg (h) y = Sub (h, k) }",
        {},
        {"h": "[2,3]"},
    ),
    # onnx infers 0 of open sizes, as for the width behind an Attention
    "no size is inferred to be 0": (OPEN_WIDTH, {}, {"h": "[2,4,None]", "r": "[None,3]"}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_inferred(name):
    """What onnx infers, corrected where it is known to be wrong, with what is declared of other operators."""
    source, said, expected = SHAPES[name]
    proto = text.unchecked(source)
    for value, dims in said.items():
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(value, 1, dims))
    shapes = inferred(proto)
    assert {value: shapes[value] for value in expected} == expected


def test_what_is_counted_in_a_branch_has_no_made_up_names():
    """Nor what a branch reads of it, and gives."""
    proto = text.unchecked(
        """g (float[n] x, bool b, int64[1] s) => (float[a] y) {
            k = Slice (x, s, s) c = NonZero (x) m = ReduceMax <axes = [0], keepdims = 0> (c)
            i = If (b) <then_branch = t () => (int64[?] p) { p = Neg (m) },
                        else_branch = e () => (int64[?] q) { q = Shape (x) }>
            f = Cast <to = 1> (i) j = Neg (f) l = Neg (k) z = Add (j, l) y = Abs (z) }"""
    )
    shapes = inferred(proto)
    assert "unk__" in shapes["l"]
    assert not [name for name in "cmifj" if "unk__" in shapes[name]]


DETECTED = """g (float[n,4] x) => (float[a,b] y) <float[4,4] w, float least = {0.5}, int64[1] none = {0},
    int64[1] last = {1}, int64[1] two = {2}, int64[1] four = {4}, int64 zero = {0}, int64 one = {1}> {
    p = MatMul (x, w) s = Slice (p, none, last, last) score = Squeeze (s, last) found = Greater (score, least)
    at = NonZero (found) row = Squeeze (at, none) q = Gather (p, row)
    l = Slice (q, none, two, last) r = Slice (q, two, four, last)
    u = Unsqueeze (l, two) v = Unsqueeze (r, two) c = Concat <axis = 2> (u, v)
    s0 = Shape (q) n0 = Gather (s0, zero) n1 = Gather (s0, one) d0 = Unsqueeze (n0, none)
    d1 = Unsqueeze (n1, none) to = Concat <axis = 0> (d0, d1) y = Reshape (c, to) }"""
"""Boxes of what was found, put together as detectors do."""


@pytest.mark.parametrize(("value", "found"), [(1, (3, 4)), (0, (0, 4))])
def test_what_finds_nothing_runs(value, found):
    """onnxruntime reshapes to [0, -1] where it knows that a size stays, which fails where that is 0."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = text.model(DETECTED)
    (weights,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    weights.CopyFrom(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    made = pipeline.rewrite(model).model.SerializeToString()
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    (boxes,) = session.run(None, {"x": np.full((3, 4), value, np.float32)})
    assert boxes.shape == found


def test_in_bodies():
    """Values of a body have shapes, though another body calls a value of its own the same."""
    proto = text.model(
        """g (float[2,4] x, bool c) => (float[a,b] y) <float[4,3] w, float[4,5] v> {
            y = If (c) <then_branch = t () => (float[2,3] p) { h = MatMul (x, w)  p = Relu (h) },
                        else_branch = e () => (float[2,5] q) { h = MatMul (x, v)  q = Relu (h) }> }"""
    )
    model = loading.load(proto).model
    value_shapes.infer_shapes(model, shape_inference.types(model))
    found = [str(n.outputs[0].shape) for n in model.graph.all_nodes() if n.op_type == "MatMul"]
    assert found == ["[2,3]", "[2,5]"]


@pytest.mark.parametrize(("sides", "found"), [("", "None"), ("<onesided = 1>", "[2,7,33,2]")])
def test_a_spectrum_has_the_sides_that_it_has(sides, found):
    """onnx takes an STFT that says nothing of sides for one with two, and an open batch for an empty one."""
    source = f"""g (float[2,256,1] x) => (float[a,b,c] y) <int64 step = {{32}}, int64 size = {{64}}> {{
        s = STFT {sides} (x, step, , size)  t = Mul (s, s)  e = ReduceMax <axes = [-1], keepdims = 0> (t)
        y = MatMul (e, w) }}"""
    proto, open_batch = text.unchecked(source), text.unchecked(source.replace("float[2,", "float[n,"))
    for made in (proto, open_batch):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((33, 4), np.float32), "w"))
    assert inferred(proto)["s"] == found
    text.agree(proto, pipeline.rewrite(proto).model)
    assert inferred(open_batch)["s"] == "None"


@pytest.mark.parametrize(("inputs", "found"), [("h", "[2,3]"), ("h, one", "None")])
def test_parts_without_their_axis(inputs, found):
    """onnx infers the axis that onnxruntime drops where a size is given, as PyTorch's exporter does."""
    proto = text.unchecked(
        f"""g (float[2,4,3] x) => (float[a,b] y) <int64 one = {{1}}, int64 i = {{0}}> {{
        h = Neg (x)  parts = SplitToSequence <axis = 1, keepdims = 0> ({inputs})  p = SequenceAt (parts, i)
        r = Relu (p)  y = MatMul (r, w) }}"""
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    assert inferred(proto)["p"] == found
    text.agree(proto, pipeline.rewrite(proto).model)


def test_where_onnx_fails(monkeypatch):
    """A model that onnx cannot infer is rewritten all the same."""
    monkeypatch.setattr(worker, "call", lambda *_, **__: None)
    assert inferred(text.model(PRODUCT))["h"] == "None"


def test_a_very_large_model_is_left_alone(monkeypatch):
    """Above a number of nodes, shapes are not inferred."""
    monkeypatch.setattr(value_shapes, "MOST_NODES", 2)
    assert inferred(text.model(PRODUCT))["h"] == "None"


@pytest.mark.parametrize("target", ["any", "onnxruntime-cuda", "tensorrt"])
def test_shapes_behind_a_cast_of_stored_scales_are_proved(target):
    """The empty scales of a Resize are also its region of interest, which is half: a Cast is between."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]> g (float[1,2,4,4] x) => (float[1,2,8,8] y)
        <float[0] r = {}, int64[2] c = {8, 8}, int64[1] b = {0}, int64[1] e = {2}, float[2,2,1,1] w> {
          a = Conv (x, w) s = Shape (a) n = Slice (s, b, e) z = Concat <axis = 0> (n, c)
          h = Resize <mode = "linear"> (a, r, r, z) y = Relu (h) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w"))
    result = rewrite(model, Options(level="unsafe-force-all", target=target)).model
    assert "h" in {info.name for info in result.graph.value_info}
