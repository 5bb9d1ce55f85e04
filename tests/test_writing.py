"""Results as files: where the weights go, and what happens when nothing can be written."""

import errno

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.model import writing
from amp_rewrite.model.external_data import SIGNATURE
from amp_rewrite.policy.options import Beside, ExternalData, IOTypes, Options
from tests import text
from tests.model_files import content, external, model, names, save_external, saved, weight
from tests.refusals import refusal

__all__ = ["external", "model", "saved"]

NEVER = Options(external_data=ExternalData(Beside.NEVER))


@pytest.mark.parametrize("operator", ["MatMul", "Pow"])
def test_weights_go_beside_when_asked(tmp_path, operator):
    """ALWAYS writes large weights as external data, also for a model that does not change."""
    proto = text.model(
        "g (float[32,32] x) => (float[32,32] y) <float[32,32] w, float[32] b> {"
        f"h = {operator}(x, w)  y = Add(h, b) }}"
    )
    onnx.save(proto, tmp_path / "m.onnx")
    made = rewrite(tmp_path / "m.onnx", Options(external_data="always")).model
    stored = {t.name: t for t in onnx.load(made, load_external_data=False).graph.initializer}
    assert stored["w"].external_data[0].value == "m_fp16.onnx.data"
    assert not stored["b"].external_data, "small tensors stay inside"


def test_weights_go_inside_when_asked(external):
    """NEVER writes the weights of a model with external data into the model file, also in place."""
    expected = weight(external).astype(np.float16)
    made = rewrite(external, NEVER, in_place=True).model
    np.testing.assert_array_equal(weight(made, external=False), expected)
    assert names(external.parent) == ["m.onnx", "m.onnx.data"]


def test_weights_in_several_files(tmp_path):
    """With a largest size there are several files, none larger but for a single tensor; in place they are
    replaced, and none of ours is left.
    """
    kinds = ", ".join(f"float[32,32] w{i}" for i in range(5))
    nodes = " ".join(f"h{i + 1} = MatMul(h{i}, w{i})" for i in range(5))
    proto = text.model(f"g (float[32,32] h0) => (float[32,32] h5) <{kinds}> {{ {nodes} }}")
    expected = [numpy_helper.to_array(t).astype(np.float16) for t in proto.graph.initializer]
    save_external(proto, tmp_path / "m.onnx", "m.onnx.data")
    for again in ("m.onnx.1", "m.onnx.2"):
        options = Options(external_data=ExternalData(Beside.ALWAYS, 5000), io=IOTypes.HALF)
        made = rewrite(tmp_path / "m.onnx", options, in_place=True).model
        files = [f"{again}.0000{i}-of-00003.data" for i in (1, 2, 3)]
        assert names(tmp_path) == sorted(["m.onnx", "m.onnx.data", *files])
        sizes = [(tmp_path / name).stat().st_size - len(SIGNATURE) for name in files]
        assert sizes == [4096, 4096, 2048]
        found = [numpy_helper.to_array(t) for t in onnx.load(made).graph.initializer]
        np.testing.assert_array_equal(found, expected)


def test_too_large_for_one_file(model, saved, external, monkeypatch):
    """Beyond protobuf's limit weights become external data; NEVER, bytes and protos are an error in one line,
    and nothing is written.
    """
    monkeypatch.setattr(writing, "PROTOBUF_LIMIT", 16)
    before = names(external.parent)
    line = refusal(rewrite, external, NEVER)
    assert line.endswith("protobuf's limit is 2 GiB; leave out `Options.external_data=NEVER`")
    assert names(external.parent) == before
    for source in (model, model.SerializeToString()):
        assert "give a path" in refusal(rewrite, source)
    assert weight(rewrite(saved).model).dtype == np.float16
    assert saved.with_name("m_fp16.onnx.data").is_file()


def test_external_data_is_for_a_path(model):
    """The option is refused for a model in memory."""
    with pytest.raises(OptionError):
        rewrite(model, Options(external_data="always"))


# ---- what cannot be written


def full_disk(*_, **__):
    """Raises the error of a write to a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails", ["pathlib.Path.write_bytes", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file(saved, monkeypatch, fails):
    """If writing or moving fails, the old output stays, and nothing is left beside it."""
    saved.with_name("out.onnx").write_bytes(b"old")
    before = content(saved.parent)
    monkeypatch.setattr(fails, full_disk)
    assert "No space left" in refusal(rewrite, saved, output=saved.with_name("out.onnx"), force=True)
    assert content(saved.parent) == before


def full_at_the_model(place):
    """A replace that fails for the model alone: its data has moved."""
    replace = type(place).replace

    def stop(self, target):
        return full_disk() if target == place else replace(self, target)

    return stop


@pytest.mark.parametrize(
    ("fails", "failure"),
    [
        ("pathlib.Path.write_bytes", lambda _: full_disk),
        ("onnx_ir.external_data.convert_tensors_to_external", lambda _: full_disk),
        ("pathlib.Path.replace", full_at_the_model),
    ],
)
def test_a_full_disk_leaves_the_old_data(external, monkeypatch, fails, failure):
    """The same with external data, also where it was moved and the model cannot be: in place, both files are
    unchanged, and nothing is left.
    """
    before = content(external.parent)
    monkeypatch.setattr(fails, failure(external))
    with pytest.raises(OutputError, match="No space left"):
        rewrite(external, in_place=True)
    assert content(external.parent) == before
