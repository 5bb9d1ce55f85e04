"""Inputs and outputs of a model: their names, types and what is declared of them."""

from functools import partial

import numpy as np
import pytest
from onnx import TensorProto

from amp_rewrite import rewrite
from amp_rewrite.policy.options import IOTypes, Options
from tests.text import becomes, model, rewritten, stored, unchecked

HALF_BORDERS = Options(io=IOTypes.HALF)

OUTPUTS = {
    # The Cast at the end has the output's name; what is half inside is called after its type.
    "an output in half is renamed inside": partial(
        becomes,
        "g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { [m] y = MatMul (x, w) }",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [m] y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # Readers in half take the half value, readers in float32 share the output's Cast.
    "an output that others read": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z, float[4,4] u) <float[4,4] w> {
            y = MatMul (x, w)
            z = Exp (y)
            u = MatMul (y, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z, float[4,4] u) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (y)
            u__float16 = MatMul (y__float16, w)
            [u__float32] u = Cast <to = 1> (u__float16)
        }""",
        close=3e-2,
    ),
    # What goes through a model untouched stays untouched, under its name and in its type.
    "an output that is also an input": partial(
        becomes,
        "g (float[4,4] x) => (float[4,4] x, float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }",
        """g (float[4,4] x) => (float[4,4] x, float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # Both places get the one Cast.
    "the same value twice among the outputs": partial(
        becomes,
        "g (float[4,4] x) => (float[4,4] y, float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # An initializer that is an output and that half holds exactly: one half tensor and one Cast.
    "a stored output that half holds": partial(
        becomes,
        "g (float[4] x) => (float y, float[4] w) <float[4] w = {1, 2, 3, 4}> { y = MatMul (x, w) }",
        """g (float[4] x) => (float y, float[4] w) <float16[4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float32] w = Cast <to = 1> (w__float16)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
}


@pytest.mark.parametrize("holds", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_keep_name_and_type(holds):
    """An output of the model keeps its name and type, whatever makes it and whoever else reads it."""
    holds()


def test_a_stored_output_that_half_rounds():
    """An initializer that is an output keeps its numbers; those who read it in half get a second one."""
    result = becomes(
        "g (float[4] x) => (float y, float[4] w) <float[4] w = {0.1, 0.2, 0.3, 0.4}> { y = MatMul (x, w) }",
        """g (float[4] x) => (float y, float[4] w) <float[4] w, float16[4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )
    assert stored(result.model)["w"].tolist() == np.float32([0.1, 0.2, 0.3, 0.4]).tolist()


HALF_IO = {
    # With half inputs and outputs float32 inputs and outputs become half; `keep_io` names those that do not.
    "borders in half save those that are kept": partial(
        becomes,
        """g (float[4,4] x, float[4,4] e, int64 n) => (float[4,4] y, float[4,4] z, float[4,4] u)
        <float[4,4] w> { y = MatMul (x, w) z = Exp (e) u = Exp (x) }""",
        """g (float[4,4] x, float16[4,4] e, int64 n) => (float16[4,4] y, float16[4,4] z, float[4,4] u)
        <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [e__float32] e__float32 = Cast <to = 1> (e)
            y = MatMul (x__float16, w)
            z__float32 = Exp (e__float32)
            [z__float16] z = Cast <to = 10> (z__float32)
            u = Exp (x)
        }""",
        Options(io=IOTypes.HALF, keep_io=("x", "u")),
    ),
    # An input that is an output has one type in both places.
    "half inputs and outputs of what goes straight through": partial(
        becomes,
        "g (float[4,4] x) => (float[4,4] x, float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }",
        """g (float16[4,4] x) => (float16[4,4] x, float16[4,4] y) <float16[4,4] w> {
            y = MatMul (x, w)
        }""",
        HALF_BORDERS,
    ),
    # Only the model's own inputs are its borders, not those of a body that nobody here can read.
    "half inputs and outputs leave the inputs of foreign bodies": partial(
        becomes,
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4,4] x) => (float[4,4] y) {
            y = my.Repeat (x) <body = b (float[4,4] s) => (float[4,4] t) { t = MatMul (s, s) }>
        }""",
        """g (float16[4,4] x) => (float16[4,4] y) {
            [x__float32] x__float32 = Cast <to = 1> (x)
            y__float32 = my.Repeat (x__float32) <body = b (float[4,4] s) => (float[4,4] t) {
                t = MatMul (s, s)
            }>
            [y__float16] y = Cast <to = 10> (y__float32)
        }""",
        HALF_BORDERS,
        runs=False,
    ),
}


@pytest.mark.parametrize("holds", HALF_IO.values(), ids=HALF_IO)
def test_inputs_and_outputs_in_half(holds):
    """With `io` half the model's own float32 inputs and outputs become half, and nothing else does."""
    holds()


def test_what_callers_know_of_an_output_stays_with_it():
    """An output keeps its shape, its text, its metadata and its quantisation annotation."""
    proto = model("g (float[N,4] x) => (float[N,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    proto.graph.output[0].doc_string = "the answer"
    proto.graph.output[0].metadata_props.add(key="unit", value="metres")
    annotation = proto.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    after = rewritten(proto).model
    assert after.graph.output[0] == proto.graph.output[0]
    inside = next(info for info in after.graph.value_info if info.name == "y__float16")
    assert (inside.doc_string, len(inside.metadata_props)) == ("", 0)
    assert set(map(str, after.graph.quantization_annotation)) == {str(annotation)}


COUNTS = {
    "to a size": "m = ReduceMax <keepdims = 0> (n) q = Div (n, m) k = Cast <to = 7> (q) z = Expand (y, k)",
    "an index": "k = Cast <to = 7> (n) z = Gather (y, k)",
    "the scales of a Resize": 'z = Resize <mode = "nearest"> (y, , n)',
    "a comparison and an integer": "c = Greater (n, h) k = Cast <to = 7> (n) z = Gather (y, k)",
}
DATA = {
    "itself an output": "k = Cast <to = 7> (n) t = Gather (y, k) z = Identity (n)",
    "also a factor": "k = Cast <to = 7> (n) t = Gather (y, k) z = Mul (y, n)",
    "quantised": "k = QuantizeLinear (n, h) d = DequantizeLinear (k, h) z = Mul (y, d)",
    "an argument of a layer": "t = MatMul (y, n) k = ArgMax (t) z = Cast <to = 1> (k)",
    "unused": "z = Relu (y)",
}


@pytest.mark.parametrize("body", [*COUNTS.values(), *DATA.values()], ids=[*COUNTS, *DATA])
def test_an_input_that_becomes_sizes_or_integers_keeps_its_type(body):
    """Half would make 2731 to 2732; what is data as well becomes half."""
    text = f"""g (float[4,4] x, float[4] n) => (float[a,b] y, float z) <float[4,4] w, float h = {{2.0}}> {{
        y = MatMul (x, w) {body} }}"""
    graph = rewrite(unchecked(text), HALF_BORDERS).model.graph
    types = {entry.name: entry.type.tensor_type.elem_type for entry in graph.input}
    half, full = TensorProto.FLOAT16, TensorProto.FLOAT
    assert types == {"x": half, "n": full if body in COUNTS.values() else half}
