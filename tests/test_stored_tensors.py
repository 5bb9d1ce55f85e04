"""How initializers and Constant nodes are converted."""

from functools import partial

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting import editing
from tests.text import agree, becomes, model, rewritten, stored

INEXACT = "{0.1, 0.2, 0.3, 0.4}"
BOTH = """g (float[4] x) => (float y, float[4] z) <float[4] w = VALUES> {
    y = MatMul (x, w)
    z = Exp (w)
}"""


def test_a_stored_tensor_that_only_half_reads():
    """It is converted in place, rounded to nearest, under its own name."""
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


def test_a_stored_tensor_that_both_colours_read():
    """If rounding would change it, both types are stored."""
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


STORED = {
    # One half tensor and one Cast provide both colours with the exact values.
    "a stored tensor that half holds exactly": partial(
        becomes,
        BOTH.replace("VALUES", "{1, 2, -0.5, 0.25}"),
        """g (float[4] x) => (float y, float[4] z) <float16[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float32] w__float32 = Cast <to = 1> (w)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (w__float32)
        }""",
    ),
    # No output depends on the reader in float32, as on a node that an exporter left behind.
    "a stored tensor that an unused node reads": partial(
        becomes,
        BOTH.replace("VALUES", INEXACT).replace(", float[4] z)", ")"),
        """g (float[4] x) => (float y) <float16[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float32] w__float32 = Cast <to = 1> (w)
            y__float16 = MatMul (x__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (w__float32)
        }""",
    ),
    "a stored tensor that an unused node reads in half": partial(
        becomes,
        f"""g (float[4] x) => (float y, float[4] z) <float[4] w = {INEXACT}, float[4] v = {INEXACT}> {{
            a = MatMul (x, w)
            y = MatMul (x, v)
            z = Exp (w)
        }}""",
        """g (float[4] x) => (float y, float[4] z) <float[4] w, float16[4] v> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float16] w__float16 = Cast <to = 10> (w)
            a = MatMul (x__float16, w__float16)
            y__float16 = MatMul (x__float16, v)
            [y__float32] y = Cast <to = 1> (y__float16)
            z = Exp (w)
        }""",
    ),
    # From IR 4 on, an initializer that is an input may keep its type; half consumers get a Cast.
    "an initializer that callers may override": partial(
        becomes,
        f"""g (float[4] x, float[4] w) => (float y) <float[4] w = {INEXACT}> {{
            y = MatMul (x, w)
        }}""",
        """g (float[4] x, float[4] w) => (float y) <float[4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [w__float16] w__float16 = Cast <to = 10> (w)
            y__float16 = MatMul (x__float16, w__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(keep_overridable=True),
    ),
    # A second Constant follows the first; if half holds it exactly, a Cast does.
    "constant nodes in both forms": partial(
        becomes,
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
    ),
    # Integers and strings are not changed.
    "constants of other types are left": partial(
        becomes,
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
    ),
}


@pytest.mark.parametrize("holds", STORED.values(), ids=STORED)
def test_how_a_tensor_is_stored(holds):
    """A tensor is stored in half, in both types, or as it was with a Cast behind it."""
    holds()


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


def test_a_stored_tensor_of_a_branch():
    """Both types of a branch's own tensor are stored in that branch."""
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
    result = rewritten(proto, Options(fold=False))
    branch = result.model.graph.node[1].attribute[0].g
    assert [tensor.name for tensor in branch.initializer] == ["w", "w__float16"]
    assert not result.model.graph.initializer
    agree(proto, result.model)


OLD = '<ir_version: 3, opset_import: ["" : 8]>'


def test_weights_that_are_inputs_before_ir_4():
    """They are constant: the tensor and the input of its name become half, and callers see no change."""
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
    """The second tensor is listed as an input too, as IR 3 requires of every initializer."""
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
    """Values that half flushes to zero keep their sign, and are counted; no magnitude grows."""
    text = "g (float[4] x) => (float y) <float[4] w> { y = MatMul (x, w) }"
    tiny = np.float32([-1e-9, 1e-9, -1e-30, -0.0])
    result = rewritten(model(text, {"w": tiny}))
    held = stored(result.model)["w"]
    assert held.tolist() == [0.0] * 4
    assert np.signbit(held).tolist() == [True, False, True, True]
    assert result.report.flushed == 3


@pytest.mark.parametrize("above", [0, 1])
def test_large_tensors_are_converted_when_they_are_written(above, monkeypatch):
    """From LAZY_FROM bytes on, a tensor is converted lazily, to the same values as an eager one."""
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
