"""Operators: what moves values, what computes with them, what is linear, and how they scale."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.model.graph_edits import StoredValues
from amp_rewrite.model.operator_calls import NodeCall
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.operators import scaling
from amp_rewrite.operators.catalogue import MOVERS
from amp_rewrite.training import linearity
from tests import text, train_steps


def node(operator, **attributes):
    """A node with these attributes, in no graph."""
    return ir.node(operator, [ir.Value(), ir.Value(), ir.Value()], attributes)


@pytest.mark.parametrize(
    ("found", "operator", "moves"),
    [
        (node("ScatterElements", reduction="add"), "Add", False),
        (node("ScatterND", reduction="mul"), "Mul", False),
        (node("ScatterND", reduction="max"), "Max", True),
        (node("ScatterElements", reduction="min"), "Min", True),
        (node("ScatterElements", reduction="none"), "ScatterElements", True),
        (node("ScatterND"), "ScatterND", True),
        (node("Gather", reduction="add"), "Gather", True),  # which says nothing elsewhere
        (node("Add"), "Add", False),
        # in a function that is kept the caller says what a scatter does: it is taken to add
        (node("ScatterND", reduction=ir.RefAttr("reduction", "how", ir.AttributeType.STRING)), "Add", False),
    ],
)
def test_a_scatter_with_a_reduction_acts_as_that(found, operator, moves):
    """A scatter that adds or multiplies makes new values; one that takes the larger or smaller does not."""
    assert effective_op(found) == operator
    assert (operator in MOVERS) is moves


# ---- what counts as linear is linear: run on onnxruntime, with the inputs that are multiplied and without

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
"""What the table of scaling does not show: no sign matters, no second power counts, and what a zero does."""


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


# ---- what the catalogue says of scaling is so: run on onnxruntime, powers of two come through to the bit

# node | exponents of inputs | exponent of the first output, "-" where the equations do not hold
ROWS = """
Relu (a) | a 3 | 3
Neg (a) | a 3 | 3
Add (a, b) | a 3 b 3 | 3
Add (a, b) | a 3 b 2 | -
Add (a, nought) | a 3 | 3
Add (nought, nought) | | 0
Mul (a, b) | a 3 b -2 | 1
Div (a, p) | a 3 p 1 | 2
Reciprocal (p) | p 2 | -2
Sqrt (p) | p 4 | 2
Sqrt (p) | p 3 | -
Max (a, b) | a 2 b 2 | 2
Max (a, b) | a 2 | -
Clip (a, u, v) | a 2 u 2 v 2 | 2
Clip (a, u, v) | a 2 | -
Pow (a, two) | a 3 | 6
Pow (a, three) | a 1 | 3
Pow (p, four) | p 1 | -
Pow (p, half) | p 2 | -
Exp (a) | a 1 | -
Sign (a) | a 3 | 0
Greater (a, b) | a 2 b 2 | 0
Greater (a, b) | a 2 | -
Gemm (a, b, c) | a 1 b 2 c 3 | 3
Gemm (a, b, c) | a 1 b 2 | -
MatMul (a, b) | a 1 b 2 | 3
Einsum <equation = "ij,jk->ik"> (a, b) | a 1 b 2 | 3
Where (k, a, b) | a 2 b 2 | 2
Where (k, nought, b) | b 2 | 2
Concat <axis = 0> (a, b) | a 2 b 2 | 2
Pad (a, pads, one) | a 2 | -
Pad <value = 1.0> (a, pads) | a 2 | -
Pad (a, pads, zero) | a 2 | 2
Pad <mode = "edge"> (a, pads) | a 2 | 2
ReduceSumSquare <keepdims = 0> (a) | a 2 | 4
ReduceL2 <keepdims = 0> (a) | a 2 | 2
ReduceLogSum <keepdims = 0> (p) | p 2 | -
ScatterElements <axis = 0> (a, rows, b) | a 2 b 2 | 2
ScatterElements <axis = 0, reduction = "max"> (a, rows, b) | a 2 b 2 | 2
ScatterElements <axis = 0, reduction = "mul"> (a, rows, b) | a 2 b 2 | -
LayerNormalization (a, d, e) | d 2 e 2 | 2
Cast <to = 11> (a) | a 2 | 2
Cast <to = 9> (a) | a 2 | 0
Cast <to = 7> (a) | a 2 | -
CastLike (a, b) | a 2 b 3 | 2
LpPool <kernel_shape = [2, 2]> (image) | image 2 | -
GlobalLpPool (image) | image 2 | -
MaxPool <kernel_shape = [2, 2]> (image) | image 2 | 2
Resize <mode = "linear"> (a, , sizes) | a 2 | 2
Resize <extrapolation_value = 7.0> (a, , sizes) | a 2 | -
com.microsoft.GroupNorm <activation = 0, groups = 1> (image, gamma, beta) | gamma 2 beta 2 | 2
com.microsoft.GroupNorm <activation = 1, groups = 1> (image, gamma, beta) | gamma 2 beta 2 | -
BatchNormalization (image, gamma, beta, mean, var) | image 1 gamma 2 mean 1 beta 3 | 3
BatchNormalization (image, gamma, beta, mean, var) | image 1 gamma 2 beta 3 | -
BatchNormalization <training_mode = 1> (image, gamma, beta, mean, var) | image 1 gamma 2 mean 1 beta 3 | -
""".strip().splitlines()
STORED = {
    "nought": np.zeros((4, 4), np.float32),
    "rows": np.tile([[0], [1], [1], [3]], 4).astype(np.int64),
    "sizes": np.float32([2, 2]),
}
NUMBERS = {"zero": 0.0, "one": 1.5, "two": 2.0, "three": 3.0, "four": 4.0, "half": 0.5}
INPUTS = {**dict.fromkeys("abcp", (4, 4)), "d": (4,), "e": (4,), "image": (1, 4, 2, 2)}
INPUTS |= dict.fromkeys("uv", (1,))
INPUTS |= dict.fromkeys(("gamma", "beta", "mean", "var"), (4,))


def node_of(written):
    """A model of one node, and the node as it is read."""
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in INPUTS.items())
    numbers = ", ".join(f"float {name} = {{{number}}}" for name, number in NUMBERS.items())
    model = text.unchecked(
        f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        net ({inputs}, bool[4,4] k) => (float y)
        <float[4, 4] nought, int64[4, 4] rows, float[2] sizes,
         int64[4] pads = {{1, 0, 0, 1}}, {numbers}>
        {{ y = {written} }}""",
        STORED,
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].ClearField("type")
    return model, next(iter(ir.from_proto(model).graph))


@pytest.mark.parametrize("row", ROWS)
def test_powers_of_two_come_through(row):
    """The output has the exponent that the equations give, bit for bit; none where they do not hold."""
    written, given, expected = (part.strip() for part in row.split("|"))
    words = given.split()
    exponents = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    model, node = node_of(written)
    names = [None if value is None else value.name for value in node.inputs]
    ports = [port for port, name in enumerate(names) if name in INPUTS or name in ("nought", *NUMBERS)]
    call = NodeCall(node, [*ports, ~0])
    known = {port: exponents[name] for port, name in enumerate(names) if name in exponents}
    zeros = {port: -np.inf for port in ports if names[port] in ("nought", "zero")}
    found = scaling.solve(call.equations(), call, known, zeros)
    assert ("-" if found is None else str(found[~0])) == expected
    if found is None or "training" in written or "GroupNorm" in written:
        return
    run, rng = train_steps.session(model), np.random.default_rng(1)
    feeds = {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in INPUTS.items()}
    feeds |= {name: np.abs(feeds[name]) for name in ("p", "var")} | {"k": rng.standard_normal((4, 4)) > 0}
    more = {
        name: np.ldexp(array, exponents[name]) if name in exponents else array
        for name, array in feeds.items()
    }
    before = run(feeds)["y"]
    scaled = np.ldexp(before, found[~0]) if before.dtype.kind == "f" else before
    assert (run({**feeds, **more})["y"] == scaled).all()


@pytest.mark.parametrize(("version", "outputs", "scales"), [(6, 1, False), (9, 3, False), (9, 1, True)])
def test_a_batch_norm_with_statistics_of_its_own_stays(version, outputs, scales):
    """Before version 7, and where it has other outputs, it computes them anew."""
    node = ir.node("BatchNormalization", [ir.Value() for _ in range(5)], num_outputs=outputs, version=version)
    call = NodeCall(node, [*range(5), *(~port for port in range(outputs))])
    assert bool(call.equations()) == scales
