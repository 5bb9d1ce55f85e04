"""Advice on Tensor Cores: dimensions that are not multiples of 8, and a device's gain."""

import json

import onnx
import pytest

from amp_rewrite import analyze, rewrite
from amp_rewrite.costs import flop_count
from amp_rewrite.coverage.advice import advise
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import shape_inference
from amp_rewrite.policy.devices import H200
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting.decisions import Decisions
from tests import commands, text


def paddings(source, dims=None, options=None):
    """The products to pad in a model: (operator, sizes)."""
    made = analyze(text.model(source), options)
    counted = flop_count.count(made.loaded.model, made.graph.types, dims or {})
    given = advise(counted, made.decisions(), "float16", H200)
    return [(padding.operator, padding.sizes) for padding in given.paddings]


CASES = {
    "a product": (
        "g (float[16, 12] x) => (float[16, 20] y) <float[12, 20] w> { y = MatMul(x, w) }",
        ("MatMul", (12, 20)),
    ),
    "rows": (
        "g (float[12, 16] x) => (float[12, 16] y) <float[16, 16] w> { y = MatMul(x, w) }",
        ("MatMul", (12,)),
    ),
    "Gemm, transposed": (
        "g (float[12, 16] x) => (float[16, 9] y) <float[9, 12] w> { y = Gemm <transA=1, transB=1> (x, w) }",
        ("Gemm", (12, 9)),
    ),
    "Conv": (
        """g (float[1, 3, 8, 8] x) => (float[1, 20, 8, 8] y) <float[20, 3, 3, 3] w> {
             y = Conv <pads = [1, 1, 1, 1]> (x, w) }""",
        ("Conv", (20, 3)),
    ),
    "Conv in groups": (
        "g (float[1,24,4,4] x) => (float[1,24,4,4] y) <float[24,12,1,1] w> { y = Conv <group = 2> (x, w) }",
        ("Conv", (12,)),
    ),
    "ConvTranspose": (
        "g (float[1,8,4,4] x) => (float[1,3,4,4] y) <float[8,3,1,1] w> { y = ConvTranspose(x, w) }",
        ("ConvTranspose", (3,)),
    ),
    "FusedMatMul": (
        """g (float[12, 16] x) => (float[16, 10] y) <float[12, 10] w> {
             y = com.microsoft.FusedMatMul <transA = 1> (x, w) }""",
        ("com.microsoft:FusedMatMul", (12, 10)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes(case):
    """Sizes that are not multiples of 8 are named."""
    source, padding = CASES[case]
    assert paddings(source) == [padding]


@pytest.mark.parametrize(
    "source",
    [
        "g (float[16, 16] x) => (float[16, 8] y) <float[16, 8] w> { y = MatMul(x, w) }",
        "g (float[1, 16] x) => (float[1, 1] y) <float[16, 1] w> { y = MatMul(x, w) }",
        "g (float[16, 12] x) => (float[16] y) <float[12] w> { y = MatMul(x, w) }",
        "g (float[1,12,4,4] x) => (float[1,12,4,4] y) <float[12,1,1,1] w> { y = Conv <group = 12> (x, w) }",
        "g (float[12, 12] x) => (float[12, 12] y) { y = Relu(x) }",
    ],
    ids=["multiples", "vectors", "a vector", "a filter for each channel", "no product"],
)
def test_nothing_to_pad(source):
    """Multiples of 8 need no padding; vectors and depthwise filters do not use Tensor Cores."""
    assert paddings(source) == []


def test_products_in_float32_are_left_alone():
    """There is advice only for nodes in half."""
    source = "g (float[12, 12] x) => (float[12, 12] y) { y = MatMul(x, x) }"
    assert len(paddings(source)) == 1
    kept = Options(lists=Options().operator_lists().override(Kind.DENY, ["MatMul"]))
    assert paddings(source, options=kept) == []


def test_open_dimensions_are_not_guessed():
    """What is not stored is examined only where all dimensions are given: a cache of 11 and 64 is not 75."""
    source = """g (float[1, n, 16] x, float[1, 11, 16] past) => (float[1, n, 12] y) <float[16, 12] w> {
      k = Concat <axis = 1> (past, x)
      y = MatMul(k, w)
    }"""
    assert paddings(source) == [("MatMul", (12,))]
    assert paddings(source, {"n": 2}) == [("MatMul", (13, 12))]


def test_most_flops_first():
    """The first products are printed, with their share of FLOPs."""
    source = """g (float[16, 12] x, float[16, 8] u) => (float[16, 12] y, float[16, 10] z)
      <float[8, 10] w, float[12, 12] v> { z = MatMul(u, w)  y = MatMul(x, v) }"""
    made = analyze(text.model(source))
    counted = flop_count.count(made.loaded.model, made.graph.types, {})
    given = advise(counted, made.decisions(), "float16", H200)
    flops = 2 * 16 * 12 * 12, 2 * 16 * 8 * 10
    assert [found.flop_share for found in given.paddings] == [part / sum(flops) for part in flops]
    assert list(given.lines())[1:] == [
        "MatMul 'y' has 12 -> 16 (64% of FLOPs)",
        "MatMul 'z' has 10 -> 16 (36% of FLOPs)",
    ]


def test_a_half_model_of_anybody():
    """Nodes that are already in half get advice, whichever tool converted them."""
    source = "g (float16[16, 12] x, float16[12, 16] w) => (float16[16, 16] y) { y = MatMul(x, w) }"
    model = loading.load(text.model(source)).model
    counted = flop_count.count(model, shape_inference.types(model), {})
    (found,) = advise(counted, Decisions(()), "float16", H200).paddings
    assert found.sizes == (12,)


SOURCE = "g (float[16, 12] x) => (float[16, 16] y) <float[12, 16] w> { [p] y = MatMul(x, w) }"


@pytest.fixture
def path(tmp_path):
    """A model in a folder."""
    onnx.save(text.model(SOURCE), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(*arguments):
    """Runs the command line in this process; it must succeed."""
    result = commands.run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_explain_gives_advice(path):
    """`--show advice` prints it, for a model and for its result alike, and only advises."""
    before = path.read_bytes()
    lines = run("explain", path, "--show=advice")
    assert lines[1] == "MatMul 'p' has 12 -> 16 (100% of FLOPs)"
    assert path.read_bytes() == before
    assert run("explain", rewrite(path).model, "--show=advice") == lines


def test_a_device_that_gains_nothing(path):
    """Nothing is padded for such a device, and the exit code is still 0."""
    flags = ("--show", "advice", "--device")
    (line,) = run("explain", path, *flags, "old,10/10,0.3")
    assert line.startswith("old has no Tensor Cores for float16")
    (line,) = run("explain", path, *flags, "t4", "--to", "bfloat16")
    assert line.startswith("t4 has no Tensor Cores for bfloat16")


def test_advice_as_json(path, tmp_path):
    """The device, and the products with their sizes."""
    run("explain", path, "--show=advice", "--json", tmp_path / "told.json")
    told = json.loads((tmp_path / "told.json").read_text())["advice"]
    assert (told["half"], told["device"], told["has_tensor_cores"]) == ("float16", "h200", True)
    assert told["paddings"] == [{"node": "p", "operator": "MatMul", "sizes": [12], "flop_share": 1.0}]
