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
    """The padding advice for a model: (operator, {dimension: (size, padded)})."""
    made = analyze(text.model(source), options)
    counted = flop_count.count(made.loaded.model, made.graph.types, dims or {})
    given = advise(counted, made.decisions(), "float16", H200)
    return [
        (padding.operator, {d.name: (d.size, d.padded) for d in padding.dimensions})
        for padding in given.paddings
    ]


CASES = {
    "a product": (
        "g (float[16, 12] x) => (float[16, 20] y) <float[12, 20] w> { y = MatMul(x, w) }",
        ("MatMul", {"inner dimension": (12, 16), "columns": (20, 24)}),
    ),
    "rows": (
        "g (float[12, 16] x) => (float[12, 16] y) <float[16, 16] w> { y = MatMul(x, w) }",
        ("MatMul", {"rows": (12, 16)}),
    ),
    "Gemm, transposed": (
        "g (float[12, 16] x) => (float[16, 9] y) <float[9, 12] w> { y = Gemm <transA=1, transB=1> (x, w) }",
        ("Gemm", {"inner dimension": (12, 16), "columns": (9, 16)}),
    ),
    "Conv": (
        """g (float[1, 3, 8, 8] x) => (float[1, 20, 8, 8] y) <float[20, 3, 3, 3] w> {
             y = Conv <pads = [1, 1, 1, 1]> (x, w) }""",
        ("Conv", {"input channels": (3, 8), "output channels": (20, 24)}),
    ),
    "Conv in groups": (
        "g (float[1,24,4,4] x) => (float[1,24,4,4] y) <float[24,12,1,1] w> { y = Conv <group = 2> (x, w) }",
        ("Conv", {"input channels": (12, 16), "output channels": (12, 16)}),
    ),
    "ConvTranspose": (
        "g (float[1,8,4,4] x) => (float[1,3,4,4] y) <float[8,3,1,1] w> { y = ConvTranspose(x, w) }",
        ("ConvTranspose", {"output channels": (3, 8)}),
    ),
    "LSTM": (
        """g (float[5, 12, 10] x) => (float[5, 1, 12, 20] y)
           <float[1, 80, 10] w, float[1, 80, 20] r> { y = LSTM <hidden_size = 20> (x, w, r) }""",
        ("LSTM", {"hidden size": (20, 24), "input size": (10, 16), "batch": (12, 16)}),
    ),
    "FusedMatMul": (
        """g (float[12, 16] x) => (float[16, 10] y) <float[12, 10] w> {
             y = com.microsoft.FusedMatMul <transA = 1> (x, w) }""",
        ("com.microsoft:FusedMatMul", {"inner dimension": (12, 16), "columns": (10, 16)}),
    ),
    "MultiHeadAttention": (
        """g (float[2, 16, 40] q, float[2, 16, 40] k, float[2, 16, 40] v) => (float[2, 16, 40] y) {
             y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }""",
        ("com.microsoft:MultiHeadAttention", {"head size": (20, 24)}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_dimensions(case):
    """Dimensions that are not multiples of 8 are named with the next multiple."""
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


OPEN = """g (float[batch, seq, 16] x, float[16, 16] w) => (float[batch, seq, seq] y) {
  t = Transpose <perm = [0, 2, 1]> (x)
  y = MatMul(x, t)
}"""


def test_open_dimensions_are_not_guessed():
    """A size that depends on an open dimension is not examined unless the dimension is given."""
    assert paddings(OPEN) == []
    assert paddings(OPEN, {"seq": 12, "batch": 1}) == [("MatMul", {"rows": (12, 16), "columns": (12, 16)})]


def test_sums_with_open_dimensions_are_not_guessed():
    """Nor is one computed from it: a cache of 11 plus an open length is not 12."""
    source = """g (float[1, n, 16] x, float[1, 11, 16] past) => (float[1, n, m] y) {
      k = Concat <axis = 1> (past, x)
      t = Transpose <perm = [0, 2, 1]> (k)
      y = MatMul(x, t)
    }"""
    assert paddings(source) == []


def test_alike_products_are_one_line():
    """Nodes of one operator with the same dimensions to pad share one entry; most FLOPs first."""
    source = """g (float[16, 12] x, float[12, 12] v, float[16, 8] u) => (float[16, 12] y, float[16, 10] z)
      <float[8, 10] w> { a = MatMul(x, v)  y = MatMul(a, v)  z = MatMul(u, w) }"""
    made = analyze(text.model(source))
    counted = flop_count.count(made.loaded.model, made.graph.types, {})
    given = advise(counted, made.decisions(), "float16", H200)
    assert [len(found.nodes) for found in given.paddings] == [2, 1]
    flops = 2 * (2 * 16 * 12 * 12), 2 * 16 * 8 * 10
    assert [found.flop_share for found in given.paddings] == [part / sum(flops) for part in flops]
    sizes = "inner dimension 12 -> 16, columns 12 -> 16"
    assert next(given.lines()) == f"2 nodes, 78% of FLOPs: MatMul 'a' and 1 more: {sizes}"


def test_a_half_model_of_anybody():
    """Nodes that are already in half get advice, whichever tool converted them."""
    source = "g (float16[16, 12] x, float16[12, 16] w) => (float16[16, 16] y) { y = MatMul(x, w) }"
    model = loading.load(text.model(source)).model
    counted = flop_count.count(model, shape_inference.types(model), {})
    (found,) = advise(counted, Decisions(()), "float16", H200).paddings
    assert [d.name for d in found.dimensions] == ["inner dimension"]


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
    assert lines[0] == "1 node, 100% of FLOPs: MatMul 'p': inner dimension 12 -> 16"
    assert path.read_bytes() == before
    assert run("explain", rewrite(path).model, "--show=advice") == lines


def test_a_device_that_gains_nothing(path):
    """Nothing is padded for such a device, and the exit code is still 0."""
    flags = ("--show", "advice", "--device")
    (line,) = run("explain", path, *flags, "old,10/10,0.3")
    assert line.startswith("old has no Tensor Cores for float16")
    (line,) = run("explain", path, *flags, "t4", "--to", "bfloat16")
    assert line.startswith("t4 has no Tensor Cores for bfloat16")


def test_advice_in_the_reports(path, tmp_path):
    """The JSON of a rewrite, of a dry run and of explain contain the same advice."""
    names = [tmp_path / f"{i}.json" for i in range(3)]
    run(path, "-q", "--skip=verify", "--json", names[0])
    run(path, "-q", "--dry-run", "--json", names[1])
    run("explain", path, "--show=advice", "--json", names[2])
    first, *others = (json.loads(name.read_text())["advice"] for name in names)
    assert others == [first, first]
    assert first["half"] == "float16"
    assert first["device"] == "h200"
    (padding,) = first["paddings"]
    assert padding["nodes"] == ["p"]
    assert padding["dimensions"] == [{"name": "inner dimension", "size": 12, "padded": 16}]
