"""External data: where it is read from, and that it stays external."""

import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from amp_rewrite import rewrite
from amp_rewrite.model import external_data as external_module
from amp_rewrite.model.external_data import SIGNATURE
from amp_rewrite.policy.options import IOTypes, Options
from tests import text
from tests.model_files import LARGE, external, names, refused, save_external, weight

__all__ = ["external"]


def test_external_data_stays_external(external, tmp_path):
    """Weights of a model with external data are written to `<output>.data`, in half."""
    output = tmp_path / "out.onnx"
    report = rewrite(external, output=output).report
    proto = onnx.load(output, load_external_data=False)
    assert proto.graph.initializer[0].external_data[0].value == "out.onnx.data"
    assert (tmp_path / "out.onnx.data").stat().st_size == LARGE * LARGE * 2 + len(SIGNATURE)
    assert report.size_after < report.size_before * 0.51
    assert names(tmp_path) == ["external", "out.onnx", "out.onnx.data"]
    np.testing.assert_array_equal(weight(output), weight(external).astype(np.float16))


def test_external_data_over_itself(external):
    """In place, weights are read from the file that they replace."""
    expected = weight(external).astype(np.float16)
    assert rewrite(external, in_place=True).model == external
    np.testing.assert_array_equal(weight(external), expected)
    assert names(external.parent) == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]
    assert rewrite(external, Options(io=IOTypes.HALF), in_place=True).report.changed
    assert names(external.parent) == ["m.onnx", "m.onnx.2.data", "m.onnx.data"]


def test_external_data_of_an_unchanged_model(tmp_path):
    """An unchanged model is copied with its external data, and loads."""
    proto = text.model("g (float[4] x) => (float[4] y) <float[4] w> { h = Pow(x, w)  y = Exp(h) }")
    save_external(proto, tmp_path / "m.onnx", "m.data")
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "sub.onnx").model
    assert weight(made).dtype == np.float32


def test_the_data_of_the_input_is_spared(external):
    """If the data of the result would replace that of the input, it gets another name."""
    save_external(onnx.load(external), external.with_name("a.onnx"), "b.onnx.data")
    before = external.with_name("b.onnx.data").read_bytes()
    made = rewrite(external.with_name("a.onnx"), output=external.with_name("b.onnx")).model
    assert external.with_name("b.onnx.data").read_bytes() == before
    assert weight(made).dtype == np.float16
    assert external.with_name("b.onnx.1.data").exists()


def test_files_of_a_store(external, tmp_path):
    """A data file with a second hard link is read, and a model and its data may be links into one folder."""
    os.link(external.with_name("m.onnx.data"), tmp_path / "second")
    view = tmp_path / "view"
    view.mkdir()
    for name in names(external.parent):
        (view / name).symlink_to(external.parent / name)
    made = rewrite(view / "m.onnx", Options(check=False)).model
    assert made == view / "m_fp16.onnx"
    assert weight(made).dtype == np.float16


# ---- in attributes, functions and memory


def pointing_to(location, holder="initializer", **entries):
    """A model with one external weight, in an initializer or a Constant node."""
    stored = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 2], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, "offset": "0", "length": "16", **entries}.items():
        stored.external_data.add(key=key, value=value)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if holder == "attribute":
        constant = onnx.NodeProto(op_type="Constant", output=["w"])
        constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=stored)
        nodes.insert(0, constant)
    borders = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    initializers = [stored] if holder == "initializer" else []
    graph = helper.make_graph(nodes, "g", borders[:1], borders[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("reader", ["MatMul", "Pow"])
def test_external_data_of_an_attribute(tmp_path, reader):
    """The external data of a Constant node is loaded into the result, converted or not."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "w.data").write_bytes(np.full(4, 0.5, np.float32).tobytes())
    proto = pointing_to("w.data", "attribute")
    proto.graph.node[1].op_type = reader
    (tmp_path / "models" / "m.onnx").write_bytes(proto.SerializeToString())
    made = rewrite(tmp_path / "models" / "m.onnx", output=tmp_path / "out.onnx").model
    assert set(text.stored(onnx.load(made))["w"].flat) == {0.5}


def test_external_data_of_a_function(tmp_path):
    """External data of a function is found, inlined or not."""
    proto = onnx.parser.parse_model(text.FUNCTIONS)
    proto.functions[0].node[0].input[1] = "w"
    proto.functions[0].node.insert(0, pointing_to("w.data", "attribute").graph.node[0])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert "should be in w.data" in refused(tmp_path / "m.onnx")
    (tmp_path / "w.data").write_bytes(np.ones(4, np.float32).tobytes())
    for options in (Options(check=False), Options(check=False, keep_functions=True)):
        made = onnx.load(rewrite(tmp_path / "m.onnx", options).model)
        assert (len(made.functions), made.graph.node[0].op_type) in ((0, "Cast"), (1, "Cast"))


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


@pytest.mark.parametrize("door", [onnx.ModelProto.SerializeToString, lambda m: m])
def test_external_data_without_a_folder(door, external, monkeypatch):
    """External data of bytes and protos is refused, since its folder is not known."""
    source = door(onnx.load(external, load_external_data=False))
    monkeypatch.chdir(external.parent)
    assert "give its path" in refused(source)


# ---- refused before anything is written


@pytest.mark.parametrize("location", ["../secret", "sub/../../secret", "{root}/secret", "link"])
@pytest.mark.parametrize("holder", ["initializer", "attribute", "memory"])
def test_external_data_may_not_climb_out(tmp_path, location, holder):
    """Data outside the model's folder is refused: by .., by /, or by a link; in a model in memory as well."""
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(np.ones(4, np.float32).tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    where = location.format(root=tmp_path)
    source = ir.from_proto(pointing_to(where))
    ir.external_data.set_base_dir(source.graph, folder)
    if holder != "memory":
        (folder / "m.onnx").write_bytes(pointing_to(where, holder).SerializeToString())
        source = folder / "m.onnx"
    assert "outside the model's folder" in refused(source)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"offset": "-4"}, "offset must be non-negative"),
        ({"offset": "4"}, "ends beyond the end of w.data"),
        ({"offset": "99999999999999999999"}, "ends beyond the end of w.data"),
        ({"offset": "nonsense"}, "invalid literal"),
        ({"length": "8"}, "does not have the size of its shape"),
        ({"location": ""}, "outside the model's folder"),
        ({"location": "none.data"}, "the data of 'w' should be in none.data"),
    ],
)
def test_an_extent_that_cannot_be(tmp_path, entry, line):
    """Offsets beyond the end, lengths that contradict the shape, and names of no file are refused."""
    (tmp_path / "w.data").write_bytes(bytes(16))
    proto = pointing_to(**{"location": "w.data", **entry})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert line in refused(tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx", "w.data"]


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
