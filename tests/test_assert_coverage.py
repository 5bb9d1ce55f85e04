"""`assert_coverage`, the twin of `amp-rewrite coverage` for test suites."""

import onnx
import pytest

from amp_rewrite.errors import OptionError
from amp_rewrite.testing import assert_coverage
from tests import text

SOURCE = """g (float16[n, 8] x) => (float[n, 4] y) <float16[8, 16] w1, float[16, 4] w2> {
  [first] h = MatMul (x, w1)
  [up] f = Cast <to = 1> (h)
  [second] y = MatMul (f, w2)
}"""


@pytest.fixture
def model(tmp_path):
    """A model with two thirds of its FLOPs in half."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(SOURCE), path)
    return path


def test_assert_coverage_returns_what_it_found(model):
    """It takes a path or an object, and returns the coverage."""
    assert assert_coverage(model, min_flops=0.6, dims={"n": 4}).flops.half == 4 * 2 * 8 * 16
    assert assert_coverage(text.model(SOURCE), max_casts=1, forbid_half=["Exp"]).nodes.half == 1


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"min_flops": 95}, "is not a share"),
        ({"tolerance": -1}, "is not a share"),
        ({"require": {"MatMul": 1.5}}, "is not a share"),
        ({"tolerance": 0.02}, "tolerance applies to a baseline only; give a baseline, or omit it"),
        ({"baseline": "none.json"}, "none.json"),
    ],
)
def test_assert_coverage_refuses_what_makes_no_sense(model, asked, problem):
    """A percentage in place of a share, or no baseline, is a usage error, not a failed assertion."""
    with pytest.raises(OptionError, match=problem):
        assert_coverage(model, **asked)


def test_assert_coverage_tells_each_broken_rule_with_its_nodes(model):
    """Only broken rules raise AssertionError."""
    with pytest.raises(AssertionError) as caught:
        assert_coverage(model, min_flops=0.9, require={"MatMul": 1.0}, max_casts=1)
    assert str(caught.value) == (
        "min-flops 0.9: 66.6 % of FLOPs in half\n    second\n"
        "require MatMul=1: 50.0 % of 2 MatMul nodes in half\n    second"
    )
