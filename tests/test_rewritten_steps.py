"""Rewrites of train steps: what they leave as it is, and weights that are stored elsewhere."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from amp_rewrite import Options, Pins, certify, training
from amp_rewrite.options import ExternalData
from amp_rewrite.rewriting import editing
from amp_rewrite.running import sessions
from amp_rewrite.training import (
    DynamicLossScale,
    FixedLossScale,
    TrainSpec,
    find_spec,
    insert_loss_scale,
    rewrite_train_step,
)
from amp_rewrite.training.insertion import NodeBuilder
from tests import text, train_steps
from tests.commands import failure, refusal, run
from tests.test_training import SAID, SCALES, TRAPS
from tests.train_steps import NAMES, batches, source, start, step, train

ARTEFACT = """<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
  training (float[8, 4] x, float[8, 3] y, float[4, 3] w, float[4, 3] w_buffer, bool[1] lazy_reset_grad)
    => (float loss, bool[1] w_done) <float loss_grad = {1.0}, float scale = {0.5}> {
    xt = Transpose <perm = [1, 0]> (x)
    p = MatMul (x, w)  r = Relu (p)  d = Sub (r, y)  sq = Mul (d, d)  loss = ReduceMean <keepdims = 0> (sq)
    dm = Mul (d, scale)  dr = Mul (dm, loss_grad)  dp = com.microsoft.ReluGrad (dr, r)
    w_grad = MatMul (xt, dp)
    w_done = com.microsoft.InPlaceAccumulatorV2 (w_buffer, w_grad, lazy_reset_grad)
  }"""


def _at_opset_8():
    model = step(source(opset=9))
    model.opset_import[0].version = 8
    return model


def test_what_a_step_has_stays():
    """Its loss scale, where no other is asked for; that it has no other state; its loss by name, even if no
    shape is declared.

    An opset of 8 takes a fixed scale.
    """
    half = rewrite_train_step(insert_loss_scale(step()).model, loss_scale=None)
    assert training.initial_state(half.model) == {"loss_scale": 2**15, "good_steps": 0}
    assert insert_loss_scale(_at_opset_8(), None, 8).step.frontier == ("dw2", "dw1")
    kept = source("g1 = Identity (dw1)  g2 = Identity (dw2)", new="float[4, 16] g1, float[16, 3] g2")
    scaled = insert_loss_scale(step(kept), TrainSpec(gradients=("dw1", "dw2")))
    assert find_spec(scaled.model) == scaled.step.spec
    assert scaled.step.guessed == ()
    model = step()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert find_spec(model).loss == "loss"


def test_a_scale_goes_into_artefacts():
    """Its gradient operators are known to be linear: the accumulator gets what it got."""
    spec = TrainSpec("loss", "loss_grad", (), ("w_grad",))
    result = insert_loss_scale(text.unchecked(ARTEFACT), spec, 256)
    nodes = {node.op_type: node for node in result.model.graph.node}
    assert nodes["InPlaceAccumulatorV2"].input[1] == "w_grad__unscaled"
    assert result.step.frontier == ("w_grad",)
    (unscale,) = (node for node in result.model.graph.node if "w_grad__unscaled" in node.output)
    assert list(unscale.input) == ["w_grad", "loss_scale__reciprocal"]


def test_weights_in_a_file_of_their_own(tmp_path):
    """A path is written to where it is said; the original and its data stay, as do the values."""
    stored = "float loss_grad = {1.0}, float[8, 4] mask"
    model = step(source(forward="xe = Mul (x, mask)  h = MatMul (xe, w1)", stored=stored))
    path, scaled, half = (tmp_path / name for name in ("m.onnx", "s.onnx", "h.onnx"))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="m.data")
    given, model = path.read_bytes(), onnx.load(path)
    assert insert_loss_scale(path, output=scaled).model == scaled
    before, after = (
        train(each, find_spec(scaled), start(model), batches(model, 2)) for each in (model, onnx.load(scaled))
    )
    assert before.losses == after.losses
    external = Options(external_data=ExternalData("always"))
    assert rewrite_train_step(path, options=external, output=half).report.ok
    assert training.initial_state(half) == {"loss_scale": 2**15, "good_steps": 0}
    assert (path.read_bytes(), (tmp_path / "m.data").exists()) == (given, True)
    assert "a path needs an output" in refusal(insert_loss_scale, path)
    told = refusal(insert_loss_scale, path, output=tmp_path / "m.data", force=True)
    assert "holds weights of the input" in told


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_seeds_of_other_types(dtype):
    """The seed and the gradients keep their types; they are scaled in float32 at least."""
    low = f"low = Cast <to = {10 if dtype == 'float16' else 11}> (dm)"
    seeded = f"{low} dl = Mul (low, loss_grad) dp = Cast <to = 1> (dl)"
    ones = {"loss_grad": np.ones((), dtype)}
    model = text.model(source(seeded=seeded, stored=f"{dtype} loss_grad"), ones)
    result = insert_loss_scale(model, None, DynamicLossScale(4.0, 2))
    assert result.broken == ()
    fed = batches(model, 4)
    before, after = (train(m, result.step.spec, start(model), fed) for m in (model, result.model))
    assert before.losses == pytest.approx(after.losses, rel=1e-6)


def test_pins_and_lists_count_as_ever():
    """A pin makes half what it names, in the loss region too; an operator override does not."""
    model = step()
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    pinned = rewrite_train_step(model, options=Options(pins=Pins(force_half="node_d")))
    casts = {node.output[0]: node for node in pinned.model.graph.node}
    assert casts["d"].input[0] == "p"
    kept = rewrite_train_step(model, options=Options(pins=Pins(keep_full="node_dw1")))
    assert next(node for node in kept.model.graph.node if "dw1" in node.output).input[0] == "xt"
    assert kept.report.nodes.half < rewrite_train_step(model).report.nodes.half


@pytest.mark.parametrize("implementation", ["graph_rewrite", "casting"])
def test_the_certificate_covers_the_rest(implementation):
    """A rewritten step is proved to be the scaled one but for precision."""
    model, _ = train_steps.real("cnn_momentum")
    half = rewrite_train_step(model, implementation=implementation)
    assert certify(insert_loss_scale(model).model, half.model).proved
    assert not certify(insert_loss_scale(model, None, 128).model, half.model).proved


# ---- `amp-rewrite train`: what it writes and says, and what it refuses


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


# ---- the certificate of train steps: the result is proved to be the float32 step with its scale


@pytest.mark.parametrize("scale", [*SCALES, FixedLossScale(1000.0)], ids=["fixed", "dynamic", "odd"])
@pytest.mark.parametrize("trap", TRAPS)
def test_the_rest_of_a_rewrite_is_proved(trap, scale):
    """Whatever the step is made of: the report has the proof, and `certify` finds it again."""
    model = step(TRAPS[trap])
    result = training.rewrite_train_step(model, loss_scale=scale)
    assert result.report.certificate.proved
    assert certify(training.insert_loss_scale(model, None, scale).model, result.model).proved


@pytest.mark.parametrize("name", SAID)
def test_odd_steps_are_proved(name):
    """The frontier is an output, the only output, or in a body."""
    written, state, gradients = SAID[name]
    spec = training.TrainSpec("loss", "loss_grad", state, gradients)
    for scale in (64, DynamicLossScale(64, 2)):
        assert training.rewrite_train_step(
            step(written), loss_scale=scale, spec=spec
        ).report.certificate.proved


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["graph_rewrite", "casting"])
@pytest.mark.parametrize("name", NAMES)
def test_real_steps_are_proved(name, implementation):
    """In both half types, with every kind of scale."""
    model, _ = train_steps.real(name)
    for to in ("float16", "bfloat16"):
        for scale, skips in (("dynamic", False), (1024, False), (3.0, True), (None, False)):
            result = training.rewrite_train_step(model, to, scale, implementation, skip_nonfinite=skips)
            assert result.report.certificate.proved


def test_weights_in_files_are_proved(tmp_path):
    """Also where they lie in a folder below that of the step."""
    written = train_steps.source(
        forward="xe = Mul (x, mask)  h = MatMul (xe, w1)", stored="float loss_grad = {1.0}, float[8, 4] mask"
    )
    (tmp_path / "below").mkdir()
    onnx.save(
        text.unchecked(written),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
        location="below/m.data",
    )
    result = training.rewrite_train_step(tmp_path / "m.onnx", output=tmp_path / "h.onnx")
    assert result.report.certificate.proved


def test_the_original_is_no_proof(tmp_path):
    """The line says what to give in its place, and that is proved."""
    onnx.save(step(), tmp_path / "step.onnx")
    run("train", tmp_path / "step.onnx", "-o", tmp_path / "half.onnx")
    refused = run("certify", tmp_path / "step.onnx", tmp_path / "half.onnx")
    assert refused.exit_code == 1
    assert "`amp-rewrite train ORIGINAL --to float32 --loss-scale ...`" in refused.output
    scaled = ("--to", "float32", "--loss-scale", "dynamic", "-o", tmp_path / "scaled.onnx")
    run("train", tmp_path / "step.onnx", *scaled)
    proved = run("certify", tmp_path / "scaled.onnx", tmp_path / "half.onnx")
    assert (proved.exit_code, "proved equal but for precision" in proved.output) == (0, True)


def test_a_scale_that_both_have_is_a_part_of_the_model():
    """A step that had a loss scale is rewritten without another."""
    model = training.insert_loss_scale(step(), None, DynamicLossScale(64, 2)).model
    assert certify(model, training.rewrite_train_step(model, loss_scale=None).model).proved
    other = training.insert_loss_scale(step(), None, DynamicLossScale(64, 3)).model
    assert not certify(other, training.rewrite_train_step(model, loss_scale=None).model).proved


def test_a_result_that_is_not_proved_is_not_written(tmp_path, monkeypatch):
    """A fault of ours is one line, and leaves nothing behind."""
    onnx.save(step(), tmp_path / "step.onnx")

    def spoil(plan, model, nodes, types):
        casts = editing.apply(plan, model, nodes, types)
        move = next(node for node in model.graph if node.outputs[0].name == "a1")
        move.replace_input_with(1, next(value for value in model.graph.inputs if value.name == "w1"))
        return casts

    monkeypatch.setattr("amp_rewrite.pipeline.editing", SimpleNamespace(apply=spoil))
    said = failure("train", tmp_path / "step.onnx", "-o", tmp_path / "half.onnx")
    assert "please report this fault" in said
    assert not (tmp_path / "half.onnx").exists()
