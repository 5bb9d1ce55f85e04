"""Which data files of a replaced model are removed: those that amp-rewrite wrote."""

import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import Options, rewrite
from amp_rewrite.model import external_data
from tests import text
from tests.model_files import BESIDE, GRAPH, names, saved

__all__ = ["saved"]


@pytest.fixture
def out(saved):
    """The path of a result with its weights in `out.onnx.data`, and of its model `m.onnx` beside it."""
    return rewrite(saved, BESIDE, output=saved.with_name("out.onnx")).model


def again(out):
    """Writes the result again, and returns the warnings."""
    return text.complaints(rewrite(out.with_name("m.onnx"), BESIDE, output=out))


def changed(out, change):
    """The old model, changed by a function, takes its own place; weights stay where they are."""
    proto = onnx.load(out, load_external_data=False)
    change(proto, {entry.key: entry for entry in proto.graph.initializer[0].external_data})
    out.write_bytes(proto.SerializeToString())


def test_data_of_the_old_model_goes(out):
    """A file that only the old model refers to is removed, without a warning."""
    assert again(out) == ()
    assert names(out.parent) == ["m.onnx", "out.onnx", "out.onnx.1.data"]


def spoken_of(out):
    """Names in logs, documents, and in longer names are none: only tensors of models refer to files."""
    out.with_name("build.log").write_text("wrote out.onnx.data\n")
    proto = text.model(GRAPH)
    proto.doc_string = "out.onnx.data"
    onnx.save(proto, out.with_name("other.onnx"))
    rewrite(out.with_name("m.onnx"), BESIDE, output=out.with_name("an_out.onnx"))


def linked_folder(out):
    """A link to the folder shows the same files: what it shows is the old model itself."""
    out.with_name("latest").symlink_to(".")


def no_number(out):
    """Extents of too many digits."""
    changed(out, lambda _, entries: setattr(entries["offset"], "value", "1" * 100_000))
    changed(out, lambda _, entries: setattr(entries["length"], "value", "1" * 100_000))


@pytest.mark.parametrize("prepare", [spoken_of, linked_folder, no_number])
def test_what_does_not_keep_data(out, prepare):
    """It goes, without a warning."""
    prepare(out)
    assert again(out) == ()
    assert not out.with_name("out.onnx.data").exists()


def copied(out):
    """A copy of the old model lies beside it."""
    out.with_name("copy.onnx").write_bytes(out.read_bytes())


def printed(out, name):
    """The old model was saved as text."""
    onnx.save(onnx.load(out, load_external_data=False), out.with_name(name))


def linked(out):
    """A link stands in the place of the data."""
    out.with_name("out.onnx.data").rename(out.with_name("elsewhere"))
    out.with_name("out.onnx.data").symlink_to("elsewhere")


def added_to(out):
    """onnx.save appends to a file that is there: what ends otherwise than ours holds more than ours."""
    proto = text.model("g (float[32,32] x) => (float[32,32] y) <float[32,32] v> { y = Add(x, v) }")
    onnx.save(proto, out.with_name("added"), save_as_external_data=True, location="out.onnx.data")
    out.with_name("added").unlink()


def unreadable(out):
    """Another model may refer to it, and nobody can know."""
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("root may read all files")
    out.with_name("secret.onnx").write_bytes(b"\x08")
    out.with_name("secret.onnx").chmod(0)


READERS = [
    (copied, "copy.onnx refers to it"),
    (lambda out: printed(out, "r.textproto"), "r.textproto refers to it"),
    (lambda out: printed(out, "r.json"), "r.json refers to it"),
    (linked, "it is not a regular file"),
    (added_to, "amp-rewrite did not write it"),
    (unreadable, "it cannot be known whether others need it (Permission denied)"),
]


@pytest.mark.parametrize(("prepare", "reason"), READERS)
def test_data_that_somebody_may_read_stays(out, prepare, reason):
    """Whoever refers to it still loads, a link keeps its target, and a warning says why the data stays."""
    prepare(out)
    before = out.with_name("out.onnx.data").read_bytes()
    assert again(out) == (f"out.onnx.data stays beside the result: {reason}",)
    assert out.with_name("out.onnx.data").read_bytes() == before
    for name in {"out.onnx", "copy.onnx", "r.textproto", "r.json"} & {*names(out.parent)}:
        assert onnx.load(out.with_name(name)).graph.initializer


def test_data_of_the_input_stays(tmp_path):
    """Data that the replaced model shares with the input stays."""
    onnx.save(text.model(GRAPH), tmp_path / "m.onnx", save_as_external_data=True, location="w.data")
    (tmp_path / "out.onnx").write_bytes((tmp_path / "m.onnx").read_bytes())
    rewrite(tmp_path / "m.onnx", Options(check=False), output=tmp_path / "out.onnx", force=True)
    assert onnx.load(tmp_path / "m.onnx").graph.initializer
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data", "w.data"]


def test_data_in_another_folder_stays(out):
    """Nothing outside the folder of the result is removed."""
    data = out.parent / "sub" / "w"
    data.parent.mkdir()
    out.with_name("out.onnx.data").rename(data)
    changed(out, lambda _, entries: setattr(entries["location"], "value", "sub/w"))
    again(out)
    assert data.exists()


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
    for content in (b"", b"location", b"\x08\x01 location", b"PK\x03\x04 location"):
        (tmp_path / "out").write_bytes(content)
        assert external_data.referenced_by(tmp_path / "out") == frozenset()
    assert external_data.referenced_by(tmp_path / "missing") == frozenset()
