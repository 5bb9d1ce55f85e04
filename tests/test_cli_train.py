"""`amp-rewrite train`: what it writes and says, and what it refuses."""

import json

import numpy as np
import onnx
import pytest

from amp_rewrite import training
from amp_rewrite.running import sessions
from amp_rewrite.training.insertion import NodeBuilder
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
    done = run(
        "train", model, "-o", folder / "t.onnx", "--json", folder / "r.json", "--loss-scale", "period=7"
    )
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
    done = run("train", model, "--dry-run")
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
    done = run(
        "train", model, "-o", out, *flags, "--loss-scale", "skip-nonfinite", "--implementation", "casting"
    )
    assert done.exit_code == 0, done.output
    assert "seed 'dm', 1 tensor of state" in done.output
    assert "fixed at 8, steps are skipped unless 'grads_finite'" in done.output


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--loss-scale", "0.5"), "--loss-scale 0.5 is not a loss scale"),
        (("--loss-scale", "nan"), "--loss-scale nan is not a loss scale"),
        (("--loss-scale", "often"), "--loss-scale often is not a loss scale"),
        (("--loss-scale", "8,multiplier=3"), "--loss-scale 8 has no multiplier"),
        (("--to", "bfloat16", "--loss-scale", "initial=3"), "--loss-scale auto for bfloat16 has no initial"),
        (("--loss-scale", "none,skip-nonfinite"), "--loss-scale skip-nonfinite is for a loss scale"),
        (("--loss-scale", "initial=0"), "--loss-scale initial=: 0 is not a number from 1"),
        (("--loss-scale", "period=0"), "--loss-scale period=: 0 is not an integer of at least 1"),
        (("--loss-scale", "multiplier=1"), "--loss-scale multiplier=: 1 would never change the scale"),
        (("--loss-scale", "initial=often"), "--loss-scale initial=often is not a loss scale"),
        (("--loss-scale", "initial=8,initial=9"), "--loss-scale gives initial twice"),
        (("--loss-scale", "8", "--loss-scale", "dynamic"), "--loss-scale is both 8 and dynamic"),
        (("--state", "=w1"), "--state: '=w1' is not a pair of names"),
        (("--state", ".x", "--state", ".y"), "--state .y: the suffix is .x"),
        (("--state", "w1=nothing"), "the state w1 -> nothing names an output 'nothing'"),
        (("--state", ".x"), "no output is called as an input with '.x' behind it"),
        (("--loss", "x"), "the loss 'x' is not an output"),
        (("--seed", "x_"), "the seed 'x_' is not a value"),
        (("--gradient", "x"), "the gradient 'x' is not a value that a node"),
        (("--io", "half"), "--io half would make master weights half"),
        (("--skip=inline",), "--skip inline hides the backward pass"),
        (("--dry-run",), "--output has no effect with --dry-run"),
    ],
)
def test_what_is_refused(model, flags, problem):
    """One line, which says what would help; nothing is written."""
    assert problem in failure("train", model, "-o", model.parent / "t.onnx", *flags)
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]


def compared(model, *flags):
    """The exit code of a rewrite, and its comparison in JSON."""
    pytest.importorskip("onnxruntime")
    told = model.parent / "r.json"
    done = run("train", model, "-o", model.parent / "t.onnx", "--json", told, *flags)
    assert (model.parent / "t.onnx").exists(), done.output
    return done, json.loads(told.read_text())["comparison"]


def test_three_steps_are_compared(model):
    """The losses are those of the original on given batches, states fed back; batches come round again."""
    rng = np.random.default_rng(0)
    samples = [{"x": rng.random((8, 4), np.float32), "y": rng.random((8, 3), np.float32)} for _ in range(2)]
    start = {"w1": rng.random((4, 16), np.float32), "w2": rng.random((16, 3), np.float32)}
    for index, sample in enumerate(samples):
        np.savez(model.parent / f"{index}.npz", lr=np.float32(0.1), **sample, **(start if index == 0 else {}))
    done, found = compared(model, "--data", model.parent / "0.npz", "--data", model.parent / "1.npz")
    session, state, losses = sessions.open_session(model), start, []
    for sample in (*samples, samples[0]):
        made = sessions.run_session(session, {**sample, **state, "lr": np.array(0.1, np.float32)})
        state = {"w1": made["w1_new"], "w2": made["w2_new"]}
        losses.append(made["loss"].item())
    assert [step["loss"] for step in found["steps"]] == losses
    assert (done.exit_code, found["ok"], found["verdict"]) == (0, True, "PASS")
    assert all(0 < step["update"] < 0.01 and 0 < step["error"] < 1e-3 for step in found["steps"])
    assert "compared 3 steps with the original's on 0.npz, 1.npz" in done.output
    assert done.output.count(" PASS") == 3


SMALL = "float loss_grad = {1.0e-7}"
"""Every gradient is zero in float16."""


@pytest.mark.parametrize(
    ("stored", "flags", "code", "verdict"),
    [
        ("float loss_grad = {1.0}", (), 0, "PASS"),
        (SMALL, ("--loss-scale", "none"), 1, "FAIL"),
        (SMALL, ("--loss-scale", "32768"), 0, "PASS"),
        (SMALL, ("--to", "bfloat16"), 0, "PASS"),
        ("float loss_grad = {1.0}", ("--loss-scale", "1e9"), 1, "FAIL"),
        ("float loss_grad = {1.0e-30}", (), 1, "inconclusive"),
    ],
)
def test_a_step_that_learns_otherwise_fails(tmp_path, stored, flags, code, verdict):
    """Gradients that are flushed to zero, or overflow; nothing is proved where nothing is learnt."""
    onnx.save(train_steps.step(train_steps.source(stored=stored)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", lr=np.float32(1e5 if stored == SMALL else 1e-3))
    done, found = compared(tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *flags)
    assert (done.exit_code, found["verdict"]) == (code, verdict), done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith(f"{verdict}  ")]
    assert "largest error of the loss " in line


def test_steps_that_the_scale_skips_are_tried_again(model):
    """They are counted; what is compared are steps that were taken."""
    done, found = compared(model, "--loss-scale", f"initial={2**40}")
    assert found["steps"][0]["skipped"] > 20
    assert (done.exit_code, found["verdict"]) == (0, "PASS")


def test_an_original_that_is_not_finite_proves_nothing(model):
    """The verdict is inconclusive."""
    np.savez(model.parent / "d.npz", x=np.full((8, 4), np.inf, np.float32))
    done, found = compared(model, "--data", model.parent / "d.npz")
    assert (done.exit_code, found["verdict"]) == (1, "inconclusive")


def test_the_scale_changes_no_bit(model):
    """The float32 step with it is run beside the original, with a power of two in place of another number."""
    for scale, number in (("dynamic", 32768), ("1000", 512), ("dynamic,initial=1e30,period=1", 2**99)):
        done, found = compared(model, "--loss-scale", scale)
        assert (found["scaled"]["different"], found["scaled"]["not_run"]) == ("", "")
        assert f"a scale of {number:g} has the bits of the original in 3 steps" in done.output
    assert compared(model, "--loss-scale", "none")[1]["scaled"] is None


def test_digits_of_subnormal_gradients_are_no_fault(tmp_path):
    """The original loses them, and the step with a scale does not."""
    onnx.save(train_steps.step(train_steps.source(stored="float loss_grad = {1.0e-38}")), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", lr=np.float32(1))
    _, found = compared(tmp_path / "m.onnx", "--data", tmp_path / "d.npz")
    assert (found["scaled"]["different"], found["scaled"]["not_run"]) == ("", "")


def test_a_scale_that_changes_bits_fails(model, monkeypatch):
    """A reciprocal of another number is a fault of ours, which the comparison of half need not show."""
    scalar = NodeBuilder.scalar

    def other(build, stem, number, dtype):
        return scalar(build, stem, 1.125 if stem == "loss_scale__one" else number, dtype)

    monkeypatch.setattr(NodeBuilder, "scalar", other)
    done, found = compared(model)
    assert "a scale of 32768 has other bits in 'w1_new' in step 1" in done.output
    assert (done.exit_code, found["verdict"], {step["update"] < 0.25 for step in found["steps"]}) == (
        1,
        "FAIL",
        {True},
    )


def test_a_skipped_step_that_changes_state_fails(model, monkeypatch):
    """The scale is made infinite for one step, since no gradient of three usual ones is."""
    monkeypatch.setattr("amp_rewrite.training.insertion.guard", lambda *_: ())
    done, _ = compared(model)
    assert done.exit_code == 1
    assert "a scale of 32768 changes 'w1_new' in a step that is skipped" in done.output


DROPPED = train_steps.source(
    forward="h0 = MatMul (x, w1)  h = Dropout (h0, half, yes)",
    stored="float loss_grad = {1.0}, float half = {0.5}, bool yes = {1}",
    opset=13,
)
LOW = train_steps.source(forward="lx = Cast <to = 10> (x)  hx = Cast <to = 1> (lx)  h = MatMul (hx, w1)")


@pytest.mark.parametrize(
    ("written", "why"),
    [(DROPPED, "the original itself gives other bits when it is run again"), (LOW, "has half values")],
    ids=["random", "half"],
)
def test_a_scale_that_cannot_be_judged_was_not_run(tmp_path, written, why):
    """The line says so, and the comparison of half decides."""
    onnx.save(train_steps.step(written), tmp_path / "m.onnx")
    done, found = compared(tmp_path / "m.onnx")
    assert why in found["scaled"]["not_run"]
    assert "a scale of 32768 was not run beside the original: the original" in done.output


def test_what_was_not_compared_says_why(model):
    """With --skip verify."""
    done, found = compared(model, "--skip=verify")
    assert (done.exit_code, found) == (0, {"unverified": "--skip verify was given"})


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_sizes_that_no_machine_holds_are_refused_at_once(model, flags):
    """Before anything is rewritten."""
    step = onnx.load(model)
    step.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 62
    onnx.save(step, model)
    output = () if flags else ("-o", model.parent / "t.onnx")
    line = failure("train", model, *output, *flags)
    assert "input 'x' has 4611686018427387904 x 4 elements, more than any machine holds; export" in line
    assert not (model.parent / "t.onnx").exists()


@pytest.mark.parametrize("name", train_steps.NAMES)
@pytest.mark.parametrize("flags", [(), ("--to", "bfloat16")])
@pytest.mark.slow
def test_real_steps_pass(tmp_path, name, flags):
    """On made-up inputs, and from the states that they come with."""
    model = train_steps.FOLDER / f"{name}.onnx"
    if not model.exists():
        pytest.skip("needs the shared train steps")
    for data in ((), ("--data", model.with_suffix(".npz"))):
        done = run("train", model, "-o", tmp_path / "t.onnx", *flags, *data)
        assert (done.exit_code, done.output.count(" PASS")) == (0, 3), done.output
