"""Precision policies by Keras' names, and the device check that comes with them."""

import onnx
import pytest

from amp_rewrite import Options, analyze, rewrite, training
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.options import Policy
from amp_rewrite.policy.evidence import Reason
from tests import text, train_steps
from tests.commands import failure, run

NET = """net (float[8, 16] x) => (float[8, 16] y, float[8, 16] inner) <float[16, 16] w, float[16, 16] v> {
  [first] a = MatMul (x, w)  [attend] b = Softmax (a)  [second] c = MatMul (b, v)
  [last] d = Softmax (c)  [flip] y = Identity (d)      [copy] inner = Relu (c)
}"""


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


def test_a_final_softmax_stays_float32():
    """The one that makes an output; one inside does not."""
    found = analyze(text.model(NET), Policy("mixed_float16").options())
    entries = {
        unit.node.name: found.painting.entries[unit.index].evidence.reason for unit in found.graph.units
    }
    assert entries["last"] is Reason.FINAL_SOFTMAX
    assert entries["attend"] is Reason.LISTED
    plain = analyze(text.model(NET), Options())
    assert Reason.FINAL_SOFTMAX not in {entry.evidence.reason for entry in plain.painting.entries}


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


@pytest.mark.parametrize(
    ("device", "to", "said"),
    [
        ("h200", "mixed_float16", "h200 has Tensor Cores for float16"),
        ("t4", "mixed_bfloat16", "t4 has no Tensor Cores for bfloat16"),
    ],
)
def test_the_device_check(tmp_path, device, to, said):
    """It says whether the device gains from the half type."""
    onnx.save(text.model(NET), tmp_path / "m.onnx")
    done = run(tmp_path / "m.onnx", "--dry-run", "--to", to, "--device", device)
    assert f"device   {said}" in done.output


def test_the_device_check_of_a_train_step(tmp_path):
    """A train step has one without a policy as well."""
    onnx.save(text.model(train_steps.source()), tmp_path / "m.onnx")
    done = run("train", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx")
    assert "device   h200 has Tensor Cores" in done.output


def test_the_policy_on_the_command_line(tmp_path):
    """It stands for --to, keeps the softmax, and says what the device gains."""
    onnx.save(text.model(NET), tmp_path / "m.onnx")
    done = run(tmp_path / "m.onnx", "-o", tmp_path / "h.onnx", "--to", "mixed_float16", "--skip=verify")
    assert done.exit_code == 0, done.output
    assert "device" in done.output
    assert "the policy keeps a final softmax" in run("explain", tmp_path / "h.onnx", "last").output
    said = failure(tmp_path / "m.onnx", "--to", "float32", "--list", "default")
    assert "--to float32 decides what --list would" in said
    dry = run(tmp_path / "m.onnx", "--to", "float32", "--dry-run")
    assert "0 of" in dry.output
    assert "device" not in dry.output
