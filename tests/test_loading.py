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


def surgeon_graph(proto):
    """The same model as an onnx_graphsurgeon.Graph."""
    return pytest.importorskip("onnx_graphsurgeon").import_onnx(proto)


KINDS = {
    "bytes": (onnx.ModelProto.SerializeToString, onnx.ModelProto.FromString),
    "proto": (lambda proto: proto, lambda proto: proto),
    "ir": (ir.from_proto, ir.to_proto),
    "surgeon": (
        surgeon_graph,
        lambda graph: pytest.importorskip("onnx_graphsurgeon").export_onnx(graph),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_of_the_kind_of_its_source(model, kind):
    """Another one, equal for all kinds, and the source stays as it was; also where nothing may be half."""
    make, back = KINDS[kind]
    for proto, operators in ((model, ["Cast", "MatMul", "Relu", "Cast"]), (text.model(NOTHING), ["Exp"])):
        source = make(proto)
        before = back(source)
        before = before.SerializeToString()
        made = rewrite(source).model
        assert type(made) is type(source)
        assert made is not source or isinstance(source, bytes)
        assert back(source).SerializeToString() == before
        assert [node.op_type for node in back(made).graph.node if node.op_type != "Constant"] == operators
        assert operators != ["Exp"] or back(made).graph == onnx.ModelProto.FromString(before).graph


# ---- what stays in a model


def test_an_ir_model_keeps_its_tensors():
    """Values and tensors of the source keep their names and types, also an initializer that is an output."""
    proto = text.model(TEXT)
    proto.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    source = ir.from_proto(proto)
    before = described(source)
    assert described(rewrite(source).model) != before
    assert described(source) == before


def described(model):
    """Names and types of all values and stored tensors, tensors by their own names."""
    stored = [(v.name, v.const_value.name, v.const_value.dtype) for v in model.graph.initializers.values()]
    made = [v for node in model.graph for v in node.outputs]
    values = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values(), *made)
    return stored, [(v.name, str(v.type), str(v.shape)) for v in values]


def test_maps_survive():
    """Types with maps, which onnx-ir cannot read, are preserved: a classifier as skl2onnx exports it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, None))
    leaving = helper.make_value_info("maps", helper.make_sequence_type_proto(maps))
    entering = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])
    stored = [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "zipmap", [entering], [leaving], stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    before = proto.SerializeToString()
    made = rewrite(proto).model
    assert text.types(made)["w"] == "FLOAT16"
    assert list(made.graph.output) == [leaving]
    assert proto.SerializeToString() == before


# ---- what is refused


def test_an_unreadable_file(model, tmp_path, monkeypatch):
    """A missing file is named; the message contains the system's reason."""
    assert refused(tmp_path / "m.onnx").endswith("m.onnx: there is no such file; check the path")
    onnx.save(model, tmp_path / "m.onnx")

    def deny(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.open", deny)
    assert "Permission denied" in refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("place", ["graph", "body", "input"])
def test_an_initializer_without_a_value(place):
    """It is refused, since onnx-ir would omit it from the result."""
    proto = text.model("""g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
        h = MatMul (x, w)
        y = If (c) <
            then_branch = t () => (float[4,4] p) <float[4,4] v> { p = MatMul (h, v) },
            else_branch = e () => (float[4,4] q) { q = Neg (h) }
        >
    }""")
    made = ir.from_proto(proto)
    held = made.graph[1].attributes["then_branch"].as_graph() if place == "body" else made.graph
    value = next(iter(held.initializers.values()))
    value.const_value = None
    if place == "input":
        held.inputs.append(value)
    assert refused(made).startswith(f"the given model: the initializer '{value.name}' has no value; ")


def damaged(data):
    """The bytes truncated anywhere, and with changes of single bytes."""
    yield from (data[:end] for end in range(len(data)))
    chance = random.Random(3)
    for _ in range(300):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] = chance.randrange(256)
        yield bytes(changed)


def test_damaged_bytes(model):
    """A damaged model is rewritten, where the rest is valid protobuf, or refused in one line: no crash."""
    lines = []
    for data in damaged(model.SerializeToString()):
        try:
            rewrite(data, Options(check=False))
        except AmpRewriteError as error:
            lines.append(str(error))
    assert len(lines) > 100
    assert not [line for line in lines if "\n" in line]


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
