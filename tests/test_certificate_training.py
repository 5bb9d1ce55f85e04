"""The certificate of train steps: the result is proved to be the float32 step with its scale."""

from __future__ import annotations

from types import SimpleNamespace

import onnx
import pytest

from amp_rewrite import certify, training
from amp_rewrite.rewriting import editing
from amp_rewrite.training import DynamicLossScale, FixedLossScale
from tests import text, train_steps
from tests.commands import failure, run
from tests.test_training import SAID, SCALES, TRAPS
from tests.train_steps import NAMES, step


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
