"""The files that a function is to write are looked at before any work is done."""

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import Observed, rewrite
from amp_rewrite.demo import train_step
from amp_rewrite.errors import OptionError
from amp_rewrite.training import insert_loss_scale, rewrite_train_step
from tests import text


@pytest.fixture
def stored(tmp_path):
    """The path of a model with its weights in `ext.onnx.data`."""
    path = tmp_path / "ext.onnx"
    proto = text.model("g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }")
    onnx.save(proto, path, save_as_external_data=True, location="ext.onnx.data")
    return path


def content(folder):
    """The bytes of every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_library_does_not_write_over_weights(stored):
    """From Python, too, a result does not take the place of the data that it is made from."""
    before = content(stored.parent)
    with pytest.raises(OptionError, match="holds weights of the input"):
        rewrite(stored, output=stored.with_name("ext.onnx.data"), force=True)
    assert content(stored.parent) == before


OTHER = "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { a = MatMul(x, w)  y = Relu(a) }"


WRITERS_IN_PYTHON = {
    "rewrite": lambda model, place, **force: rewrite(model, output=place, **force),
    "restore": lambda model, place, **force: amp_rewrite.restore(model, output=place, **force),
    "train": lambda model, place, **force: rewrite_train_step(model, output=place, **force),
    "insert": lambda model, place, **force: insert_loss_scale(model, output=place, **force),
    "plan": lambda model, place, **force: amp_rewrite.analyze(model).save_plan(place, **force),
    "observed": lambda _, place, **force: Observed("of a model", 1, {}).save(place, **force),
}


@pytest.mark.parametrize("writer", WRITERS_IN_PYTHON)
def test_no_function_replaces_what_amp_rewrite_did_not_write(tmp_path, writer):
    """Notes, samples and models of others stay, but with force=True; what the function wrote is replaced."""
    model, write = tmp_path / "step.onnx", WRITERS_IN_PYTHON[writer]
    onnx.save(train_step(), model)
    np.savez(tmp_path / "samples.npz", x=np.ones(3))
    (tmp_path / "notes.txt").write_text("notes")
    onnx.save(text.model(OTHER), tmp_path / "net.onnx")
    before = content(tmp_path)
    for name in ("notes.txt", "samples.npz", "net.onnx"):
        with pytest.raises(OptionError, match=r"choose another place, or replace it with `force=True`"):
            write(model, tmp_path / name)
    assert content(tmp_path) == before
    for name in ("notes.txt", "samples.npz", "net.onnx", "new"):
        write(model, tmp_path / name, force=name != "new")
        write(model, tmp_path / name)
        assert content(tmp_path)[tmp_path / name] != before.get(tmp_path / name)


def test_a_model_at_the_default_path_stays_for_python_as_well(stored):
    """What nobody named is as safe."""
    place = stored.with_name("ext_fp16.onnx")
    onnx.save(text.model(OTHER), place)
    with pytest.raises(OptionError, match="is a model that amp-rewrite did not write"):
        rewrite(stored)
    assert rewrite(stored, force=True).model == place
    assert rewrite(stored).model == place
