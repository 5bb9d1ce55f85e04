"""`emulate(accumulate="half")`: products and partial sums are rounded, in the order of WebGPU's kernels."""

import functools

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper, parser

import amp_rewrite
from amp_rewrite import emulate, verify
from amp_rewrite.cli import main
from amp_rewrite.errors import OptionError
from amp_rewrite.running import sessions
from amp_rewrite.running.half_accumulation import RULES
from amp_rewrite.running.sessions import Device
from tests.witness import needs_witness

H = np.float16


@pytest.fixture(autouse=True)
def _needs_onnxruntime():
    pytest.importorskip("onnxruntime")


def normal(*shape, scale=1.0, offset=0.0, seed=0):
    """Normal numbers in half."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale + offset).astype(H)


def node_model(operator, inputs, opset=17, fed=1, **attributes):
    """A model of one half node, of whose inputs the first `fed` are inputs of the model; and its feeds."""
    names = [f"i{port}" for port in range(len(inputs))]
    feeds = dict(zip(names[:fed], inputs[:fed], strict=True))
    kinds = [helper.make_tensor_value_info(name, 10, value.shape) for name, value in feeds.items()]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], **attributes)],
        "g",
        kinds,
        [helper.make_tensor_value_info("y", 10, None)],
        [numpy_helper.from_array(v, n) for n, v in zip(names[fed:], inputs[fed:], strict=True)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def computed(model, feeds, device=Device.CPU, accumulate="half"):
    """The only output, emulated or on WebGPU."""
    runnable = emulate(model, accumulate=accumulate) if device is Device.CPU else model
    (output,) = sessions.run_session(sessions.open_session(runnable, device), feeds).values()
    return output


def product(a, b):
    """A product of matrices whose every product and partial sum is rounded."""
    with np.errstate(over="ignore", invalid="ignore"):
        terms = (a[:, k : k + 1] * b[k : k + 1] for k in range(a.shape[1]))
        return functools.reduce(np.add, terms, np.zeros((len(a), b.shape[1]), H))


def by_lanes(x):
    """The sum of each row: 64 lanes, and halves of them."""
    lanes = [functools.reduce(np.add, x[:, at::64].T) for at in range(min(64, x.shape[1]))]
    while len(lanes) > 1:
        kept = (len(lanes) + 1) // 2
        lanes = [
            lane + lanes[kept + at] if kept + at < len(lanes) else lane
            for at, lane in enumerate(lanes[:kept])
        ]
    return lanes[0]


@pytest.mark.parametrize("size", [1, 7, 512])
def test_matmul_rounds_every_product_and_every_sum(size):
    """The bits are those of NumPy's half, one term after the other."""
    a, b = normal(9, size), normal(size, 5, seed=1)
    expected = product(a, b)
    assert expected.dtype == H
    model, feeds = node_model("MatMul", [a, b], fed=2)
    np.testing.assert_array_equal(computed(model, feeds), expected)
    if size == 512:
        assert (computed(model, feeds, accumulate="float") != expected).mean() > 0.5


@pytest.mark.parametrize(
    "shapes", [((4,), (4, 3)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 0), (0, 3))]
)
def test_shapes_of_products_are_kept(shapes):
    """Vectors, stacks of matrices, and products of nothing."""
    one, other = (normal(*shape, scale=0.5) for shape in shapes)
    model, feeds = node_model("MatMul", [one, other], fed=2)
    found = computed(model, feeds)
    expected = np.matmul(one.astype(np.float32), other.astype(np.float32))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=4e-3)


def test_partial_sums_overflow():
    """70000 - 20000 is infinite on the way, and a sum in float32 hides it."""
    model, feeds = node_model("MatMul", [H([[200, 200, -100]]), H([[200], [150], [200]])])
    assert computed(model, feeds).item() == np.inf
    assert computed(model, feeds, accumulate="float").item() == H(50000)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 63, 64, 65, 100, 4096])
def test_reductions_add_by_lanes(size, opened):
    """The bits of 64 lanes and their halves, and a mean divides by a rounded count; of open sizes too."""
    x = normal(3, size, offset=1)
    for operator, expected in (("ReduceSum", by_lanes(x)), ("ReduceMean", by_lanes(x) / H(size))):
        axes = {"ReduceSum": [np.int64([1])], "ReduceMean": []}[operator]
        attributes = {} if axes else {"axes": [1]}
        model, feeds = node_model(operator, [x, *axes], keepdims=0, **attributes)
        if opened:
            model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
        np.testing.assert_array_equal(computed(model, feeds), expected)


def test_a_mean_of_squares_overflows():
    """What a written-out norm computes; in float32 sums the mean of 40000 fits."""
    model, feeds = node_model("ReduceMean", [np.full((2, 64), 40000, H)], axes=[-1])
    assert not np.isfinite(computed(model, feeds)).any()
    assert np.isfinite(computed(model, feeds, accumulate="float")).all()


CASES = {
    "gemm, turned": ("Gemm", [normal(8, 32), normal(6, 32), normal(6)], {"transB": 1}),
    "gemm, scaled": (
        "Gemm",
        [normal(32, 8), normal(32, 6), normal(8, 1)],
        {"transA": 1, "alpha": 0.5, "beta": 3.0},
    ),
    "gemm, odd": ("Gemm", [normal(8, 31), normal(6, 31)], {"transB": 1}),
    "conv": ("Conv", [normal(2, 6, 9, 9), normal(8, 6, 3, 3), normal(8)], {"pads": [1, 1, 1, 1]}),
    "conv, grouped": ("Conv", [normal(1, 8, 9, 9), normal(8, 2, 3, 3)], {"group": 4, "strides": [2, 2]}),
    "conv, by channel": ("Conv", [normal(1, 8, 9, 9), normal(16, 1, 3, 3), normal(16)], {"group": 8}),
    "conv, apart": ("Conv", [normal(1, 3, 12, 12), normal(4, 3, 3, 3)], {"dilations": [2, 2]}),
    "conv, a line": ("Conv", [normal(1, 4, 30), normal(6, 4, 5)], {"auto_pad": "SAME_UPPER"}),
    "conv, patches": ("Conv", [normal(1, 3, 16, 16), normal(8, 3, 8, 8)], {"strides": [8, 8]}),
    "transposed": (
        "ConvTranspose",
        [normal(1, 8, 7, 7), normal(8, 3, 4, 4), normal(3)],
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "transposed, grouped": (
        "ConvTranspose",
        [normal(1, 8, 7, 7), normal(8, 2, 3, 3)],
        {"group": 4, "strides": [2, 2], "output_padding": [1, 1]},
    ),
    "sum of axes": ("ReduceMean", [normal(2, 7, 11, 5)], {"axes": [1, 2]}),
    "length": ("ReduceL2", [normal(4, 96)], {"axes": [1]}),
    "squares": ("ReduceSumSquare", [normal(4, 96)], {"axes": [0], "keepdims": 0}),
    "global mean": ("GlobalAveragePool", [normal(2, 3, 6, 6, offset=1)], {}),
    "pool": ("AveragePool", [normal(1, 3, 8, 8)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "norm": ("LayerNormalization", [normal(4, 96, scale=3, offset=2), normal(96), normal(96)], {}),
    "instances": ("InstanceNormalization", [normal(1, 4, 9, 9), normal(4), normal(4)], {}),
}
"""Bit for bit what WebGPU computes."""
NEAR = {
    "softmax": ("Softmax", [normal(4, 512, scale=4)], {}),
    "softmax, odd": ("Softmax", [normal(3, 4, 17)], {}),
}
"""Up to the exponential, whose digits are the adapter's."""
OVERFLOWS = {
    "product": ("MatMul", [np.full((3, 512), 12, H), np.full((512, 3), 12, H)], {}),
    "one row": ("MatMul", [np.float16([[300], [1]]), np.float16([[300, 1]])], {}),
    "mean": ("ReduceMean", [H([[200] * 512, [1] * 512])], {"axes": [1]}),
    "many": ("ReduceMean", [np.full((1, 70000), 1e-3, H)], {"axes": [1]}),
    "conv": ("Conv", [np.arange(8 * 36, dtype=H).reshape(1, 8, 6, 6), np.full((4, 8, 3, 3), 20, H)], {}),
    "on the way": ("MatMul", [H([[200, 200, -100]]), H([[200], [150], [200]])], {}),
}
ALL = {**CASES, **NEAR, **OVERFLOWS}
each_case = pytest.mark.parametrize("name", ALL)


@each_case
def test_the_result_stays_near_and_keeps_its_shape(name):
    """What the original computes in float32 sums, but for rounding; overflow is overflow."""
    operator, inputs, attributes = ALL[name]
    model, feeds = node_model(operator, inputs, **attributes)
    half, single = computed(model, feeds), computed(model, feeds, accumulate="float")
    assert half.shape == single.shape
    both = np.isfinite(half) & np.isfinite(single)
    assert both.all() or name in OVERFLOWS
    if name == "many":  # the number of elements is infinite
        assert (half == 0).all()
        return
    scale = np.abs(single[both]).max(initial=1e-3)
    np.testing.assert_allclose(half[both] / scale, single[both] / scale, atol=2e-2)


def test_every_rule_has_a_case():
    """RULES and the cases name the same operators, but for onnxruntime's own."""
    operators = {operator for operator, *_ in ALL.values()} | {"ReduceSum", "SimplifiedLayerNormalization"}
    assert operators == {name.rpartition(":")[2] for name in RULES}


def test_bodies_sum_in_half_too():
    """A product in the branch of an If."""
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (bool c, float16[1, 3] x, float16[3, 1] w) => (float16[1, 1] y) {
      y = If (c) <
        then_branch = a () => (float16[1, 1] t) { t = MatMul (x, w) },
        else_branch = b () => (float16[1, 1] e) { e = Identity (w0) }
      >
    }""".replace("Identity (w0)", "ReduceSum <keepdims = 1> (w)")
    feeds = {"c": np.array(True), "x": H([[200, 200, -100]]), "w": H([[200], [150], [200]])}
    assert computed(parser.parse_model(text), feeds).item() == np.inf


def test_what_is_not_known_is_refused_or_left():
    """An unknown kind of sums is refused; a model without half stays as it is."""
    model, feeds = node_model("MatMul", [normal(2, 3), normal(3, 2)])
    with pytest.raises(OptionError, match="accumulate: 'double' is not one of float, half"):
        emulate(model, accumulate="double")
    with pytest.raises(OptionError, match="accumulate"):
        verify(model, model, feeds, accumulate="double")
    single = amp_rewrite.restore(model, io="float").model
    assert [node.op_type for node in emulate(single, accumulate="half").graph.node] == ["MatMul"]


def test_verify_says_how_sums_are_emulated(tmp_path):
    """The command's flag, its line, and what it refuses."""
    single, half, feeds = tmp_path / "single.onnx", tmp_path / "half.onnx", {"x": np.ones((3, 3), np.float32)}
    onnx.save(parser.parse_model(PRODUCT), single)
    amp_rewrite.rewrite(single, output=half)
    done = CliRunner().invoke(main, ["verify", str(single), str(half), *_HALF, "--provider", "cpu", "-v"])
    assert done.exit_code == 0, done.output
    assert "CPU, float32 against half emulated, sums too" in done.output
    assert verify(single, half, feeds, accumulate="half", device="cpu").how.endswith("emulated, sums too")
    beside = CliRunner().invoke(main, ["verify", str(single), str(half), *_HALF, "--provider", "cuda"])
    assert beside.exit_code == 2


def test_verify_says_what_is_not_summed_in_half():
    """Sums over open sizes are, whatever their size is; those over axes that are not known are not."""
    single = parser.parse_model("""<ir_version: 8, opset_import: ["": 13]>
    g (float[1, 3, n] x, int64[k] a) => (float[1, 3, 1] y, float[p, q, r] z) {
      y = ReduceMean <axes = [2]> (x)
      z = ReduceSum (x, a)
    }""")
    half = amp_rewrite.rewrite(single, amp_rewrite.Options(level="unsafe-force-all")).model
    feeds = {"x": np.full((1, 3, 1024), 100, np.float32), "a": np.array([1])}
    found = verify(single, half, [feeds], accumulate="half", device="cpu")
    assert found.how == "CPU, float32 against half emulated, sums too but those of 1 node"
    assert {output.name: output.metrics.non_finite for output in found.outputs}["y"] == 3, (
        "1,024 times 100 is infinite in half"
    )


def test_sums_that_no_rule_knows_are_not_said_to_be_half():
    """An Einsum adds up as a product does, and nothing emulates the order in which it does."""
    model, feeds = node_model("Einsum", [normal(4, 8), normal(8, 4)], fed=2, equation="ij,jk->ik")
    assert verify(model, model, feeds, accumulate="half", device="cpu").how.endswith("but those of 1 node")


PRODUCT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[3, 3] x) => (float[3, 3] y) { y = MatMul (x, x) }
"""
_HALF = ("--accumulate", "half")


class TestWitness:
    @pytest.fixture(autouse=True)
    def _needs_witness(self):
        needs_witness()

    @pytest.mark.parametrize("name", [*CASES, *OVERFLOWS])
    def test_single_operators_have_the_bits_of_the_witness(self, name):
        """Every element, infinite ones included, is what WebGPU computes."""
        operator, inputs, attributes = ALL[name]
        model, feeds = node_model(operator, inputs, **attributes)
        np.testing.assert_array_equal(computed(model, feeds), computed(model, feeds, Device.WEBGPU))

    @pytest.mark.parametrize("name", NEAR)
    def test_exponentials_are_within_a_factor_of_two(self, name):
        """Their error against float32 is."""
        operator, inputs, attributes = ALL[name]
        model, feeds = node_model(operator, inputs, **attributes)
        exact = computed(model, feeds, accumulate="float").astype(np.float32)
        half, real = (
            np.linalg.norm(computed(model, feeds, where) - exact) for where in (Device.CPU, Device.WEBGPU)
        )
        assert real / 2 < half < real * 2
