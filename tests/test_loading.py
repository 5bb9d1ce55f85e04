"""Models as bytes, protos, objects and paths: each is read, and the result comes in the same form."""

import errno
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import rewrite, verify
from amp_rewrite.errors import AmpRewriteError, ModelError
from amp_rewrite.model import loading
from amp_rewrite.policy.options import Options
from tests import text
from tests.model_files import TEXT, model, refused

__all__ = ["model"]

NOTHING = """g (float[4, 4] x) => (float[4, 4] y) { y = Exp(x) }"""


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
    """An onnx_ir.Model comes back as another one, equal to the result for the other kinds."""
    made = rewrite(ir.from_proto(model)).model
    assert isinstance(made, ir.Model)
    assert text.nodes(ir.to_proto(made)) == text.nodes(rewrite(model).model)


def test_a_path_gives_a_path(model, tmp_path):
    """A path, as text or as a Path, comes back as the path that was written."""
    onnx.save(model, tmp_path / "m.onnx")
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "out.onnx").model
    assert made == tmp_path / "out.onnx"
    assert rewrite(str(tmp_path / "m.onnx"), output=tmp_path / "out2.onnx").model.is_file()
    written = onnx.load(made)
    assert written.metadata_props.pop().value == "m.onnx"
    assert written == rewrite(model).model


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


def test_a_module_of_pytorch_is_to_be_exported():
    """What has parameters but no graph is named with what makes a model of it."""
    module = type("Net", (), {"named_parameters": dict})
    assert "export it first: torch.onnx.export(" in refused(module())


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
    """Its copy is the same, including fields that runtimes do not know, but for the name of its source."""
    data = text.model(NOTHING).SerializeToString() + b"\xd2\x3e\x01x"  # a field that onnx does not know
    (tmp_path / "m.onnx").write_bytes(data)
    copy = onnx.load(rewrite(tmp_path / "m.onnx").model)
    assert copy.metadata_props.pop().value == "m.onnx"
    assert copy.SerializeToString() == data


def test_a_surgeon_graph_with_nothing_to_allow_stays():
    """It comes back as a copy."""
    surgeon = pytest.importorskip("onnx_graphsurgeon")
    graph = surgeon.import_onnx(text.model(NOTHING))
    made = rewrite(graph).model
    assert made is not graph
    assert [node.op for node in made.nodes] == ["Exp"]


def test_value_info_is_not_invented(model):
    """No value_info is added for weights, also not in nested graphs."""
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
    """Producer, version, documentation and properties of the model are preserved."""
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
    """Values and tensors of the source keep their names and types, also an initializer that is an output."""
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
    """Types with maps, which onnx-ir cannot read, are preserved."""
    proto = zipmap()
    before = proto.SerializeToString()
    kept = [info.SerializeToString() for info in proto.graph.output]
    made = rewrite(proto).model
    assert text.types(made)["w"] == "FLOAT16"
    assert [info.SerializeToString() for info in made.graph.output] == kept
    assert proto.SerializeToString() == before


def zipmap():
    """A classifier as skl2onnx exports it: its probabilities are a sequence of maps."""
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


def test_no_such_file(tmp_path):
    """A missing file is named."""
    assert refused(tmp_path / "nope.onnx").endswith("nope.onnx: there is no such file; check the path")


def test_an_unreadable_file(model, tmp_path, monkeypatch):
    """The message contains the system's reason."""
    onnx.save(model, tmp_path / "m.onnx")

    def deny(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.open", deny)
    assert "Permission denied" in refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("data", [b"", b"hello, world\n", b"\x00" * 64])
def test_what_is_no_onnx(data, tmp_path):
    """An empty file, text and other formats are refused, as files and as bytes."""
    (tmp_path / "m.onnx").write_bytes(data)
    assert "is not an ONNX model" in refused(tmp_path / "m.onnx")
    assert "is not an ONNX model" in refused(data)


@pytest.mark.parametrize("place", ["graph", "body", "input"])
def test_an_initializer_without_a_value(place):
    """It is refused, since onnx-ir would omit it from the result."""
    made = ir.from_proto(
        text.model(
            """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
                h = MatMul (x, w)
                y = If (c) <
                    then_branch = t () => (float[4,4] p) <float[4,4] v> { p = MatMul (h, v) },
                    else_branch = e () => (float[4,4] q) { q = Neg (h) }
                >
            }"""
        )
    )
    held = made.graph[1].attributes["then_branch"].as_graph() if place == "body" else made.graph
    value = next(iter(held.initializers.values()))
    value.const_value = None
    if place == "input":
        held.inputs.append(value)
    assert refused(made).startswith(f"the given model: the initializer '{value.name}' has no value; ")


def test_truncated_bytes(model):
    """A model truncated anywhere is refused or, if the rest is valid protobuf, rewritten: never a crash."""
    data = model.SerializeToString()
    for end in range(len(data)):
        survives(data[:end])


def test_damaged_bytes(model):
    """After a change of any single byte, a model is rewritten or refused in one line."""
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


def test_sparse_initializers_and_training_information_stay():
    """Both, unknown to onnx-ir, are preserved; consumers of a sparse tensor stay float32."""
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


def test_a_model_that_protobuf_cannot_copy(monkeypatch):
    """Above its limit a ModelProto is refused before anything copies it, with the ways out; these work."""
    monkeypatch.setattr(loading, "_LARGEST_FILE", 1 << 12)
    proto = text.model("g (float[1,32] x) => (float[1,32] y) <float[32,32] w> { y = MatMul(x, w) }")
    for what, more in ((rewrite, ()), (verify, (proto, [{"x": np.ones((1, 32), np.float32)}]))):
        with pytest.raises(ModelError) as caught:
            what(proto, *more)
        assert "has 0.0 GB of tensors in memory, and protobuf copies no more than 2 GiB" in str(caught.value)
        assert "onnx.save(model, path, save_as_external_data=True), and give the path" in str(caught.value)
    assert rewrite(ir.from_proto(proto)).report.changed
    typed = text.model("g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }")
    assert loading.refuse_too_large(typed) is typed
