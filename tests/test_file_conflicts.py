"""What a function is to write is looked at before any work is done."""

import onnx
import pytest

import amp_rewrite
from amp_rewrite import Observed, rewrite
from amp_rewrite.demo import train_step
from amp_rewrite.training import insert_loss_scale, rewrite_train_step
from tests import text
from tests.commands import refusal
from tests.model_files import GRAPH, content, save_external

OTHER = "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { a = MatMul(x, w)  y = Relu(a) }"
WRITERS = {
    "rewrite": lambda model, place, **force: rewrite(model, output=place, **force),
    "restore": lambda model, place, **force: amp_rewrite.restore(model, output=place, **force),
    "train": lambda model, place, **force: rewrite_train_step(model, output=place, **force),
    "insert": lambda model, place, **force: insert_loss_scale(model, output=place, **force),
    "plan": lambda model, place, **force: amp_rewrite.analyze(model).save_plan(place, **force),
    "observed": lambda _, place, **force: Observed("of a model", 1, {}).save(place, **force),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_function_replaces_what_amp_rewrite_did_not_write(tmp_path, writer):
    """Notes and models of others stay, but with force=True; what the function wrote is replaced."""
    model, write = tmp_path / "step.onnx", WRITERS[writer]
    onnx.save(train_step(), model)
    (tmp_path / "notes.txt").write_text("notes")
    onnx.save(text.model(OTHER), tmp_path / "net.onnx")
    before = content(tmp_path)
    for name in ("notes.txt", "net.onnx"):
        line = refusal(write, model, tmp_path / name)
        assert line.endswith("choose another place, or replace it with `force=True`")
    assert content(tmp_path) == before
    for name in ("notes.txt", "net.onnx", "new"):
        write(model, tmp_path / name, force=name != "new")
        write(model, tmp_path / name)
        assert content(tmp_path)[tmp_path / name] != before.get(tmp_path / name)


def test_the_default_place_and_the_weights_of_the_input_are_as_safe(tmp_path):
    """A model of others at the default path stays, but with force; weights of the input with it, too."""
    model, place = tmp_path / "ext.onnx", tmp_path / "ext_fp16.onnx"
    save_external(text.model(GRAPH), model, "ext.onnx.data")
    onnx.save(text.model(OTHER), place)
    before = content(tmp_path)
    assert "is a model that amp-rewrite did not create" in refusal(rewrite, model)
    weights = tmp_path / "ext.onnx.data"
    assert "holds weights of the input" in refusal(rewrite, model, output=weights, force=True)
    assert content(tmp_path) == before
    assert rewrite(model, force=True).model == rewrite(model).model == place
