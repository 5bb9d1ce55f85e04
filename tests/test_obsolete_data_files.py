"""Which data files of a replaced model are removed: those that amp-rewrite wrote."""

import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import Options, rewrite
from amp_rewrite.model import external_data
from amp_rewrite.policy.options import Beside, ExternalData
from tests import text
from tests.commands import run
from tests.model_files import names

BESIDE = Options(check=False, external_data=ExternalData(Beside.ALWAYS))
GRAPH = "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }"


@pytest.fixture
def out(tmp_path):
    """The path of a result with its weights in `out.onnx.data`, and of its model `m.onnx` beside it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    onnx.save(text.model(GRAPH), folder / "m.onnx")
    return rewrite(folder / "m.onnx", BESIDE, output=folder / "out.onnx").model


def again(out):
    """Writes the result again, and returns the warnings."""
    return text.complaints(rewrite(out.with_name("m.onnx"), BESIDE, output=out))


def stays(out, reader):
    """Whether the old data stays when the result is written again, with a warning that names the reason."""
    data = out.with_name("out.onnx.data")
    before = data.read_bytes()
    warnings = again(out)
    assert (f"out.onnx.data stays beside the result: {reader}",) == warnings
    assert onnx.load(out).graph.initializer
    return data.read_bytes() == before


def test_data_of_the_old_model_goes(out):
    """A file that only the old model refers to is removed, without a warning."""
    assert again(out) == ()
    assert names(out.parent) == ["m.onnx", "out.onnx", "out.onnx.1.data"]


def test_a_name_in_the_bytes_is_no_reference(out):
    """A file name in a doc_string is not a reference."""
    mine = out.with_name("out.onnx.my_notes_and_data")
    mine.write_text("precious")
    proto = onnx.load(out, load_external_data=False)
    proto.doc_string = f"see {mine.name}, location"
    out.write_bytes(proto.SerializeToString())
    again(out)
    assert mine.read_text() == "precious"


def shared(out):
    """A copy of the old model lies beside it."""
    out.with_name("copy.onnx").write_bytes(out.read_bytes())


def linked(out):
    """A link stands in the place of the data."""
    out.with_name("out.onnx.data").rename(out.with_name("elsewhere"))
    out.with_name("out.onnx.data").symlink_to("elsewhere")


READERS = {
    shared: "copy.onnx refers to it",
    linked: "it is not a regular file",
}


@pytest.mark.parametrize("prepare", READERS)
def test_data_that_somebody_may_read_stays(out, prepare):
    """A copy of the old model still loads, a link keeps its target, and a warning says why the data stays."""
    prepare(out)
    assert stays(out, READERS[prepare])
    for copy in out.parent.glob("copy.onnx"):
        assert onnx.load(copy).graph.initializer


def test_what_only_speaks_of_the_data_does_not_keep_it(out):
    """Only tensors of models refer to files, no log; a longer name with the same end is another file."""
    out.with_name("build.log").write_text("wrote out.onnx.data\n")
    proto = text.model(GRAPH)
    proto.doc_string = "out.onnx.data"
    onnx.save(proto, out.with_name("other.onnx"))
    rewrite(out.with_name("m.onnx"), BESIDE, output=out.with_name("an_out.onnx"))
    assert again(out) == ()
    assert not out.with_name("out.onnx.data").exists()


def test_data_of_the_input_stays(tmp_path):
    """Data that the replaced model shares with the input stays."""
    proto = text.model(GRAPH)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.data")
    (tmp_path / "out.onnx").write_bytes((tmp_path / "m.onnx").read_bytes())
    rewrite(tmp_path / "m.onnx", Options(check=False), output=tmp_path / "out.onnx", force=True)
    assert onnx.load(tmp_path / "m.onnx").graph.initializer
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data", "w.data"]


def test_data_in_another_folder_stays(out):
    """Nothing outside the folder of the result is removed."""
    (out.parent / "sub").mkdir()
    data = out.parent / "sub" / "w"
    proto = onnx.load(out, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "sub/w"
    out.with_name("out.onnx.data").rename(data)
    out.write_bytes(proto.SerializeToString())
    again(out)
    assert data.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all files")
def test_what_cannot_be_read_may_refer(out):
    """If it is unknown whether a file is needed, it stays."""
    out.with_name("secret.onnx").write_bytes(b"\x08")
    out.with_name("secret.onnx").chmod(0)
    assert stays(out, "it cannot be known whether others need it (Permission denied)")


FOREIGN = ["model.safetensors", "weights.npy", "model.onnx.data", "model.onnx.1.data"]
"""Data files of another tool, by their names."""
COMMANDS = {
    "in place": ("{model}", "--in-place", "--skip=verify"),
    "over": ("{other}", "-o", "{model}", "--force", "--skip=verify"),
    "restored over": ("restore", "{other}", "-o", "{model}", "--force", "--skip=verify"),
    "tuned over": ("tune", "{other}", "-o", "{model}", "--force", "--tolerance", "error=1"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_ours_stays(tmp_path, name, command):
    """Weights of another tool are the same bytes after their model was replaced, and a line says so."""
    path, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    proto = text.model(GRAPH)
    onnx.save(proto, other)
    onnx.save(proto, path, save_as_external_data=True, location=name)
    data = tmp_path / name
    before = data.read_bytes()
    done = run(*(word.format(model=path, other=other) for word in COMMANDS[command]))
    assert done.exit_code == 0, done.output
    assert data.read_bytes() == before
    assert f"warning  {name} stays beside the result: amp-rewrite did not write it" in done.output


def test_data_that_another_tool_has_added_to_stays(out):
    """onnx.save appends to a file that is there: what ends otherwise than ours holds more than ours."""
    proto = text.model("g (float[32,32] x) => (float[32,32] y) <float[32,32] v> { y = Add(x, v) }")
    onnx.save(proto, out.with_name("added"), save_as_external_data=True, location="out.onnx.data")
    out.with_name("added").unlink()
    assert stays(out, "amp-rewrite did not write it")


@pytest.mark.parametrize(
    "name", ["r.textproto", "r.json", "r.onnxtxt", "sub/r.json", "r.onnx.gz", "../../r.onnx"]
)
def test_data_of_somebody_stays_for_a_reader_anywhere(tmp_path, name):
    """A model of any format, packed, or in any folder still finds weights that amp-rewrite did not write."""
    path = tmp_path / "a" / "b" / "m.onnx"
    (path.parent / "sub").mkdir(parents=True)
    onnx.save(text.model(GRAPH), path, save_as_external_data=True, location="m.onnx.data")
    before = path.with_name("m.onnx.data").read_bytes()
    reader = path.parent / name
    if reader.suffix != ".gz":
        onnx.save(onnx.load(path, load_external_data=False), reader)
    made = rewrite(path, Options(check=False), in_place=True)
    assert path.with_name("m.onnx.data").read_bytes() == before
    assert text.complaints(made) == ("m.onnx.data stays beside the result: amp-rewrite did not write it",)


@pytest.mark.parametrize("name", ["r.textproto", "r.json"])
def test_our_data_stays_for_a_reader_of_another_format(out, name):
    """A result that was saved as text beside it keeps its weights."""
    onnx.save(onnx.load(out, load_external_data=False), out.with_name(name))
    assert stays(out, f"{name} refers to it")


def test_another_name_of_the_folder_is_no_reader(out):
    """A link to the folder shows the same files: what it shows is the old model itself."""
    (out.parent.parent / f"{out.parent.name}-latest").symlink_to(out.parent.name)
    assert again(out) == ()


@pytest.mark.parametrize("key", ["offset", "length"])
def test_a_number_of_too_many_digits(out, key):
    """An old model whose extents are no numbers is replaced like any other."""
    proto = onnx.load(out, load_external_data=False)
    (number,) = (e for e in proto.graph.initializer[0].external_data if e.key == key)
    number.value = "1" * 100_000
    out.write_bytes(proto.SerializeToString())
    assert again(out) == ()


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
