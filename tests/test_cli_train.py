"""`amp-rewrite train`: what it writes and says, and what it refuses."""

import json

import numpy as np
import onnx
import pytest

from amp_rewrite.running import sessions
from amp_rewrite.training.insertion import NodeBuilder
from tests import train_steps
from tests.commands import run


@pytest.fixture
def model(tmp_path):
    """A small train step in a folder of its own."""
    onnx.save(train_steps.step(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


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


@pytest.mark.parametrize("name", train_steps.NAMES)
@pytest.mark.parametrize("flags", [(), ("--to", "bfloat16")])
@pytest.mark.slow
def test_real_steps_pass(tmp_path, name, flags):
    """On synthetic inputs, and from the states that they come with."""
    model = train_steps.FOLDER / f"{name}.onnx"
    if not model.exists():
        pytest.skip("needs the shared train steps")
    for data in ((), ("--data", model.with_suffix(".npz"))):
        done = run("train", model, "-o", tmp_path / "t.onnx", *flags, *data)
        assert (done.exit_code, done.output.count(" PASS")) == (0, 3), done.output
