"""`amp-rewrite train`: what it writes and says, and what it refuses."""

import json

import onnx
import pytest

from amp_rewrite import training
from tests import train_steps
from tests.commands import failure, run


@pytest.fixture
def model(tmp_path):
    """A small train step in a folder of its own."""
    onnx.save(train_steps.step(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_step_is_written_with_its_scale(model):
    """The result has the state of the scale, the report says what the step is, and the names are told."""
    folder = model.parent
    done = run("train", model, "-o", folder / "t.onnx", "--json", folder / "r.json", "--increment-period", 7)
    assert done.exit_code == 0, done.output
    assert "loss 'loss', seed 'loss_grad', 2 tensors of state" in done.output
    assert "dynamic from 32768, times 2 after 7 good steps" in done.output
    assert training.initial_state(folder / "t.onnx") == {"loss_scale": 2**15, "good_steps": 0}
    told = json.loads((folder / "r.json").read_text())["training"]
    assert told["frontier"] == ["dw2", "dw1"]
    assert told["scale_state"]["finite"] == "grads_finite"
    assert told["loss_scale"]["increment_period"] == 7


def test_explain_writes_no_model(model):
    """It says what the step is, every gradient, and what stays float32."""
    done = run("train", model, "--explain")
    assert done.exit_code == 0, done.output
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]
    for line in (
        "state    w1 -> w1_new",
        "frontier dw1",
        "float32  dm, around the loss",
        "float32  a1, behind the gradients",
    ):
        assert line in done.output


def test_the_reasons_are_in_the_result(model):
    """`explain` of a result says why the loss and the optimiser are float32."""
    out = model.parent / "t.onnx"
    run("train", model, "-o", out)
    assert "no product is between it and 'loss'" in run("explain", out, "dm").output
    assert "it follows the gradients" in run("explain", out, "a1").output


def test_flags_say_what_a_step_is(model):
    """Flags count before names: a gradient that is named is the frontier."""
    out = model.parent / "t.onnx"
    flags = ("--loss", "loss", "--seed", "dm", "--state", "w1=w1_new", "--gradient", "dw1", "--loss-scale", 8)
    done = run("train", model, "-o", out, *flags, "--skip-nonfinite", "--implementation", "casting")
    assert done.exit_code == 0, done.output
    assert "seed 'dm', 1 tensor of state" in done.output
    assert "fixed at 8, steps are skipped unless 'grads_finite'" in done.output


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--loss-scale", "0.5"), "--loss-scale 0.5 is not a loss scale"),
        (("--loss-scale", "nan"), "--loss-scale nan is not a loss scale"),
        (("--loss-scale", "often"), "--loss-scale often is not a loss scale"),
        (("--loss-scale", "8", "--multiplier", "3"), "--multiplier has no effect on --loss-scale 8"),
        (
            ("--to", "bfloat16", "--initial-scale", "3"),
            "has no effect on --loss-scale auto for bfloat16",
        ),
        (("--loss-scale", "none", "--skip-nonfinite"), "--skip-nonfinite is for a loss scale"),
        (("--initial-scale", "0"), "--initial-scale: 0.0 is not a number from 1"),
        (("--increment-period", "0"), "--increment-period: 0 is not an integer of at least 1"),
        (("--multiplier", "1"), "--multiplier: 1 would never change the scale"),
        (("--state", "w1"), "--state: 'w1' is not a pair of names"),
        (("--state", "w1=nothing"), "the state w1 -> nothing names an output 'nothing'"),
        (("--state-suffix", ".x"), "no output is called as an input with '.x' behind it"),
        (("--loss", "x"), "the loss 'x' is not an output"),
        (("--seed", "x_"), "the seed 'x_' is not a value"),
        (("--gradient", "x"), "the gradient 'x' is not a value that a node"),
        (("--io", "half"), "--io half would make master weights half"),
        (("--keep-functions",), "--keep-functions hides the backward pass"),
        (("--explain",), "-o has no effect with --explain"),
    ],
)
def test_what_is_refused(model, flags, problem):
    """One line, which says what would help; nothing is written."""
    assert problem in failure("train", model, "-o", model.parent / "t.onnx", *flags)
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]
