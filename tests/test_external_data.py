"""External data: where it is read from, and that it stays external."""

import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.model import external_data as external_module
from amp_rewrite.model.external_data import SIGNATURE
from amp_rewrite.policy.options import IOTypes, Options
from tests import text
from tests.commands import run
from tests.model_files import LARGE, external, names, refused, save_external

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
    expected = numpy_helper.to_array(onnx.load(external).graph.initializer[0]).astype(np.float16)
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(output).graph.initializer[0]), expected)


def test_external_data_over_itself(external):
    """In place, weights are read from the file that they replace."""
    expected = numpy_helper.to_array(onnx.load(external).graph.initializer[0]).astype(np.float16)
    assert rewrite(external, in_place=True).model == external
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(external).graph.initializer[0]), expected)
    assert names(external.parent) == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]
    assert rewrite(external, Options(io=IOTypes.HALF), in_place=True).report.changed
    assert names(external.parent) == ["m.onnx", "m.onnx.2.data", "m.onnx.data"]


def test_the_data_file_of_a_result_is_named(external, tmp_path):
    """Who copies the result has to take it along; a result without one names none."""
    done = run(external, "-o", tmp_path / "half.onnx", "--skip=verify")
    assert "data     half.onnx.data: the weights" in done.stdout
    back = run("restore", tmp_path / "half.onnx", "-o", tmp_path / "back.onnx", "--skip=verify").stdout
    assert "data     back.onnx.data: the weights" in back
    whole = ("--external-data", "never", "--skip=verify")
    assert "data  " not in run(external, "-o", tmp_path / "whole.onnx", *whole).stdout


def test_external_data_of_an_unchanged_model(tmp_path):
    """An unchanged model is copied with its external data, and loads."""
    proto = text.model("g (float[4] x) => (float[4] y) <float[4] w> { h = Pow(x, w)  y = Exp(h) }")
    save_external(proto, tmp_path / "m.onnx", "m.data")
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "sub.onnx").model
    assert numpy_helper.to_array(onnx.load(made).graph.initializer[0]).dtype == np.float32


def test_the_data_of_the_input_is_spared(external):
    """If the data of the result would replace that of the input, it gets another name."""
    save_external(onnx.load(external), external.with_name("a.onnx"), "b.onnx.data")
    before = external.with_name("b.onnx.data").read_bytes()
    made = rewrite(external.with_name("a.onnx"), output=external.with_name("b.onnx")).model
    assert external.with_name("b.onnx.data").read_bytes() == before
    assert onnx.load(made).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    assert external.with_name("b.onnx.1.data").exists()


def test_missing_external_data(external):
    """A missing data file is refused; the message names the tensor and the file."""
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
    """Data outside the model's folder is refused: by .., by /, or by a link."""
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(np.ones(4, np.float32).tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    proto = pointing_to(location.format(root=tmp_path), holder)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    assert "outside the model's folder" in refused(folder / "m.onnx")


def pointing_to(location, holder, offset="0"):
    """A model with one external weight, in an initializer or a Constant node."""
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
    """An offset beyond the end of the file is refused."""
    (tmp_path / "w.data").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(pointing_to("w.data", "initializer", offset).SerializeToString())
    refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("reader", ["MatMul", "Pow"])
def test_external_data_of_an_attribute(tmp_path, reader):
    """The external data of a Constant node is loaded into the result, converted or not."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "w.data").write_bytes(np.full(4, 0.5, np.float32).tobytes())
    proto = pointing_to("w.data", "attribute")
    proto.graph.node[1].op_type = reader
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    made = onnx.load(rewrite(folder / "m.onnx", output=tmp_path / "out.onnx").model)
    assert set(text.stored(made)["w"].flat) == {0.5}


def test_a_second_hard_link_is_no_harm(external, tmp_path):
    """A data file with a second hard link, as in a model store, is read."""
    proto = text.model("g (float[700] x) => (float[700] y) <float[700] w> { y = Pow(x, w) }")
    save_external(proto, external.with_name("n.onnx"), "n.onnx.data")
    for name in ("m", "n"):
        os.link(external.with_name(f"{name}.onnx.data"), tmp_path / name)
        made = rewrite(external.with_name(f"{name}.onnx"), output=tmp_path / f"{name}.onnx").model
        assert onnx.load(made).graph.initializer[0].dims[0] == LARGE


def test_a_model_in_a_store_of_files(external, tmp_path):
    """A model and its data may both be links into one folder, as in a download cache."""
    view = tmp_path / "view"
    view.mkdir()
    for name in names(external.parent):
        (view / name).symlink_to(external.parent / name)
    made = rewrite(view / "m.onnx", Options(check=False)).model
    assert made == view / "m_fp16.onnx"
    assert onnx.load(made).graph.initializer[0].data_type == TensorProto.FLOAT16


def test_external_data_of_a_function(tmp_path):
    """External data of a function is found, inlined or not."""
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
    """A length that contradicts the shape, an invalid offset and an empty name are refused."""
    proto = pointing_to("w.data", "initializer")
    (entry,) = (each for each in proto.graph.initializer[0].external_data if each.key == key)
    entry.value = value
    (tmp_path / "w.data").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    refused(tmp_path / "m.onnx")


def test_a_model_in_memory_may_not_climb_out(tmp_path):
    """An onnx_ir.Model with tensors outside its folder is refused as well."""
    (tmp_path / "secret").write_bytes(bytes(16))
    source = ir.from_proto(pointing_to("../secret", "initializer"))
    ir.external_data.set_base_dir(source.graph, tmp_path / "models")
    assert "outside the model's folder" in refused(source)


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
    weight = f"<float[700, {columns}] w>"
    source = f"g (float[1, 700] x) => (float[1, {columns}] y) {weight} {{ y = MatMul (x, w) }}"
    save_external(text.model(source), path, "m.onnx.data")

    def cut(model, path):
        found = resolve(model, path)
        path.with_name("m.onnx.data").write_bytes(b"short")
        return found

    monkeypatch.setattr(external_module, "resolve", cut)
    assert "it ends too early" in refused(path)


@pytest.mark.parametrize("door", [onnx.ModelProto.SerializeToString, lambda m: m])
def test_external_data_without_a_folder(door, external, monkeypatch):
    """External data of bytes and protos is refused, since its folder is not known."""
    source = door(onnx.load(external, load_external_data=False))
    monkeypatch.chdir(external.parent)
    assert "give its path" in refused(source)
