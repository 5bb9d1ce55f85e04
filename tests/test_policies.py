"""Precision policies by Keras' names, and the device check that comes with them."""

import pytest

from amp_rewrite import Options, rewrite, training
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.options import Policy
from tests import text, train_steps

NET = """net (float[8, 16] x) => (float[8, 16] y) <float[16, 16] w> { a = MatMul (x, w) y = Softmax (a) }"""


@pytest.mark.parametrize(
    ("name", "half"), [("mixed_float16", FLOAT16), ("MIXED_BFLOAT16", BFLOAT16), ("float32", None)]
)
def test_a_policy_has_two_types(name, half):
    """What products compute in, and what variables are."""
    policy = Policy(name)
    assert (policy.name, policy.compute, policy.variable) == (name.lower(), half, "float32")


@pytest.mark.parametrize("name", ["float16", "mixed_float8", "", 5, None])
def test_what_is_no_policy(name):
    """An error lists those there are, or says what was given."""
    with pytest.raises(OptionError, match=r"Policy\.name"):
        Policy(name)


def test_float32_changes_nothing():
    """Under it no node is half; the options that it leaves open stay."""
    given = Options(keep_opset=True, target="any")
    options = Policy("float32").options(given)
    assert (options.keep_opset, options.target) == (True, given.target)
    result = rewrite(text.model(NET), options)
    assert result.report.nodes.half == 0
    assert not result.report.changed


def test_a_train_step_takes_a_policy():
    """By name or as such; under float32 a scale can be inserted all the same."""
    model = train_steps.step()
    half, wide = (training.rewrite_train_step(model, name) for name in ("mixed_float16", Policy("float32")))
    assert half.report.nodes.half > 0
    assert training.initial_state(half.model)["loss_scale"] == 2**15
    assert (wide.report.nodes.half, wide.step.loss_scale) == (0, None)
    scaled = training.rewrite_train_step(model, "float32", 16)
    assert (scaled.report.nodes.half, scaled.step.loss_scale) == (0, training.FixedLossScale(16))
    assert scaled.model.graph.node
