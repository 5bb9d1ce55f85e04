"""What a rewrite leaves: where Casts stand, how they are called, what outputs and stored tensors become."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Borders, Options, Pins
from amp_rewrite.rewriting import editing
from tests.text import agree, becomes, model, nodes, printed, rewritten, run, stays, stored, types

HALF_BORDERS = Options(borders=Borders.HALF)
ANY_TARGET = Options(target=targets.ANY)
INEXACT = "{0.1, 0.2, 0.3, 0.4}"

# ---- Casts


def test_one_cast_serves_all_readers_of_a_value():
    """A Cast stands right behind its value's maker, and every reader of that type shares it."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            [a] e = Exp (x)
            [b] f = Neg (e)
            [c] p = MatMul (e, w)
            [d] q = MatMul (e, p)
            [e] y = Exp (q)
            [f] r = Exp (f)
            [g] z = Add (y, r)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [a] e = Exp (x)
            [e__float16] e__float16 = Cast <to = 10> (e)
            [b] f = Neg (e)
            [c] p = MatMul (e__float16, w)
            [d] q = MatMul (e__float16, p)
            [q__float32] q__float32 = Cast <to = 1> (q)
            [e] y = Exp (q__float32)
            [f] r = Exp (f)
            [g] z = Add (y, r)
        }""",
        runs=False,  # exponentials of exponentials: every rounding shows
    )


def test_inputs_are_cast_at_the_front_in_their_order():
    """Casts of inputs come first, in the order of the inputs, whatever the order of the readers."""
    becomes(
        """g (float[4,4] a, float[4,4] b, float[4,4] c) => (float[4,4] y) {
            s = Shape (a)
            p = MatMul (c, b)
            y = MatMul (p, a)
        }""",
        """g (float[4,4] a, float[4,4] b, float[4,4] c) => (float[4,4] y) {
            [a__float16] a__float16 = Cast <to = 10> (a)
            [b__float16] b__float16 = Cast <to = 10> (b)
            [c__float16] c__float16 = Cast <to = 10> (c)
            s = Shape (a)
            p = MatMul (c__float16, b__float16)
            y__float16 = MatMul (p, a__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_readers_in_branches_share_the_cast_outside():
    """What branches read of the graph around them is cast there, once, behind its maker."""
    becomes(
        """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
            e = Exp (x)
            y = If (c) <
                then_branch = t () => (float[4,4] p) { p = MatMul (e, w) },
                else_branch = f () => (float[4,4] q) { r = MatMul (w, e) q = Add (r, w) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y) <float16[4,4] w> {
            e = Exp (x)
            [e__float16] e__float16 = Cast <to = 10> (e)
            y__float16 = If (c) <
                then_branch = t () => (float16[4,4] p) { p = MatMul (e__float16, w) },
                else_branch = f () => (float16[4,4] q) { r = MatMul (w, e__float16) q = Add (r, w) }
            >
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_a_loop_body_reads_the_cast_outside():
    """A value from outside is cast once before the loop, not once per turn; the body's own inside it."""
    becomes(
        """g (float[4,4] x, int64 n, bool c) => (float[k,4,4] ys) {
            e = Exp (x)
            ys = Loop (n, c) <body = b (int64 i, bool ci) => (bool co, float[4,4] u) {
                co = Identity (ci)
                f = MatMul (e, e)
                u = Exp (f)
            }>
        }""",
        """g (float[4,4] x, int64 n, bool c) => (float[k,4,4] ys) {
            e = Exp (x)
            [e__float16] e__float16 = Cast <to = 10> (e)
            ys = Loop (n, c) <body = b (int64 i, bool ci) => (bool co, float[4,4] u) {
                co = Identity (ci)
                f = MatMul (e__float16, e__float16)
                [f__float32] f__float32 = Cast <to = 1> (f)
                u = Exp (f__float32)
            }>
        }""",
        runs=False,  # exponentials of exponentials
    )


def test_an_input_of_a_body_is_cast_at_the_front_of_the_body():
    """Where a body's input keeps its type, its Cast is the first node of that body."""
    result = rewritten(
        model(
            """g (seq(float[4,4]) x) => (seq(float[4,4]) y) <float[4,4] w> {
                y = SequenceMap (x) <body = b (float[4,4] i) => (float[4,4] h) {
                    s = Shape (i)
                    m = MatMul (i, w)
                    h = Reshape (m, s)
                }>
            }"""
        )
    )
    assert nodes(result.model) == [
        "y = SequenceMap(x)",
        "i__float16 = Cast(i)",
        "s = Shape(i)",
        "m = MatMul(i__float16, w)",
        "h = Reshape(m, s)",
        "h__float32 = Cast(h)",
    ]


def test_names_that_are_taken_are_numbered():
    """A Cast's name and its value's are new in all graphs: those of branches count as well."""
    becomes(
        """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            [x__float16] x__float16 = Exp (x)
            y = MatMul (x, w)
            z = If (c) <
                then_branch = t () => (float[4,4] y__float16) {
                    [y__float32] y__float16 = Exp (x__float16)
                },
                else_branch = f () => (float[4,4] x__float16_2) { x__float16_2 = Exp (x) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16_2] x__float16_3 = Cast <to = 10> (x)
            [x__float16] x__float16 = Exp (x)
            y__float16_2 = MatMul (x__float16_3, w)
            [y__float32_2] y = Cast <to = 1> (y__float16_2)
            z = If (c) <
                then_branch = t () => (float[4,4] y__float16) {
                    [y__float32] y__float16 = Exp (x__float16)
                },
                else_branch = f () => (float[4,4] x__float16_2) { x__float16_2 = Exp (x) }
            >
        }""",
    )


def test_weights_of_a_body_that_are_called_as_others_outside():
    """They get names of their own: onnx's type inference would mistake one for the other."""
    becomes(
        """g (float[4,4] x, bool c) => (float[4,4] y) {
            h = Exp (x)
            w = Exp (h)
            y = If (c) <
                then_branch = t () => (float[4,4] p) <float[4,4] w> { p = MatMul (h, w) },
                else_branch = e () => (float[4,4] q) { q = Neg (h) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y) {
            h = Exp (x)
            [h__float16] h__float16 = Cast <to = 10> (h)
            w = Exp (h)
            y__float16 = If (c) <
                then_branch = t () => (float16[4,4] p) <float16[4,4] w__inner> {
                    p = MatMul (h__float16, w__inner)
                },
                else_branch = e () => (float16[4,4] q) { q = Neg (h__float16) }
            >
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_names_of_stored_tensors_are_taken_too():
    """A stored tensor of the name that a Cast's value would have makes it another."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] x__float16> {
        y = MatMul (x, x__float16)
    }"""
    assert nodes(rewritten(model(text)).model)[0] == "x__float16_2 = Cast(x)"


def test_duplicate_node_names_and_unnamed_nodes_are_no_trouble():
    """Nodes are known by identity: a name that repeats, or is missing, is left as it is."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            [same] a = MatMul (x, w)
            [same] b = Exp (a)
            c = Neg (b)
            y = Neg (c)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [same] a = MatMul (x__float16, w)
            [a__float32] a__float32 = Cast <to = 1> (a)
            [same] b = Exp (a__float32)
            c = Neg (b)
            y = Neg (c)
        }""",
        runs=False,  # onnxruntime refuses two nodes of one name
    )


@pytest.mark.parametrize("name", ["a b", "ümlaut/层:0", "x.1::y", 'quote"d', "x__float16", " "])
def test_odd_names_are_kept(name):
    """Whatever a value is called, its Cast is called so too, with the type behind it."""
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    for old in ("x", "y"):
        _rename(proto, old, f"{name}{old}")
    result = rewritten(proto)
    assert nodes(result.model) == [
        f"{name}x__float16 = Cast({name}x)",
        f"{name}y__float16 = MatMul({name}x__float16, w)",
        f"{name}y = Cast({name}y__float16)",
    ]
    agree(proto, result.model)


def _rename(proto, old, new):
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for info in (*proto.graph.input, *proto.graph.output):
        info.name = new if info.name == old else info.name


# ---- inputs and outputs of the model


def test_an_output_in_half_is_renamed_inside():
    """The Cast at the end has the output's name; what is half inside is called after its type."""
    becomes(
        "g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { [m] y = MatMul (x, w) }",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [m] y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_an_output_that_others_read():
    """Readers in half take the half value, readers in float32 share the output's Cast."""
    becomes(
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
    )


def test_an_output_that_is_also_an_input():
    """What goes through a model untouched stays untouched, under its name and in its type."""
    becomes(
        "g (float[4,4] x) => (float[4,4] x, float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }",
        """g (float[4,4] x) => (float[4,4] x, float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_the_same_value_twice_among_the_outputs():
    """Both places get the one Cast."""
    becomes(
        "g (float[4,4] x) => (float[4,4] y, float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_a_stored_output_that_half_holds():
    """An initializer that is an output and that half holds exactly: one half tensor and one Cast."""
    becomes(
        "g (float[4] x) => (float y, float[4] w) <float[4] w = {1, 2, 3, 4}> { y = MatMul (x, w) }",
        """g (float[4] x) => (float y, float[4] w) <float16[4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float32] w = Cast <to = 1> (w__float16)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_a_stored_output_that_half_rounds():
    """An initializer that is an output keeps its numbers; those who read it in half get a second one."""
    result = becomes(
        f"g (float[4] x) => (float y, float[4] w) <float[4] w = {INEXACT}> {{ y = MatMul (x, w) }}",
        """g (float[4] x) => (float y, float[4] w) <float[4] w, float16[4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )
    assert stored(result.model)["w"].tolist() == np.float32([0.1, 0.2, 0.3, 0.4]).tolist()


def test_borders_in_half_save_those_that_are_kept():
    """With half borders float32 inputs and outputs become half; `keep_io` names those that do not."""
    becomes(
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
        Options(borders=Borders.HALF, keep_io=("x", "u")),
    )


def test_half_borders_of_what_goes_straight_through():
    """An input that is an output has one type in both places."""
    becomes(
        "g (float[4,4] x) => (float[4,4] x, float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }",
        """g (float16[4,4] x) => (float16[4,4] x, float16[4,4] y) <float16[4,4] w> {
            y = MatMul (x, w)
        }""",
        HALF_BORDERS,
    )


def test_half_borders_leave_the_inputs_of_foreign_bodies():
    """Only the model's own inputs are its borders, not those of a body that nobody here can read."""
    becomes(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4,4] x) => (float[4,4] y) {
            y = my.Repeat (x) <body = b (float[4,4] s) => (float[4,4] t) { t = MatMul (s, s) }>
        }""",
        """g (float16[4,4] x) => (float16[4,4] y) {
            [x__float32] x__float32 = Cast <to = 1> (x)
            y__float32 = my.Repeat (x__float32) <body = b (float[4,4] s) => (float[4,4] t__float32) {
                [s__float16] s__float16 = Cast <to = 10> (s)
                t = MatMul (s__float16, s__float16)
                [t__float32] t__float32 = Cast <to = 1> (t)
            }>
            [y__float16] y = Cast <to = 10> (y__float32)
        }""",
        HALF_BORDERS,
        runs=False,
    )


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


# ---- stored tensors


def test_a_stored_tensor_that_only_half_reads():
    """It is converted where it stands, rounded to nearest, under its own name."""
    result = becomes(
        f"g (float[4] x) => (float y) <float[4] w = {INEXACT}> {{ y = MatMul (x, w) }}",
        """g (float[4] x) => (float y) <float16[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )
    expected = np.float16([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(stored(result.model)["w"], expected, strict=True)
    assert (result.report.stored_half, result.report.stored_both) == (1, 0)


BOTH = """g (float[4] x) => (float y, float[4] z) <float[4] w = VALUES> {
    y = MatMul (x, w)
    z = Exp (w)
}"""


def test_a_stored_tensor_that_both_colours_read():
    """Where half would round, both forms are stored."""
    result = becomes(
        BOTH.replace("VALUES", INEXACT),
        """g (float[4] x) => (float y, float[4] z) <float[4] w, float16[4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (w)
        }""",
    )
    held = stored(result.model)
    np.testing.assert_array_equal(held["w__float16"], held["w"].astype(np.float16), strict=True)
    assert (result.report.stored_half, result.report.stored_both) == (0, 1)


def test_a_stored_tensor_that_half_holds_exactly():
    """One half tensor and one Cast give both colours the numbers that they had."""
    becomes(
        BOTH.replace("VALUES", "{1, 2, -0.5, 0.25}"),
        """g (float[4] x) => (float y, float[4] z) <float16[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float32] w__float32 = Cast <to = 1> (w)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (w__float32)
        }""",
    )


def test_a_stored_tensor_of_a_branch():
    """Both forms of a branch's own tensor stand in that branch."""
    proto = model(
        f"""g (float[4] x, bool c) => (float[4] y) {{
            y = If (c) <
                then_branch = t () => (float[4] p) <float[4] w = {INEXACT}> {{
                    q = MatMul (x, w) r = Exp (w) p = Add (q, r)
                }},
                else_branch = f () => (float[4] s) {{ s = Exp (x) }}
            >
        }}"""
    )
    result = rewritten(proto)
    branch = result.model.graph.node[1].attribute[0].g
    assert [tensor.name for tensor in branch.initializer] == ["w", "w__float16"]
    assert not result.model.graph.initializer
    agree(proto, result.model)


def test_an_initializer_that_callers_may_override():
    """From IR 4 on an initializer that is an input keeps its type; readers in half get a Cast."""
    becomes(
        f"""g (float[4] x, float[4] w) => (float y) <float[4] w = {INEXACT}> {{
            y = MatMul (x, w)
        }}""",
        """g (float[4] x, float[4] w) => (float y) <float[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float16] w__float16 = Cast <to = 10> (w)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


OLD = '<ir_version: 3, opset_import: ["" : 8]>'


def test_weights_that_are_inputs_before_ir_4():
    """They are constants: the tensor and the input of its name become half, and callers see no change."""
    result = becomes(
        f"""{OLD} g (float[4] x, float[4] w) => (float y) <float[4] w = {INEXACT}> {{
            y = MatMul (x, w)
        }}""",
        """g (float[4] x, float16[4] w) => (float y) <float16[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )
    assert result.model.ir_version == 3
    assert _inputs(result.model) == ["x"]


def test_both_forms_before_ir_4():
    """The second form is listed as an input too, as IR 3 asks of every initializer."""
    result = becomes(
        f"""{OLD} g (float[4] x, float[4] w) => (float y, float[4] z) <float[4] w = {INEXACT}> {{
            y = MatMul (x, w)
            z = Exp (w)
        }}""",
        """g (float[4] x, float[4] w, float16[4] w__float16) => (float y, float[4] z)
        <float[4] w, float16[4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (w)
        }""",
    )
    assert _inputs(result.model) == ["x"]


def _inputs(proto):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [given.name for given in session.get_inputs()]


def test_signs_survive():
    """What is too small for half becomes a zero of its own sign, and is counted; nothing grows."""
    text = "g (float[4] x) => (float y) <float[4] w> { y = MatMul (x, w) }"
    tiny = np.float32([-1e-9, 1e-9, -1e-30, -0.0])
    result = rewritten(model(text, {"w": tiny}))
    held = stored(result.model)["w"]
    assert held.tolist() == [0.0] * 4
    assert np.signbit(held).tolist() == [True, False, True, True]
    assert result.report.flushed == 3


@pytest.mark.parametrize("above", [0, 1])
def test_large_tensors_are_converted_when_they_are_written(above, monkeypatch):
    """From LAZY_FROM bytes on a tensor is lazy in the result, with the numbers of an eager one."""
    monkeypatch.setattr(editing, "LAZY_FROM", 64 + above)
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    result = rewrite(ir.from_proto(proto))
    tensor = result.model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor) == (not above)
    assert (tensor.dtype, list(tensor.shape), tensor.name) == (ir.DataType.FLOAT16, [4, 4], "w")
    expected = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float16)
    np.testing.assert_array_equal(tensor.numpy(), expected, strict=True)
    agree(proto, ir.to_proto(result.model))


def test_bfloat16_is_named_and_stored_as_such():
    """With bfloat16 the Casts, names and tensors are bfloat16's, rounded to nearest even."""
    result = becomes(
        """g (float[4] x) => (float y) <float[4] w = {1.0, 1.00390625, 1.01171875, 3e38}> {
            y = MatMul (x, w)
        }""",
        """g (float[4] x) => (float y) <bfloat16[4] w> {
            [x__bfloat16] x__bfloat16 = Cast <to = 16> (x)
            y__bfloat16 = MatMul (x__bfloat16, w)
            [y__float32] y = Cast <to = 1> (y__bfloat16)
        }""",
        Options(half=BFLOAT16),
        runs=False,  # no kernels on the CPU
    )
    held = stored(result.model)["w"].astype(np.float32)
    np.testing.assert_allclose(held, np.float32([1.0, 1.0, 1.015625, 3e38]), rtol=2e-3)
    assert held[:3].tolist() == [1.0, 1.0, 1.015625]


# ---- Constant nodes


CONSTANTS = """g (float[4] x) => (float[4] y OUTPUTS) <float[4,4] w> {
    a = Constant <value_float = 0.1> ()
    b = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> ()
    c = Constant <value = float[4] {1, 2, 3, 4}> ()
    m = MatMul (x, w)
    p = Add (m, a)
    q = Mul (p, b)
    y = Sub (q, c)
    READERS
}"""


def test_constant_nodes_in_half():
    """Every attribute that may hold a float becomes a half `value`, and stays one node."""
    result = becomes(
        CONSTANTS.replace("OUTPUTS", "").replace("READERS", ""),
        """g (float[4] x) => (float[4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Constant <value = float16 {11878}> ()
            b = Constant <value = float16[4] {11878,12902,13517,13926}> ()
            c = Constant <value = float16[4] {15360,16384,16896,17408}> ()
            m = MatMul (x__float16, w)
            p = Add (m, a)
            q = Mul (p, b)
            y__float16 = Sub (q, c)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )
    assert result.report.stored_half == 4


def test_constant_nodes_in_both_forms():
    """A second Constant stands behind the first; one that half holds exactly has a Cast instead."""
    becomes(
        CONSTANTS.replace("OUTPUTS", ", float r, float[4] s, float[4] t").replace(
            "READERS", "r = Exp (a) s = Exp (b) t = Exp (c)"
        ),
        """g (float[4] x) => (float[4] y, float r, float[4] s, float[4] t) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Constant <value_float = 0.1> ()
            [a__float16] a__float16 = Constant <value = float16 a__float16 {11878}> ()
            b = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> ()
            [b__float16] b__float16
                = Constant <value = float16[4] b__float16 {11878,12902,13517,13926}> ()
            c = Constant <value = float16[4] {15360,16384,16896,17408}> ()
            [c__float32] c__float32 = Cast <to = 1> (c)
            m = MatMul (x__float16, w)
            p = Add (m, a__float16)
            q = Mul (p, b__float16)
            y__float16 = Sub (q, c)
            [y__float32] y = Cast <to = 1> (y__float16)
            r = Exp (a)
            s = Exp (b)
            t = Exp (c__float32)
        }""",
    )


def test_constants_of_other_types_are_left():
    """Integers and strings are no business of ours."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y, string[2] z) <float[4,4] w> {
            a = Constant <value_ints = [2, 8]> ()
            b = Constant <value = int64[2] {4, 4}> ()
            z = Constant <value_strings = ["p", "q"]> ()
            m = MatMul (x, w)
            n = Reshape (m, a)
            y = Reshape (n, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y, string[2] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Constant <value_ints = [2, 8]> ()
            b = Constant <value = int64[2] {4, 4}> ()
            z = Constant <value_strings = ["p", "q"]> ()
            m = MatMul (x__float16, w)
            n = Reshape (m, a)
            y__float16 = Reshape (n, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        runs=False,  # strings are not compared
    )


# ---- outputs that an attribute types


def test_fills_take_the_colour_of_their_readers():
    """ConstantOfShape says its type by its value, which is float32's zero when it says nothing."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            s = Shape (x)
            a = ConstantOfShape <value = float[1] {2.5}> (s)
            b = ConstantOfShape (s)
            c = ConstantOfShape (s)
            z = Exp (c)
            m = MatMul (x, w)
            n = Add (m, a)
            y = Add (n, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            s = Shape (x)
            a = ConstantOfShape <value = float16[1] {16640}> (s)
            b = ConstantOfShape <value = float16[1] {0}> (s)
            c = ConstantOfShape (s)
            z = Exp (c)
            m = MatMul (x__float16, w)
            n = Add (m, a)
            y__float16 = Add (n, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_eye_like_has_the_type_of_its_input():
    """EyeLike goes without a type, whether it named the old one or took it from its input."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            a = EyeLike (m)
            b = EyeLike <dtype = 1> (m)
            c = Add (m, a)
            y = Add (c, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            a = EyeLike (m)
            b = EyeLike (m)
            c = Add (m, a)
            y__float16 = Add (c, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        ANY_TARGET,
        runs=False,  # no half kernel on the CPU
    )


def test_what_follows_its_input_says_float32_when_that_becomes_half():
    """An EyeLike whose input is half and whose output is not names float32 from then on."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            y = MatMul (x, w)
            [eye] a = EyeLike (y)
            z = Exp (a)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
            [eye] a = EyeLike <dtype = 1> (y__float16)
            z = Exp (a)
        }""",
        ANY_TARGET,
        runs=False,
    )


def test_random_draws_stay():
    """RandomNormalLike takes its input's type: it reads float32, so that the draw stays the same."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            r = RandomNormalLike (m)
            y = MatMul (r, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            r = RandomNormalLike (m__float32)
            [r__float16] r__float16 = Cast <to = 10> (r)
            y__float16 = MatMul (r__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        runs=False,  # two draws differ
    )


def test_a_cast_from_bool_gives_half():
    """A Cast whose readers are all half gives half; one that gives an output of the model does not."""
    becomes(
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] b) <float[4,4] w> {
            a = Cast <to = 1> (k)
            b = Cast <to = 1> (k)
            m = MatMul (x, w)
            n = Mul (m, a)
            y = Mul (n, b)
        }""",
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] b) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Cast <to = 10> (k)
            b = Cast <to = 1> (k)
            [b__float16] b__float16 = Cast <to = 10> (b)
            m = MatMul (x__float16, w)
            n = Mul (m, a)
            y__float16 = Mul (n, b__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_a_cast_with_readers_of_both_colours_stays():
    """A Cast that float32 reads as well keeps its type; what reads half gets a Cast behind it."""
    becomes(
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            a = Cast <to = 1> (k)
            m = MatMul (x, w)
            y = Mul (m, a)
            z = Exp (a)
        }""",
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a = Cast <to = 1> (k)
            [a__float16] a__float16 = Cast <to = 10> (a)
            m = MatMul (x__float16, w)
            y__float16 = Mul (m, a__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (a)
        }""",
    )


# ---- operators with more than one type


def test_layer_normalization_keeps_its_statistics():
    """LayerNormalization in half: X, Scale, B and Y change, Mean and InvStdDev stay float32."""
    becomes(
        """g (float[4,4] x) => (float[4,4] y, float[4,1] mean, float[4,1] dev)
        <float[4,4] w, float[4] s, float[4] b> {
            m = MatMul (x, w)
            y, mean, dev = LayerNormalization (m, s, b)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,1] mean, float[4,1] dev)
        <float16[4,4] w, float16[4] s, float16[4] b> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            y__float16, mean, dev = LayerNormalization (m, s, b)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=5e-2,
    )


def test_resize_keeps_its_scales():
    """Resize in half: X and Y change; the scales are float32 in its schema, and no roi stays no roi."""
    becomes(
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y)
        <float[1,1,1,1] w, float[4] s = {1, 1, 2, 2}> {
            m = Conv (x, w)
            y = Resize <mode = "linear"> (m, , s)
        }""",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s, float16[1,1,1,1] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = Conv (x__float16, w)
            y__float16 = Resize <mode = "linear"> (m, "", s)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_pow_has_two_types():
    """Pow is dangerous and stays, unless it is forced: then base and exponent are free of each other."""
    text = """g (float[4,4] x, int64[4] n) => (float[4,4] y) <float[4,4] w, float e = {1.1}> {
        m = MatMul (x, w)
        [p] p = Pow (m, n)
        [q] y = Pow (p, e)
    }"""
    becomes(
        text,
        """g (float[4,4] x, int64[4] n) => (float[4,4] y) <float e, float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            [p] p = Pow (m__float32, n)
            [q] y = Pow (p, e)
        }""",
    )
    becomes(
        text,
        """g (float[4,4] x, int64[4] n) => (float[4,4] y) <float16 e, float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [p] p = Pow (m, n)
            [q] y__float16 = Pow (p, e)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(pins=Pins(force_half=("p", "q"))),
    )


def test_batch_normalization_stays_in_one_piece():
    """T, T1 and T2 are one type for the default target, whose kernel has but one."""
    becomes(
        """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
        <float[4,4,1,1] w, float[4] s, float[4] b, float[4] m, float[4] v> {
            c = Conv (x, w)
            y = BatchNormalization (c, s, b, m, v)
        }""",
        """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
        <float16[4,4,1,1] w, float16[4] s, float16[4] b, float16[4] m, float16[4] v> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            c = Conv (x__float16, w)
            y__float16 = BatchNormalization (c, s, b, m, v)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_empty_optional_inputs_stay_empty():
    """Clip without a lower bound and LSTM without a bias and lengths keep their gaps; ratio is T1."""
    becomes(
        """g (float[3,1,4] x) => (float[3,1,1,2] y, float[1,1,2] h)
        <float[1,8,4] w, float[1,8,2] r, float[1,1,2] h0, float hi, float ratio> {
            a, b = LSTM <hidden_size = 2> (x, w, r, , , h0)
            c = Clip (a, , hi)
            y, k = Dropout (c, ratio)
            h = Clip (b)
        }""",
        """g (float[3,1,4] x) => (float[3,1,1,2] y, float[1,1,2] h)
        <float16[1,8,4] w, float16[1,8,2] r, float16[1,1,2] h0, float16 hi, float ratio> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            a, b = LSTM <hidden_size = 2> (x__float16, w, r, "", "", h0)
            c = Clip (a, "", hi)
            y__float16, k = Dropout (c, ratio)
            [y__float32] y = Cast <to = 1> (y__float16)
            h__float16 = Clip (b)
            [h__float32] h = Cast <to = 1> (h__float16)
        }""",
    )


def test_onnxruntime_operators_are_known():
    """An operator of onnxruntime's own domain is coloured by onnxruntime's schema."""
    becomes(
        """g (float[1,4,4] x) => (float[1,4,4] y) <float[4,4] w, float[4] s, float[4] b> {
            m = MatMul (x, w)
            n = com.microsoft.SkipLayerNormalization (x, m, s, b)
            y = MatMul (n, w)
        }""",
        """g (float[1,4,4] x) => (float[1,4,4] y) <float16[4,4] w, float16[4] s, float16[4] b> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            n = com.microsoft.SkipLayerNormalization (x__float16, m, s, b)
            y__float16 = MatMul (n, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_unknown_operators_keep_their_types():
    """An operator of a domain that nobody here knows reads and gives float32, as it did."""
    becomes(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            c = my.Thing (m, w)
            y = MatMul (c, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float16[4,4] w__float16> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w__float16)
            [m__float32] m__float32 = Cast <to = 1> (m)
            c = my.Thing (m__float32, w)
            [c__float16] c__float16 = Cast <to = 10> (c)
            y__float16 = MatMul (c__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        runs=False,
    )


def test_what_unknown_operators_give_is_not_guessed():
    """A product of two values that nothing types stays as it is: nobody could cast its operands."""
    result = rewritten(
        model(
            """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
                a = my.Thing (x)
                b = my.Thing (x)
                m = MatMul (a, b)
                y = MatMul (m, w)
            }"""
        )
    )
    assert nodes(result.model)[2:4] == ["m = MatMul(a, b)", "m__float16 = Cast(m)"]


def test_an_operator_that_is_float32_in_its_schema():
    """NonMaxSuppression has no half: its boxes are cast back to float32."""
    becomes(
        """g (float[1,4,4] x, float[1,1,4] s) => (int64[n,3] y) <float[4,4] w, int64 k, float[1] t> {
            m = MatMul (x, w)
            y = NonMaxSuppression (m, s, k, t)
        }""",
        """g (float[1,4,4] x, float[1,1,4] s) => (int64[n,3] y)
        <float16[4,4] w, int64 k, float[1] t> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            y = NonMaxSuppression (m__float32, s, k, t)
        }""",
    )


# ---- what a rewrite must not touch


def test_what_surrounds_the_graph_survives():
    """Versions, producer, domain, texts, metadata, attributes and declared shapes are as they were."""
    proto = model(
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1, "my" : 7],
            producer_name: "me", producer_version: "1.2", domain: "org", model_version: 5,
            doc_string: "a model", metadata_props: ["author" : "someone"]>
        g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,3,3] w> {
            [c] a = Conv <auto_pad = "SAME_UPPER", strides = [1, 1]> (x, w)
            [r] y = LeakyRelu <alpha = 0.25> (a)
        }"""
    )
    proto.graph.doc_string = "a graph"
    proto.graph.node[0].doc_string = "a node"
    proto.graph.node[0].metadata_props.add(key="from", value="layer 1")
    proto.graph.initializer[0].doc_string = "a weight"
    proto.graph.initializer[0].metadata_props.add(key="from", value="checkpoint 3")
    proto.graph.value_info.add().CopyFrom(helper.make_tensor_value_info("a", 1, [1, 1, "H", 4]))
    after = rewritten(proto, Options(metadata=False)).model
    for name in (
        "ir_version opset_import producer_name producer_version domain model_version doc_string "
        "metadata_props"
    ).split():
        assert getattr(after, name) == getattr(proto, name), name
    assert (after.graph.name, after.graph.doc_string) == ("g", "a graph")
    conv = next(node for node in after.graph.node if node.op_type == "Conv")
    for name in ("name", "attribute", "doc_string", "metadata_props"):
        assert getattr(conv, name) == getattr(proto.graph.node[0], name), name
    weight = after.graph.initializer[0]
    assert weight.doc_string == "a weight"
    assert weight.metadata_props == proto.graph.initializer[0].metadata_props
    inside = next(info for info in after.graph.value_info if info.name == "a")
    assert inside == helper.make_tensor_value_info("a", 10, [1, 1, "H", 4])


def test_declared_types_follow():
    """A value_info, in the graph or in a body, says the type that its value has now."""
    proto = model(
        """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w, float[4,4] m> {
            m = MatMul (x, w)
            y = If (c) <
                then_branch = t () => (float[4,4] p) <float[4,4] n> { n = Neg (m) p = Relu (n) },
                else_branch = f () => (float[4,4] q) { q = Exp (m) }
            >
        }"""
    )
    found = types(rewritten(proto).model)
    assert [found[name] for name in ("m", "n", "p", "q")] == ["FLOAT16"] * 3 + ["FLOAT"]


def test_nothing_allowed_nothing_changed():
    """A model without anything to gain comes back as it came, its mask of -1e9 included."""
    stays(
        """g (float[4,4] x, bool[4,4] k) => (float[4,4] y) <float fill = {-1000000000.0}> {
            a = Where (k, x, fill)
            y = Softmax (a)
        }"""
    )


def test_the_original_stays_as_it_is():
    """A model that is handed over as a proto or as an onnx_ir.Model is not changed by its rewrite."""
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    before = proto.SerializeToString(deterministic=True)
    rewritten(proto)
    assert proto.SerializeToString(deterministic=True) == before
    ours = ir.from_proto(proto)
    assert ir.to_proto(rewrite(ours).model) != proto
    text = printed(ir.to_proto(ours))
    assert text == printed(proto)


HASHED = """
import sys
from amp_rewrite.pipeline import rewrite
from tests.test_editing import CONSTANTS
from tests.text import model
text = CONSTANTS.replace("OUTPUTS", ", float r, float[4] s").replace("READERS", "r = Exp (a) s = Exp (b)")
sys.stdout.buffer.write(rewrite(model(text)).model.SerializeToString())
"""


def test_the_result_is_the_same_whatever_the_hash_seed():
    """Two processes with different hash seeds write the same bytes."""
    first, second = (_hashed(seed) for seed in ("1", "2"))
    assert onnx.ModelProto.FromString(first).graph.node
    assert first == second


def _hashed(seed):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", HASHED]
    return subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True).stdout


def test_the_rewritten_model_gives_what_the_original_gave():
    """The helper really runs both: a model with another weight is told apart."""
    pytest.importorskip("onnxruntime")
    text = "g (float[4] x) => (float y) <float[4] w> { y = MatMul (x, w) }"
    one, other = model(text), model(text, {"w": np.float32([9, 9, 9, 9])})
    agree(one, rewritten(one).model)
    with pytest.raises(AssertionError):
        agree(one, rewritten(other).model)
    assert run(one).keys() == {"y"}


@pytest.mark.parametrize(("ir_version", "opset"), [(8, 13), (4, 9), (3, 8)])
def test_a_model_without_the_default_domain_imports_it_for_its_casts(ir_version, opset):
    """Casts need an opset: the newest that has what a Cast needs and that the IR version admits."""
    text = f"""<ir_version: {ir_version}, opset_import: ["com.microsoft": 1]>
        g (float[4,4] x, float[4,4] w) => (float[4,4] y) {{ y = com.microsoft.FusedMatMul (x, w) }}"""
    made = rewritten(onnx.parser.parse_model(text)).model
    assert {entry.domain: entry.version for entry in made.opset_import} == {"com.microsoft": 1, "": opset}
    assert [node.op_type for node in made.graph.node] == ["Cast", "Cast", "FusedMatMul", "Cast"]
    onnx.checker.check_model(made)
