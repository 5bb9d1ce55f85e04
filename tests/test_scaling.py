"""What the catalogue says of scaling is so: run on onnxruntime, powers of two come through to the bit."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.model.operator_calls import NodeCall
from amp_rewrite.operators import scaling
from tests import text, train_steps

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
