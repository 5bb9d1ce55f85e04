import errno
import os
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.errors import AmpRewriteError, ModelError, OptionError, OutputError
from amp_rewrite.model import external_data as external_module
from amp_rewrite.model import writing
from amp_rewrite.policy.options import Beside, Borders, ExternalData, Options
from tests import text

TEXT = """g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> { h = MatMul(x, w)  y = Relu(h) }"""
NOTHING = """g (float[4, 4] x) => (float[4, 4] y) { y = Exp(x) }"""
LARGE = 700
"""A square of this side is converted when it is written, not before: see editing.LAZY_FROM."""


@pytest.fixture
def model():
    """A small model that is rewritten."""
    return text.model(TEXT)


@pytest.fixture
def external(tmp_path):
    """The path of a model whose weights, larger than a mebibyte, lie in `m.onnx.data` beside it."""
    folder = tmp_path / "external"
    folder.mkdir()
    weights = np.random.default_rng(0).standard_normal((LARGE, LARGE), np.float32)
    proto = text.model(
        "g (float[1, 700] x) => (float[1, 700] y) <float[700, 700] w> { y = MatMul(x, w) }",
        {"w": weights},
    )
    save_external(proto, folder / "m.onnx", "m.onnx.data")
    return folder / "m.onnx"


def save_external(proto, path, location):
    """Writes a model with all its initializers in another file."""
    onnx.save(proto, path, save_as_external_data=True, location=location, size_threshold=0)


def names(folder):
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def line(caught):
    """The error as it is printed: one line that says what would help."""
    printed = str(caught.value)
    assert "\n" not in printed
    assert caught.value.remedy
    return printed


def refused(source, **where):
    """The one line with which a source is refused."""
    with pytest.raises(ModelError) as caught:
        rewrite(source, **where)
    return line(caught)


# The five doors


def test_bytes_give_bytes(model):
    """Serialised bytes come back as serialised bytes."""
    made = rewrite(model.SerializeToString()).model
    assert isinstance(made, bytes)
    assert text.types(onnx.ModelProto.FromString(made))["w"] == "FLOAT16"


def test_a_proto_gives_a_proto(model):
    """A ModelProto comes back as another ModelProto, and stays as it was."""
    before = model.SerializeToString()
    made = rewrite(model).model
    assert isinstance(made, onnx.ModelProto)
    assert made is not model
    assert model.SerializeToString() == before


def test_an_ir_model_gives_an_ir_model(model):
    """An onnx_ir.Model comes back as another one, equal to what the other doors give."""
    made = rewrite(ir.from_proto(model)).model
    assert isinstance(made, ir.Model)
    assert text.nodes(ir.to_proto(made)) == text.nodes(rewrite(model).model)


def test_a_path_gives_a_path(model, tmp_path):
    """A path, as text or as a Path, comes back as the path that was written."""
    onnx.save(model, tmp_path / "m.onnx")
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "out.onnx").model
    assert made == tmp_path / "out.onnx"
    assert rewrite(str(tmp_path / "m.onnx"), output=tmp_path / "out2.onnx").model.is_file()
    assert onnx.load(made) == rewrite(model).model


def test_a_surgeon_graph_gives_a_surgeon_graph(model):
    """An onnx_graphsurgeon.Graph comes back as another one, and the first stays as it was."""
    surgeon = pytest.importorskip("onnx_graphsurgeon")
    graph = surgeon.import_onnx(model)
    before = surgeon.export_onnx(graph).SerializeToString()
    made = rewrite(graph).model
    assert isinstance(made, surgeon.Graph)
    assert [node.op for node in made.nodes] == ["Cast", "MatMul", "Relu", "Cast"]
    assert surgeon.export_onnx(graph).SerializeToString() == before


def test_the_default_output_lies_beside_the_input(model, tmp_path):
    """Without a name for it, m.onnx is written to m_fp16.onnx in the same folder."""
    onnx.save(model, tmp_path / "m.onnx")
    assert rewrite(tmp_path / "m.onnx").model == tmp_path / "m_fp16.onnx"


@pytest.mark.parametrize("source", [7, None, ["m.onnx"], bytearray(b"")])
def test_what_is_no_model(source):
    """What is of none of the five kinds is refused, and the kinds are named."""
    assert "give a path, bytes, a ModelProto" in refused(source)


# What stays


@pytest.mark.parametrize("door", [onnx.ModelProto.SerializeToString, lambda m: m, ir.from_proto])
def test_a_model_with_nothing_to_allow_stays(door):
    """Nothing changes in a model in which nothing may be half."""
    source = door(text.model(NOTHING))
    made = rewrite(source).model
    if isinstance(source, ir.Model):
        source, made = ir.to_proto(source), ir.to_proto(made)
    assert made == source
    assert made is not source or isinstance(source, bytes)


def test_a_file_with_nothing_to_allow_stays(tmp_path):
    """Its copy has the same bytes, and so has what a runtime would not understand in it."""
    data = text.model(NOTHING).SerializeToString() + b"\xd2\x3e\x01x"  # a field that onnx does not know
    (tmp_path / "m.onnx").write_bytes(data)
    made = rewrite(tmp_path / "m.onnx").model
    assert made.read_bytes() == data


def test_a_surgeon_graph_with_nothing_to_allow_stays():
    """It comes back as a copy."""
    surgeon = pytest.importorskip("onnx_graphsurgeon")
    graph = surgeon.import_onnx(text.model(NOTHING))
    made = rewrite(graph).model
    assert made is not graph
    assert [node.op for node in made.nodes] == ["Exp"]


def test_value_info_is_not_invented(model):
    """A model without value_info has none for its weights afterwards, in subgraphs neither."""
    del model.graph.value_info[:]
    assert "w" not in {info.name for info in rewrite(model).model.graph.value_info}
    body = """g (float[4, 4] x, bool c) => (float[4, 4] y) <float[4, 4] w> {
        y = If (c) <
            then_branch = t () => (float[4, 4] p) <float[4, 4] v> { p = MatMul(x, v) },
            else_branch = e () => (float[4, 4] q) { q = MatMul(x, w) }
        >
    }"""
    proto = text.model(body)
    for graph in text.graphs(proto.graph):
        del graph.value_info[:]
    for graph in text.graphs(rewrite(proto).model.graph):
        assert not {"v", "w"} & {info.name for info in graph.value_info}


def test_metadata_stays(model):
    """Producer, version, documentation and properties of the model come through."""
    model.producer_name, model.producer_version, model.domain = "me", "1.2", "here"
    model.model_version, model.doc_string, model.graph.doc_string = 7, "words", "more words"
    helper.set_model_props(model, {"key": "value"})
    made = rewrite(model).model
    for name in "producer_name producer_version domain model_version doc_string ir_version".split():
        assert getattr(made, name) == getattr(model, name)
    assert made.graph.doc_string == "more words"
    ours = [entry for entry in made.metadata_props if entry.key != "amp_rewrite"]
    assert ours == list(model.metadata_props)


def test_an_ir_model_keeps_its_tensors():
    """Values and tensors of the source keep their names and types, an initializer that leaves included."""
    proto = text.model(TEXT)
    proto.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    source = ir.from_proto(proto)
    before, written = described(source), ir.to_proto(source)
    made = rewrite(source).model
    assert described(source) == before
    assert described(made) != before
    assert ir.to_proto(source) == written


def described(model):
    """Names and types of all values and stored tensors, tensors by their own names."""
    stored = [(v.name, v.const_value.name, v.const_value.dtype) for v in model.graph.initializers.values()]
    made = [v for node in model.graph for v in node.outputs]
    values = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values(), *made)
    return stored, [(v.name, str(v.type), str(v.shape)) for v in values]


def test_maps_survive():
    """Types that hold maps, which onnx-ir cannot read, come out as they came in."""
    proto = zipmap()
    before = proto.SerializeToString()
    kept = [info.SerializeToString() for info in proto.graph.output]
    made = rewrite(proto).model
    assert text.types(made)["w"] == "FLOAT16"
    assert [info.SerializeToString() for info in made.graph.output] == kept
    assert proto.SerializeToString() == before


def zipmap():
    """A classifier as skl2onnx makes them: its probabilities leave as a sequence of maps."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
    leaving = helper.make_tensor_value_info("maps", TensorProto.FLOAT, None)
    leaving.type.Clear()
    leaving.type.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
    inner = leaving.type.sequence_type.elem_type.map_type.value_type
    inner.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "zipmap",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [leaving],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


# External data


def test_external_data_stays_external(external, tmp_path):
    """Weights of a model with external data are written to `<output>.data`, in half."""
    output = tmp_path / "out.onnx"
    report = rewrite(external, output=output).report
    proto = onnx.load(output, load_external_data=False)
    assert proto.graph.initializer[0].external_data[0].value == "out.onnx.data"
    assert (tmp_path / "out.onnx.data").stat().st_size == LARGE * LARGE * 2
    assert report.size_after < report.size_before * 0.51
    assert names(tmp_path) == ["external", "out.onnx", "out.onnx.data"]
    expected = numpy_helper.to_array(onnx.load(external).graph.initializer[0]).astype(np.float16)
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(output).graph.initializer[0]), expected)


def test_external_data_over_itself(external):
    """In place, weights are read from the very file that they replace."""
    expected = numpy_helper.to_array(onnx.load(external).graph.initializer[0]).astype(np.float16)
    assert rewrite(external, in_place=True).model == external
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(external).graph.initializer[0]), expected)
    assert names(external.parent) == ["m.onnx", "m.onnx.1.data"]
    assert rewrite(external, Options(borders=Borders.HALF), in_place=True).report.changed
    assert names(external.parent) == ["m.onnx", "m.onnx.data"]


def test_external_data_of_an_unchanged_model(tmp_path):
    """What did not change is copied with its external data, and loads."""
    proto = text.model("g (float[4] x) => (float[4] y) <float[4] w> { h = Pow(x, w)  y = Exp(h) }")
    save_external(proto, tmp_path / "m.onnx", "m.data")
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "sub.onnx").model
    assert numpy_helper.to_array(onnx.load(made).graph.initializer[0]).dtype == np.float32


def test_the_data_of_the_input_is_spared(external):
    """Where the data of the result would replace that of the input, it gets another name."""
    save_external(onnx.load(external), external.with_name("a.onnx"), "b.onnx.data")
    before = external.with_name("b.onnx.data").read_bytes()
    made = rewrite(external.with_name("a.onnx"), output=external.with_name("b.onnx")).model
    assert external.with_name("b.onnx.data").read_bytes() == before
    assert onnx.load(made).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    assert external.with_name("b.onnx.1.data").exists()


def test_missing_external_data(external):
    """A model whose data file is not there is refused by the name of the tensor and of the file."""
    external.with_name("m.onnx.data").unlink()
    assert "the data of 'w' should be in m.onnx.data" in refused(external)


def test_truncated_external_data(external):
    """A data file that ends too early is refused before anything is written."""
    data = external.with_name("m.onnx.data")
    data.write_bytes(data.read_bytes()[:-1])
    assert "ends beyond the end of m.onnx.data" in refused(external)
    assert not external.with_name("m_fp16.onnx").exists()


@pytest.mark.parametrize("location", ["../secret", "sub/../../secret", "{root}/secret", "link"])
@pytest.mark.parametrize("holder", ["initializer", "attribute"])
def test_external_data_may_not_climb_out(tmp_path, location, holder):
    """Data outside of the model's folder is refused, whoever holds it: by .., by /, or by a link."""
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(np.ones(4, np.float32).tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    proto = pointing_to(location.format(root=tmp_path), holder)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    assert "outside the model's folder" in refused(folder / "m.onnx")


def pointing_to(location, holder, offset="0"):
    """A model with one weight, an initializer or a Constant node's, that lies in a file."""
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 2], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", location), ("offset", offset), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if holder == "attribute":
        constant = onnx.NodeProto(op_type="Constant", output=["w"])
        constant.attribute.append(
            onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=weight)
        )
        nodes.insert(0, constant)
    borders = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    stored = [weight] if holder == "initializer" else []
    graph = helper.make_graph(nodes, "g", borders[:1], borders[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("offset", ["-4", "4", "99999999999999999999"])
def test_external_data_with_an_odd_offset(tmp_path, offset):
    """An offset that does not lie in the file is refused."""
    (tmp_path / "w.data").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(pointing_to("w.data", "initializer", offset).SerializeToString())
    refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("reader", ["MatMul", "Pow"])
def test_external_data_of_an_attribute(tmp_path, reader):
    """What a Constant node holds in a file is taken in, converted or not: the result stands alone."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "w.data").write_bytes(np.full(4, 0.5, np.float32).tobytes())
    proto = pointing_to("w.data", "attribute")
    proto.graph.node[1].op_type = reader
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    made = onnx.load(rewrite(folder / "m.onnx", output=tmp_path / "out.onnx").model)
    assert set(text.stored(made)["w"].flat) == {0.5}


def test_a_second_hard_link_is_no_harm(external, tmp_path):
    """A data file that a store of models links to as well is read, what stays float32 in it included."""
    proto = text.model("g (float[700] x) => (float[700] y) <float[700] w> { y = Pow(x, w) }")
    save_external(proto, external.with_name("n.onnx"), "n.onnx.data")
    for name in ("m", "n"):
        os.link(external.with_name(f"{name}.onnx.data"), tmp_path / name)
        made = rewrite(external.with_name(f"{name}.onnx"), output=tmp_path / f"{name}.onnx").model
        assert onnx.load(made).graph.initializer[0].dims[0] == LARGE


def test_a_model_in_a_store_of_files(external, tmp_path):
    """A model and its data that are both links into one folder, as a download cache has them, are read."""
    view = tmp_path / "view"
    view.mkdir()
    for name in names(external.parent):
        (view / name).symlink_to(external.parent / name)
    made = rewrite(view / "m.onnx", Options(check=False)).model
    assert made == view / "m_fp16.onnx"
    assert onnx.load(made).graph.initializer[0].data_type == TensorProto.FLOAT16


def test_external_data_of_a_function(tmp_path):
    """What a function keeps in a file is found, inlined or not."""
    proto = onnx.parser.parse_model(text.FUNCTIONS)
    constant = pointing_to("w.data", "attribute").graph.node[0]
    proto.functions[0].node[0].input[1] = "w"
    proto.functions[0].node.insert(0, constant)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert "should be in w.data" in refused(tmp_path / "m.onnx")
    (tmp_path / "w.data").write_bytes(np.ones(4, np.float32).tobytes())
    for options in (Options(check=False), Options(check=False, keep_functions=True)):
        made = onnx.load(rewrite(tmp_path / "m.onnx", options).model)
        assert (len(made.functions), made.graph.node[0].op_type) in ((0, "Cast"), (1, "Cast"))


@pytest.mark.parametrize(("key", "value"), [("length", "8"), ("offset", "nonsense"), ("location", "")])
def test_external_data_that_contradicts_itself(tmp_path, key, value):
    """A length that is not that of the shape, an offset that is no number and an empty name are refused."""
    proto = pointing_to("w.data", "initializer")
    (entry,) = (each for each in proto.graph.initializer[0].external_data if each.key == key)
    entry.value = value
    (tmp_path / "w.data").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    refused(tmp_path / "m.onnx")


def test_a_model_in_memory_may_not_climb_out(tmp_path):
    """An onnx_ir.Model whose tensors lie outside its folder is refused as well."""
    (tmp_path / "secret").write_bytes(bytes(16))
    source = ir.from_proto(pointing_to("../secret", "initializer"))
    ir.external_data.set_base_dir(source.graph, tmp_path / "models")
    assert "outside the model's folder" in refused(source)


def test_a_tensor_without_a_folder_may_lie_anywhere(external):
    """An onnx_ir.Model whose tensors name their files in full, and no folder, is rewritten."""
    source = ir.from_proto(onnx.load(external))
    (value,) = source.graph.initializers.values()
    where, shape = external.with_name("m.onnx.data"), ir.Shape((LARGE, LARGE))
    value.const_value = ir.ExternalTensor(
        where, 0, where.stat().st_size, ir.DataType.FLOAT, shape=shape, name="w"
    )
    (made,) = rewrite(source).model.graph.initializers.values()
    assert made.const_value.numpy().dtype == np.float16


def test_data_that_shrinks_meanwhile(external, monkeypatch):
    """A file that is cut off after it was looked at is an error in one line, not the end of the process."""
    settle = external_module.settle

    def cut(model, path):
        found = settle(model, path)
        external.with_name("m.onnx.data").write_bytes(b"short")
        return found

    monkeypatch.setattr(external_module, "settle", cut)
    assert "it ends too early" in refused(external)


# Where the weights go


ALWAYS, NEVER = ExternalData(Beside.ALWAYS), ExternalData(Beside.NEVER)


def test_weights_go_beside_when_asked(tmp_path):
    """ALWAYS takes large weights out of a model that holds them, one that does not change included."""
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
    """NEVER takes the weights of a model with external data into the result, also in place."""
    expected = text.stored(onnx.load(external))["w"].astype(np.float16)
    made = rewrite(external, Options(external_data=NEVER), in_place=True).model
    np.testing.assert_array_equal(text.stored(onnx.load(made, load_external_data=False))["w"], expected)
    assert names(external.parent) == ["m.onnx"]


def test_weights_in_several_files(tmp_path):
    """With a largest size there are several files, none larger but for a single tensor; in place they are
    replaced, and none of the old ones is left.
    """
    kinds = ", ".join(f"float[32,32] w{i}" for i in range(5))
    nodes = " ".join(f"h{i + 1} = MatMul(h{i}, w{i})" for i in range(5))
    proto = text.model(f"g (float[32,32] h0) => (float[32,32] h5) <{kinds}> {{ {nodes} }}")
    expected = [numpy_helper.to_array(t).astype(np.float16) for t in proto.graph.initializer]
    save_external(proto, tmp_path / "m.onnx", "m.onnx.data")
    for again in ("m.onnx", "m.onnx.1"):
        options = Options(external_data=ExternalData(Beside.ALWAYS, 5000), borders=Borders.HALF)
        made = rewrite(tmp_path / "m.onnx", options, in_place=True).model
        files = [f"{again}.0000{i}-of-00003.data" for i in (1, 2, 3)]
        assert names(tmp_path) == sorted(["m.onnx", *files])
        assert [(tmp_path / name).stat().st_size for name in files] == [4096, 4096, 2048]
        found = [numpy_helper.to_array(t) for t in onnx.load(made).graph.initializer]
        np.testing.assert_array_equal(found, expected)


def test_too_large_for_one_file(model, external, monkeypatch):
    """NEVER, bytes and protos beyond protobuf's limit are one clear error, and nothing is written."""
    monkeypatch.setattr(writing, "PROTOBUF_LIMIT", 16)
    before = names(external.parent)
    with pytest.raises(OutputError) as caught:
        rewrite(external, Options(external_data=NEVER))
    assert line(caught).endswith("protobuf stops at 2 GiB; leave out `Options.external_data=NEVER`")
    assert names(external.parent) == before
    for source in (model, model.SerializeToString()):
        with pytest.raises(OutputError) as caught:
            rewrite(source)
        assert "give a path" in line(caught)


def test_external_data_is_for_a_path(model):
    """A model in memory has no files beside it."""
    with pytest.raises(OptionError):
        rewrite(model, Options(external_data=ALWAYS))


@pytest.mark.parametrize("door", [onnx.ModelProto.SerializeToString, lambda m: m])
def test_external_data_without_a_folder(door, external, monkeypatch):
    """Bytes and protos do not say where their files are: refused, even where they would be found."""
    source = door(onnx.load(external, load_external_data=False))
    monkeypatch.chdir(external.parent)
    assert "give its path" in refused(source)


# What cannot be read


def test_no_such_file(tmp_path):
    """A missing file is named."""
    assert refused(tmp_path / "nope.onnx").endswith("nope.onnx: there is no such file; check the path")


def test_a_folder_is_no_model(tmp_path):
    """A folder is refused, and so is a file that may not be read."""
    assert "is a folder" in refused(tmp_path, output=tmp_path / "out.onnx")


def test_an_unreadable_file(model, tmp_path, monkeypatch):
    """The system's reason is passed on."""
    onnx.save(model, tmp_path / "m.onnx")

    def deny(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.open", deny)
    assert "Permission denied" in refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("data", [b"", b"hello, world\n", b"\x00" * 64, b"PK\x03\x04 a zip file"])
def test_what_is_no_onnx(data, tmp_path):
    """An empty file, text and other formats are refused, as files and as bytes."""
    (tmp_path / "m.onnx").write_bytes(data)
    assert "is no ONNX model" in refused(tmp_path / "m.onnx")
    assert "is no ONNX model" in refused(data)


def test_truncated_bytes(model):
    """A model that is cut off anywhere is refused or, where the cut is clean, rewritten: never a crash."""
    data = model.SerializeToString()
    for end in range(len(data)):
        survives(data[:end])


def test_damaged_bytes(model):
    """Whatever single bytes of a model are changed, it is rewritten or refused in one line."""
    data = model.SerializeToString()
    chance = random.Random(3)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] = chance.randrange(256)
        survives(bytes(damaged))


def survives(data):
    """Rewrites the bytes, or is refused in one line; any other error goes on."""
    try:
        rewrite(data)
    except AmpRewriteError as error:
        printed = str(error)
    else:
        printed = ""
    assert "\n" not in printed


# What cannot be written


@pytest.mark.parametrize("place", ["nope/out.onnx", "m.onnx/out.onnx"])
def test_no_such_folder(model, tmp_path, place):
    """An output in a folder that is not there, or is a file, is refused."""
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(OutputError) as caught:
        rewrite(tmp_path / "m.onnx", output=tmp_path / place)
    assert "cannot be written" in line(caught)


def test_a_folder_is_no_output(model, tmp_path, monkeypatch):
    """A folder cannot be written; nothing at all is in test_slips.py."""
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    for output in (tmp_path, "."):
        with pytest.raises(OutputError) as caught:
            rewrite(tmp_path / "m.onnx", output=output)
        assert "is a folder" in line(caught)


@pytest.mark.parametrize("fails", ["pathlib.Path.write_bytes", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file(model, tmp_path, monkeypatch, fails):
    """Whether writing or moving fails: the old output stands, and nothing lies beside it."""
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "out.onnx").write_bytes(b"old")
    monkeypatch.setattr(fails, full_disk)
    with pytest.raises(OutputError) as caught:
        rewrite(tmp_path / "m.onnx", output=tmp_path / "out.onnx")
    assert "No space left" in line(caught)
    assert (tmp_path / "out.onnx").read_bytes() == b"old"
    assert names(tmp_path) == ["m.onnx", "out.onnx"]


@pytest.mark.parametrize(
    "fails", ["pathlib.Path.write_bytes", "onnx_ir.external_data.convert_tensors_to_external"]
)
def test_a_full_disk_leaves_the_old_data(external, monkeypatch, fails):
    """The same with external data: in place, both files are what they were."""
    before = {path.name: path.read_bytes() for path in external.parent.iterdir()}
    monkeypatch.setattr(fails, full_disk)
    with pytest.raises(OutputError) as caught:
        rewrite(external, in_place=True)
    assert "No space left" in line(caught)
    assert {path.name: path.read_bytes() for path in external.parent.iterdir()} == before


def test_a_stop_between_data_and_model_leaves_the_old_pair(external, monkeypatch):
    """When the data has moved and the model cannot, the old model keeps its data, and no more is left."""
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
    """What a write to a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_too_large_for_one_file_gets_external_data(tmp_path, monkeypatch):
    """Beyond protobuf's limit the weights go beside the model, though the input had them inside."""
    monkeypatch.setattr(writing, "PROTOBUF_LIMIT", 16)
    proto = text.model("g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }")
    onnx.save(proto, tmp_path / "m.onnx")
    made = rewrite(tmp_path / "m.onnx").model
    assert (tmp_path / "m_fp16.onnx.data").is_file()
    assert onnx.load(made).graph.initializer[0].data_type == TensorProto.FLOAT16


def test_sparse_initializers_and_training_information_stay():
    """What onnx-ir does not know is carried along; who reads a sparse tensor stays float32."""
    proto = text.model("g (float[4,4] x, float[4] v) => (float[4,4] y) { h = MatMul(x, x)  y = Add(h, v) }")
    del proto.graph.input[1]
    values = helper.make_tensor("v", TensorProto.FLOAT, [2], [1, 2])
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [0, 3])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    proto.training_info.add().initialization_binding.add(key="x", value="y")
    made = rewrite(proto, Options(check=False)).model
    assert made.graph.sparse_initializer == proto.graph.sparse_initializer
    assert made.training_info == proto.training_info
    assert "y = Add(h__float32, v)" in text.nodes(made)
