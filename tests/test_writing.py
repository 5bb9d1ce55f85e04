"""Results as files: where the weights go, and what happens when nothing can be written."""

import errno

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.model import writing
from amp_rewrite.model.external_data import SIGNATURE
from amp_rewrite.policy.options import Beside, ExternalData, IOTypes, Options
from tests import text
from tests.model_files import external, line, model, names, save_external

__all__ = ["external", "model"]

ALWAYS, NEVER = ExternalData(Beside.ALWAYS), ExternalData(Beside.NEVER)


def test_weights_go_beside_when_asked(tmp_path):
    """ALWAYS writes large weights as external data, also for a model that does not change."""
    for operator in ("MatMul", "Pow"):
        proto = text.model(
            "g (float[32,32] x) => (float[32,32] y) <float[32,32] w, float[32] b> {"
            f"h = {operator}(x, w)  y = Add(h, b) }}"
        )
        onnx.save(proto, tmp_path / "m.onnx")
        made = rewrite(tmp_path / "m.onnx", Options(external_data=ALWAYS)).model
        stored = {t.name: t for t in onnx.load(made, load_external_data=False).graph.initializer}
        assert stored["w"].external_data[0].value == "m_fp16.onnx.data"
        assert not stored["b"].external_data, "small tensors stay inside"
        (tmp_path / "m_fp16.onnx").unlink()
        (tmp_path / "m_fp16.onnx.data").unlink()


def test_weights_go_inside_when_asked(external):
    """NEVER writes the weights of a model with external data into the model file, also in place."""
    expected = text.stored(onnx.load(external))["w"].astype(np.float16)
    made = rewrite(external, Options(external_data=NEVER), in_place=True).model
    np.testing.assert_array_equal(text.stored(onnx.load(made, load_external_data=False))["w"], expected)
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


def test_too_large_for_one_file(model, external, monkeypatch):
    """NEVER, bytes and protos beyond protobuf's limit are an error in one line, and nothing is written."""
    monkeypatch.setattr(writing, "PROTOBUF_LIMIT", 16)
    before = names(external.parent)
    with pytest.raises(OutputError) as caught:
        rewrite(external, Options(external_data=NEVER))
    assert line(caught).endswith("protobuf's limit is 2 GiB; leave out `Options.external_data=NEVER`")
    assert names(external.parent) == before
    for source in (model, model.SerializeToString()):
        with pytest.raises(OutputError) as caught:
            rewrite(source)
        assert "give a path" in line(caught)


def test_external_data_is_for_a_path(model):
    """The option is refused for a model in memory."""
    with pytest.raises(OptionError):
        rewrite(model, Options(external_data=ALWAYS))


@pytest.mark.parametrize("place", ["nope/../out.onnx", "m.onnx/out.onnx"])
def test_no_such_folder(model, tmp_path, place):
    """An output below a file, or behind a folder that does not exist, is refused; a new folder is made."""
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(OutputError) as caught:
        rewrite(tmp_path / "m.onnx", output=tmp_path / place)
    assert "cannot be written" in line(caught)
    assert rewrite(tmp_path / "m.onnx", output=tmp_path / "new" / "out.onnx").model.is_file()


def test_a_folder_is_no_output(model, tmp_path, monkeypatch):
    """A folder is refused as output; empty names are in test_slips.py."""
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    for output in (tmp_path, "."):
        with pytest.raises(OutputError) as caught:
            rewrite(tmp_path / "m.onnx", output=output)
        assert "is a folder" in line(caught)


@pytest.mark.parametrize("fails", ["pathlib.Path.write_bytes", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file(model, tmp_path, monkeypatch, fails):
    """If writing or moving fails, the old output stays, and nothing is left beside it."""
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "out.onnx").write_bytes(b"old")
    monkeypatch.setattr(fails, full_disk)
    with pytest.raises(OutputError) as caught:
        rewrite(tmp_path / "m.onnx", output=tmp_path / "out.onnx", force=True)
    assert "No space left" in line(caught)
    assert (tmp_path / "out.onnx").read_bytes() == b"old"
    assert names(tmp_path) == ["m.onnx", "out.onnx"]


@pytest.mark.parametrize(
    "fails", ["pathlib.Path.write_bytes", "onnx_ir.external_data.convert_tensors_to_external"]
)
def test_a_full_disk_leaves_the_old_data(external, monkeypatch, fails):
    """The same with external data: in place, both files are unchanged."""
    before = {path.name: path.read_bytes() for path in external.parent.iterdir()}
    monkeypatch.setattr(fails, full_disk)
    with pytest.raises(OutputError) as caught:
        rewrite(external, in_place=True)
    assert "No space left" in line(caught)
    assert {path.name: path.read_bytes() for path in external.parent.iterdir()} == before


def test_a_stop_between_data_and_model_leaves_the_old_pair(external, monkeypatch):
    """If the data was moved and the model cannot be, the old model keeps its data, and nothing is left."""
    before = {path.name: path.read_bytes() for path in external.parent.iterdir()}
    replace = type(external).replace

    def stop_at_the_model(self, target):
        if target == external:
            full_disk()
        return replace(self, target)

    monkeypatch.setattr(type(external), "replace", stop_at_the_model)
    with pytest.raises(OutputError):
        rewrite(external, in_place=True)
    assert {path.name: path.read_bytes() for path in external.parent.iterdir()} == before


def full_disk(*_, **__):
    """Raises the error of a write to a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_too_large_for_one_file_gets_external_data(tmp_path, monkeypatch):
    """Beyond protobuf's limit, weights become external data, although the input had none."""
    monkeypatch.setattr(writing, "PROTOBUF_LIMIT", 16)
    proto = text.model("g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }")
    onnx.save(proto, tmp_path / "m.onnx")
    made = rewrite(tmp_path / "m.onnx").model
    assert (tmp_path / "m_fp16.onnx.data").is_file()
    assert onnx.load(made).graph.initializer[0].data_type == TensorProto.FLOAT16
