"""Advice on Tensor Cores: dimensions that are not multiples of 8, and a device's gain."""

import json

import onnx
import pytest

from amp_rewrite import Options, analyze, rewrite
from amp_rewrite.costs import flop_count
from amp_rewrite.coverage.advice import advise
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.devices import H200
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.rewriting.decisions import Decisions
from tests import commands, text


def advised(source, dims=None, options=None):
    """The advice on a model."""
    made = analyze(text.model(f"g {source}"), options)
    counted = flop_count.count(made.loaded.model, made.graph.types, dims or {})
    return advise(counted, made.decisions(), "float16", H200)


def test_products_in_float32_are_left_alone():
    """There is advice only for nodes in half, whichever tool converted them."""
    kept = Options(lists=Options().operator_lists().override(Kind.DENY, ["MatMul"]))
    source = "(float[12,12] x) => (float[12,12] y) { y = MatMul (x, x) }"
    assert [len(advised(source, options=each).paddings) for each in (None, kept)] == [1, 0]
    halved = text.model("g (float16[16,12] x, float16[12,16] w) => (float16[16,16] y) { y = MatMul (x, w) }")
    model = loading.load(halved).model
    counted = flop_count.count(model, element_types.infer(model), {})
    (found,) = advise(counted, Decisions(()), "float16", H200).paddings
    assert found.sizes == (12,)


def test_most_flops_first():
    """The first products are printed, with their share of FLOPs."""
    given = advised(
        """(float[16,12] x, float[16,8] u) => (float[16,12] y, float[16,10] z)
        <float[8,10] w, float[12,12] v> { z = MatMul (u, w) y = MatMul (x, v) }"""
    )
    flops = 2 * 16 * 12 * 12, 2 * 16 * 8 * 10
    assert [found.flop_share for found in given.paddings] == [part / sum(flops) for part in flops]
    assert list(given.lines())[1:] == [
        "MatMul 'y' has 12 -> 16 (64% of FLOPs)",
        "MatMul 'z' has 10 -> 16 (36% of FLOPs)",
    ]


@pytest.fixture
def path(tmp_path):
    """A model in a folder."""
    source = "g (float[16,12] x) => (float[16,16] y) <float[12,16] w> { [p] y = MatMul (x, w) }"
    onnx.save(text.model(source), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def told(path, *flags):
    """What `explain --show advice` prints; it must succeed."""
    result = commands.run("explain", path, "--show=advice", *flags)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_explain_gives_advice(path, tmp_path):
    """It is printed, and written as JSON, for a model and for its result alike, and only advises."""
    before = path.read_bytes()
    lines = told(path, "--json", tmp_path / "told.json")
    assert lines[1] == "MatMul 'p' has 12 -> 16 (100% of FLOPs)"
    assert path.read_bytes() == before
    data = json.loads((tmp_path / "told.json").read_text())["advice"]
    assert (data["half"], data["device"], data["has_tensor_cores"]) == ("float16", "h200", True)
    assert data["paddings"] == [{"node": "p", "operator": "MatMul", "sizes": [12], "flop_share": 1.0}]
    assert told(rewrite(path).model) == lines


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--device", "old,10/10,0.3"), "old has no Tensor Cores for float16"),
        (("--device", "t4", "--to", "bfloat16"), "t4 has no Tensor Cores for bfloat16"),
    ],
)
def test_a_device_that_gains_nothing(path, flags, said):
    """Nothing is padded for such a device, and the exit code is still 0."""
    (line,) = told(path, *flags)
    assert line.startswith(said)
