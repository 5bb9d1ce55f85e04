"""Which data files of a replaced model are removed: those of ours that nothing else needs."""

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


def hard_linked(out):
    """The file has a second name, as stores of models make them."""
    os.link(out.with_name("out.onnx.data"), out.with_name("second"))


READERS = {
    shared: "copy.onnx refers to it",
    linked: "it is not a regular file",
    hard_linked: "a hard link leads to it",
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
    rewrite(tmp_path / "m.onnx", Options(check=False), output=tmp_path / "out.onnx")
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


FOREIGN = {
    "model.safetensors": "amp-rewrite gives no file that name",
    "pytorch_model.bin": "amp-rewrite gives no file that name",
    "weights.npy": "amp-rewrite gives no file that name",
    "model.data": "amp-rewrite gives no file that name",
    "MODEL.onnx.data.bak": "amp-rewrite gives no file that name",
    "model.onnx.data": "it holds more than the old model reads",
    "model.onnx.1.data": "it holds more than the old model reads",
}
"""Files that hold more than the model reads, by their names."""
COMMANDS = {
    "in place": ("{model}", "--in-place", "--skip=verify"),
    "over": ("{other}", "-o", "{model}", "--force", "--skip=verify"),
    "restored over": ("restore", "{other}", "-o", "{model}", "--force", "--skip=verify"),
    "tuned over": ("tune", "{other}", "-o", "{model}", "--force", "--max-error", "1"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_ours_stays(tmp_path, name, command):
    """A container of another tool, with a header and tensors that the model does not read, is the same bytes
    after the model was replaced, and a line says why.
    """
    path, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    proto = text.model(GRAPH)
    onnx.save(proto, other)
    onnx.save(proto, path, save_as_external_data=True, location=name)
    data = tmp_path / name
    data.write_bytes(data.read_bytes() + b"optimizer state")
    before = data.read_bytes()
    done = run(*(word.format(model=path, other=other) for word in COMMANDS[command]))
    assert done.exit_code == 0, done.output
    assert data.read_bytes() == before
    assert f"warning  {name} stays beside the result: {FOREIGN[name]}" in done.output


def test_a_header_before_the_tensors_is_no_alignment(out):
    """Zeros between tensors align them; a byte that no tensor covers is somebody's, wherever it stands."""
    data = out.with_name("out.onnx.data")
    proto = onnx.load(out, load_external_data=False)
    (offset,) = (e for e in proto.graph.initializer[0].external_data if e.key == "offset")
    for header, word in ((b"\1" * 8, "it holds more than the old model reads"), (b"\0" * 8, "")):
        offset.value = "8"
        data.write_bytes(header + data.read_bytes())
        out.write_bytes(proto.SerializeToString())
        assert external_data.find(out, frozenset()).warnings == (
            (f"out.onnx.data stays beside the result: {word}",) if word else ()
        )
        data.write_bytes(data.read_bytes()[8:])


def test_data_that_a_model_above_shares_stays(out):
    """A model in the parent folder reads it as folder/out.onnx.data, another one reads another file."""
    proto = onnx.load(out, load_external_data=False)
    for folder in ("elsewhere", out.parent.name):
        proto.graph.initializer[0].external_data[0].value = f"{folder}/out.onnx.data"
        (out.parent.parent / f"{folder}.onnx").write_bytes(proto.SerializeToString())
    assert stays(out, f"../{out.parent.name}.onnx refers to it")
    assert onnx.load(out.parent.parent / f"{out.parent.name}.onnx").graph.initializer


LINKS = {
    "folder/link": ("out.onnx.data", "link leads to it"),
    "link": ("folder/out.onnx.data", "../link leads to it"),
    "beside/out.onnx.data": ("../folder/out.onnx.data", "../beside/out.onnx.data leads to it"),
    "beside/folder": ("../folder", "../beside/folder leads to it"),
}


@pytest.mark.parametrize("place", LINKS)
def test_data_behind_a_link_stays(out, place):
    """A link in the folder, above or beside it stands for a model that reads the data through it."""
    above = out.parent.parent
    (above / "beside").mkdir()
    goal, reason = LINKS[place]
    (above / place).symlink_to(goal)
    assert stays(out, reason)
    assert (above / place).exists()


def test_another_name_of_the_folder_is_no_reader(out):
    """A link to the folder from beside it shows the same files: what it shows is the old model itself."""
    (out.parent.parent / f"{out.parent.name}-latest").symlink_to(out.parent.name)
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
