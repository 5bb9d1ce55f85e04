"""Results as files: where the weights go, and what happens when nothing can be written."""

import errno

import numpy as np
import onnx
import pytest

from amp_rewrite import rewrite
from amp_rewrite.errors import OutputError
from amp_rewrite.files.beside import Beside, ExternalData
from amp_rewrite.model import output_paths, writing
from amp_rewrite.policy.options import Options
from tests import text
from tests.commands import refusal
from tests.model_files import content, external, model, names, saved, weight

__all__ = ["external", "model", "saved"]

NEVER = Options(external_data=ExternalData(Beside.NEVER))


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


def test_a_copy_says_who_wrote_it_beside_what_it_said(tmp_path):
    """A model in which nothing changes keeps its other metadata; a second copy has no second entry."""
    proto = text.model("g (float[2] x) => (float[2] y) { y = Exp (x) }")
    proto.metadata_props.add(key="author", value="somebody")
    path, first, second = (tmp_path / name for name in ("m.onnx", "first.onnx", "second.onnx"))
    onnx.save(proto, path)
    for source, target in ((path, first), (first, second)):
        assert not rewrite(source, output=target).report.changed
        entries = [(entry.key, entry.value) for entry in onnx.load(target).metadata_props]
        assert entries == [("author", "somebody"), (output_paths.WRITTEN, source.name)]


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
