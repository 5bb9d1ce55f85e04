"""Results and data in files: where weights go, what is refused, and what files a model refers to."""

import errno
import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import amp_rewrite
from amp_rewrite import Observed, rewrite
from amp_rewrite.arguments import Beside, ExternalData
from amp_rewrite.demo import train_step
from amp_rewrite.errors import OutputError
from amp_rewrite.model import external_data, output_paths, writing
from amp_rewrite.model import external_data as external_module
from amp_rewrite.policy.options import Options
from amp_rewrite.training import insert_loss_scale, rewrite_train_step
from tests import text
from tests.commands import refusal
from tests.model_files import (
    BESIDE,
    GRAPH,
    LARGE,
    content,
    external,
    model,
    names,
    refused,
    save_external,
    saved,
    weight,
)

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


# ---- what a function is to write is looked at before any work is done

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


# ---- which files a model refers to

__all__ = ["saved"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all files")
def test_data_that_an_unreadable_model_may_refer_to_stays(saved):
    """Nobody can know, and a warning says so."""
    out = rewrite(saved, BESIDE, output=saved.with_name("out.onnx")).model
    out.with_name("secret.onnx").write_bytes(b"\x08")
    out.with_name("secret.onnx").chmod(0)
    (warning,) = text.complaints(rewrite(saved, BESIDE, output=out))
    assert warning.endswith(
        "stays beside the result: it cannot be known whether others need it (Permission denied)"
    )
    assert out.with_name("out.onnx.data").is_file()


def test_tensors_everywhere(tmp_path):
    """Files of initializers, attributes, sparse tensors, bodies and functions are found."""
    places = iter("abcdefg")

    def placed(tensor):
        onnx.external_data_helper.set_external_data(tensor, next(places))
        tensor.ClearField("raw_data")
        return tensor

    def tensor(dtype=np.float32):
        return placed(numpy_helper.from_array(np.ones(2, dtype), "t"))

    constant = helper.make_node("Constant", [], ["c"], value=tensor())
    body = helper.make_graph([], "b", [], [], [tensor()])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=body)
    function = helper.make_function("f", "F", [], ["c"], [constant], [helper.make_opsetid("", 17)])
    graph = helper.make_graph([constant, branch], "g", [], [], [tensor()])
    graph.sparse_initializer.append(helper.make_sparse_tensor(tensor(), tensor(np.int64), [4]))
    model = helper.make_model(graph, functions=[function])
    model.training_info.add().algorithm.initializer.append(tensor())
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert {path.name for path in external_data.referenced_by(tmp_path / "m.onnx")} == set("abcdef")


def test_what_is_no_model_names_nothing(tmp_path):
    """Any file may be replaced by a result."""
    for written in (b"", b"location", b"\x08\x01 location", b"PK\x03\x04 location"):
        (tmp_path / "out").write_bytes(written)
        assert external_data.referenced_by(tmp_path / "out") == frozenset()
    assert external_data.referenced_by(tmp_path / "missing") == frozenset()


# ---- external data in memory, and data that shrinks

__all__ = ["external"]


def test_a_tensor_without_a_folder_may_lie_anywhere(external):
    """An onnx_ir.Model whose tensors have full paths and no base folder is rewritten."""
    source = ir.from_proto(onnx.load(external))
    (value,) = source.graph.initializers.values()
    where, shape = external.with_name("m.onnx.data"), ir.Shape((LARGE, LARGE))
    value.const_value = ir.ExternalTensor(
        where, 0, where.stat().st_size, ir.DataType.FLOAT, shape=shape, name="w"
    )
    (made,) = rewrite(source).model.graph.initializers.values()
    assert made.const_value.numpy().dtype == np.float16


@pytest.mark.parametrize("columns", [700, 701])
def test_data_that_shrinks_meanwhile(columns, tmp_path, monkeypatch):
    """A file truncated after it was checked is an error in one line, not a crash, whoever reads it first."""
    resolve, path = external_module.resolve, tmp_path / "m.onnx"
    stored = f"<float[700, {columns}] w>"
    source = f"g (float[1, 700] x) => (float[1, {columns}] y) {stored} {{ y = MatMul (x, w) }}"
    save_external(text.model(source), path, "m.onnx.data")

    def cut(model, path):
        found = resolve(model, path)
        path.with_name("m.onnx.data").write_bytes(b"short")
        return found

    monkeypatch.setattr(external_module, "resolve", cut)
    assert "it ends too early" in refused(path)
