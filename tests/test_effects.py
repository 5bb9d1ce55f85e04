"""What rounding at each node adds to the error of the outputs, and who is blamed by it."""

import json
import math

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.running import emulation, sessions
from amp_rewrite.running.blame import blame
from amp_rewrite.running.emulation import switched_emulation
from amp_rewrite.running.sessions import Device
from amp_rewrite.tuning import sensitivity
from tests.commands import run
from tests.test_tuning import LOST, MODELS, offset, with_feeds
from tests.text import model

pytest.importorskip("onnxruntime")
FORCED = Options(level=Level.UNSAFE_FORCE_ALL)
HIDDEN = """g (float[8, 64] x) => (float[8, 64] y) <float[64, 64] w, float many = {64}> {
  [front] a = MatMul (x, w)
  [much] b = Mul (a, many)
  [phase] c = Sin (b)
  [gate] d = Sigmoid (a)
  [back] y = Mul (c, d)
}"""
"""What half loses in `much` is small beside its value, and is an angle."""


@pytest.mark.parametrize("io", ["keep", "half"])
@pytest.mark.parametrize("name", MODELS)
def test_all_switches_are_the_emulation_and_none_is_float32(name, io):
    """With all on, the session computes what the emulation does; with none, nearly what the model does."""
    source, feeds = with_feeds(name)
    half = amp_rewrite.rewrite(source, Options(io=io)).model
    made = switched_emulation(half)
    count = len(made.values)
    assert count > 0
    with emulation.runnable(made.loaded) as proto:
        session = sessions.open_session(proto, Device.CPU)
    given = {name: _as(session, name, value) for name, value in feeds.items()}
    on, off = (
        sessions.run_session(session, {**given, made.switches: np.full(count, switch)})
        for switch in (True, False)
    )
    emulated = sessions.run_session(sessions.open_session(amp_rewrite.emulate(half), Device.CPU), given)
    exact = sessions.run_session(sessions.open_session(source, Device.CPU), feeds)
    for name, value in emulated.items():
        np.testing.assert_array_equal(on[name], value)
        np.testing.assert_allclose(off[name], exact[name], rtol=4e-3, atol=4e-3)


def _as(session, name, value):
    """An input in the type that the session takes."""
    types = {"tensor(float16)": np.float16}
    wanted = next(entry.type for entry in session.get_inputs() if entry.name == name)
    return value.astype(types.get(wanted, value.dtype))


def test_effects_are_those_of_single_roundings():
    """Of each node, the error that verify gives where it alone is half; their squares sum up to the whole."""
    source, sample = offset()
    whole = amp_rewrite.rewrite(source, FORCED).model
    found = sensitivity.by_node(source, whole, sample)
    total = amp_rewrite.verify(source, whole, sample, device="cpu").error
    assert math.sqrt(sum(error**2 for error in found.values())) == pytest.approx(total, rel=0.3)
    assert found["shift"] > 0.3 * total > 10 * found["back"]


def test_what_matters_is_blamed_and_not_what_is_wrong_itself():
    """An error of a thousandth that is an angle of a radian comes before larger ones that are factors."""
    source = model(HIDDEN)
    draw = np.random.default_rng(0)
    weights = (draw.normal(size=(64, 64)) / 8).astype(np.float16).astype(np.float32)
    for tensor in source.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    sample = {"x": draw.normal(size=(8, 64)).astype(np.float16).astype(np.float32)}
    half = amp_rewrite.rewrite(source, FORCED).model
    plain = blame(source, half, sample, device=Device.CPU)
    assert plain.nodes[0].node in ("phase", "back")
    by_node = sensitivity.by_node(source, half, sample)
    found = blame(source, half, sample, effects=by_node, device=Device.CPU)
    assert {error.node for error in found.nodes[:2]} == {"front", "much"}
    assert set(found.keep_full) >= {"front", "much", "phase"}  # a Cast before `phase` would round it as well
    pinned = Options(level=Level.UNSAFE_FORCE_ALL, pins=Pins(keep_full=("front", "much", "phase")))
    better = amp_rewrite.rewrite(source, pinned).model
    errors = [amp_rewrite.verify(source, each, sample, device="cpu").error for each in (half, better)]
    assert errors[1] < errors[0] / 10


def test_what_overflows_has_no_bound():
    """The effect of a value that leaves the range of half is infinite, and those of others are numbers."""
    large = model(LOST, {"w": np.eye(64, dtype=np.float32)})
    found = sensitivity.by_node(
        large, amp_rewrite.rewrite(large, FORCED).model, {"x": np.full((8, 64), 30, np.float32)}
    )
    assert [name for name, error in found.items() if error == math.inf] == ["square"]


def test_bodies_count_for_the_node_that_has_them():
    """What is rounded in a branch is an effect of the If."""
    text = """g (float[4, 8] x, bool c) => (float[4, 8] y) <float[8, 8] w> { [first] a = MatMul (x, w)
        [pick] b = If (c) <then_branch = t () => (float[4, 8] p) { k = MatMul (a, w) p = Tanh (k) },
        else_branch = e () => (float[4, 8] q) { q = Tanh (a) }> [last] y = MatMul (b, w) }"""
    draw = np.random.default_rng(0)
    source = model(text, {"w": draw.normal(size=(8, 8)).astype(np.float16).astype(np.float32)})
    sample = {"x": draw.normal(size=(4, 8)).astype(np.float32), "c": np.array(True)}
    found = sensitivity.by_node(source, amp_rewrite.rewrite(source, FORCED).model, sample)
    assert found["pick"] > 1e-5
    assert set(found) <= {"first", "pick", "last"}


def test_the_command_ranks_by_effect(tmp_path):
    """On the terminal, in JSON and on the page, with the node's own error beside it."""
    source, sample = offset()
    onnx.save(source, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **sample)
    flags = ("--level", "unsafe-force-all", "--data", tmp_path / "in.npz", "--show=nodes", "--require=verify")
    files = ("--json", tmp_path / "r.json", "--html", tmp_path / "p.html")
    done = run(tmp_path / "m.onnx", "-o", tmp_path / "h.onnx", *flags, *files)
    assert "to the outputs; its own error" in done.output
    told = json.loads((tmp_path / "r.json").read_text())["verification"]["blame"]["nodes"]
    effects_ = [node["effect"] for node in told]
    assert effects_ == sorted(effects_, reverse=True)
    assert told[0]["node"] in ("shift", "mean", "centre")
    assert f'"effect":"{told[0]["effect"]:.1e}"' in (tmp_path / "p.html").read_text()


def test_a_large_model_is_left_alone(monkeypatch):
    """A session would take a copy of it."""
    monkeypatch.setattr(sensitivity, "LARGE", 1)
    source, sample = offset()
    half = amp_rewrite.rewrite(source).model
    assert sensitivity.by_node(source, half, sample) is None
