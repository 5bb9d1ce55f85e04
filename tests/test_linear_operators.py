"""What counts as linear is linear: run on onnxruntime, with the inputs that are multiplied and without."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.model.graph_edits import StoredValues
from amp_rewrite.training import linearity
from tests import text, train_steps

CASES = [
    # the node, the inputs that are multiplied, and whether it is linear in them together
    ("Add (a, b)", "ab", True),
    ("Add (a, b)", "a", False),
    ("Add (a, nought)", "a", True),
    ("Concat <axis = 0> (a, nought)", "a", True),
    ("Mul (a, b)", "a", True),
    ("Mul (a, b)", "ab", False),
    ("Mul (a, a)", "a", False),
    ("Div (b, a)", "a", False),
    ("Gemm (a, b, nought)", "a", True),
    ("Gemm (a, b, c)", "ac", True),
    ("Gemm (a, b, c)", "c", False),
    ("Where (yes, nought, b)", "b", True),
    ('ScatterElements <axis = 0, reduction = "add"> (nought, rows, b)', "b", True),
    ('ScatterElements <axis = 0, reduction = "add"> (a, rows, b)', "b", False),
    ('Pad <mode = "constant"> (a, pads, zero)', "a", True),
    ("ReduceL1 <keepdims = 0> (a)", "a", False),
    ("Cast <to = 11> (a)", "a", True),
    ("Cast <to = 7> (a)", "a", False),
    ("Relu (a)", "a", False),
    ("Max (a, b)", "ab", False),
]
"""What `test_scaling` does not show: that no sign matters, no second power counts, and what a zero does."""


@pytest.mark.parametrize(("written", "scaled", "linear"), CASES)
def test_linear_is_linear(written, scaled, linear):
    """Multiplied inputs multiply the output where the rule says so; elsewhere it does not say so."""
    model = text.unchecked(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[4, 4] a, float[4, 4] b, float[4, 4] c, bool[4, 4] yes) => (float y)
        <float[4, 4] nought, int64[4] pads = {{1, 0, 0, 1}}, float zero = {{0.0}}, int64[4, 4] rows>
        {{ y = {written} }}""",
        {"nought": np.zeros((4, 4), np.float32), "rows": np.tile([[0], [1], [1], [3]], 4).astype(np.int64)},
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].ClearField("type")
    read = ir.from_proto(model)
    node = next(iter(read.graph))
    ports = frozenset(
        port for port, value in enumerate(node.inputs) if value is not None and value.name in scaled
    )
    assert (linearity.find_linear_outputs(StoredValues(read), node, ports) is not None) == linear
    if linear:
        run, rng = train_steps.session(model), np.random.default_rng(1)
        feeds = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in "abc"}
        feeds["yes"] = rng.standard_normal((4, 4)) > 0
        more = {name: value * np.float32(8) if name in scaled else value for name, value in feeds.items()}
        assert (run(more)["y"] == run(feeds)["y"] * 8).all()


@pytest.mark.parametrize(
    ("made", "zero"),
    [
        ("z = ConstantOfShape (shape)", True),
        ("z = ConstantOfShape <value = float[1] {2.0}> (shape)", False),
        ("n = ConstantOfShape (shape)  z = Transpose (n)", True),
        ("z = Identity (x)", False),
        ("z = Concat <axis = 0> (nought, nought)", True),
        ("z = Concat <axis = 0> (nought, x)", False),
        ("z = Constant <value_float = 0.0> ()", True),
        ("z = Exp (nought)", False),
    ],
)
def test_constant_zero(made, zero):
    """Stored zeros, and what moves them, are zero; inputs and other constants are not."""
    model = text.unchecked(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[2, 2] x) => (float z) <int64[2] shape = {{2, 2}}, float[2, 2] nought> {{ {made} }}""",
        {"nought": np.zeros((2, 2), np.float32)},
    )
    read = ir.from_proto(model)
    assert linearity.is_zero(StoredValues(read), read.graph.outputs[0]) == zero
