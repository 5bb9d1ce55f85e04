"""The functions of other converters, with their signatures."""

import warnings
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from amp_rewrite import compat
from amp_rewrite.errors import ModelError, OptionError
from tests import text

pytest.importorskip("onnxruntime")
FLOAT, FLOAT16, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
NET = """net (float[8, 16] x, float[8, 16] z) => (float[8, 16] y) <float[16, 16] v, float[16, 16] w> {
    [first] a = MatMul (x, v)  [add] b = Add (a, z)  c = Relu (b)  [second] y = MatMul (c, w) }"""
SAMPLE = {"x": np.ones((8, 16), np.float32), "z": np.ones((8, 16), np.float32)}


@pytest.fixture
def net():
    """A model of two products, with an unnamed node."""
    proto = text.model(NET)
    rng = np.random.default_rng(0)
    for name in "vw":
        array = rng.random((16, 16), np.float32)
        (old,) = (each for each in proto.graph.initializer if each.name == name)
        old.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return proto


@pytest.fixture
def path(net, tmp_path):
    """The model in a file."""
    onnx.save(net, tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def borders(proto):
    """The element types of inputs and outputs."""
    return {each.name: each.type.tensor_type.elem_type for each in (*proto.graph.input, *proto.graph.output)}


def in_half(proto):
    """The nodes whose outputs are half, but for Casts."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    values = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    half = {each.name for each in values if each.type.tensor_type.elem_type in (FLOAT16, BFLOAT16)}
    nodes = (node for node in proto.graph.node if node.op_type != "Cast" and node.output[0] in half)
    return {node.name or node.output[0] for node in nodes}


ALL = {"first", "add", "c", "second"}


def test_inputs_and_outputs_keep_their_types_as_asked(net):
    """All, none, or those of a list; the model that was given stays as it is."""
    before = net.SerializeToString()
    wide = compat.convert_float_to_float16(net, keep_io_types=True)
    assert set(borders(wide).values()) == {FLOAT}
    assert in_half(wide) >= ALL - {"second"}
    assert set(borders(compat.convert_float_to_float16(net)).values()) == {FLOAT16}
    listed = compat.convert_float_to_float16(net, keep_io_types=["x"])
    assert borders(listed) == {"x": FLOAT, "z": FLOAT16, "y": FLOAT16}
    assert net.SerializeToString() == before


def test_what_is_blocked_stays_float32(net, path):
    """Operators by their names, with those of the peers' default list, and nodes by theirs."""
    blocked = [*compat.DEFAULT_OP_BLOCK_LIST, "MatMul"]
    assert in_half(compat.convert_float_to_float16(net, op_block_list=blocked)) == set()
    assert in_half(compat.convert_float_to_float16(net, node_block_list=["first"])) == ALL - {"first"}
    assert in_half(compat.convert_float_to_float16_model_path(path)) == ALL


def test_one_warning_says_what_has_no_effect(net):
    """Of values that are not the peers' own, and of names that the model lacks."""
    with pytest.warns(UserWarning, match="has no effect") as told:
        compat.convert_float_to_float16(
            net, 1e-4, 100.0, ["q"], True, node_block_list=["none"], force_fp16_inputs={"Resize": [2]}
        )
    (warning,) = told
    assert warning.filename == __file__
    words = str(warning.message)
    for name in ("min_positive_val", "max_finite_val", "disable_shape_infer", "force_fp16_inputs"):
        assert f"{name} has no effect: " in words
    for name in ("keep_io_types 'q'", "node_block_list 'none'"):
        assert f"{name} has no effect: the model has none of that name" in words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compat.convert_float_to_float16(net, 1e-7, 1e4)


def test_a_name_that_decides_nothing_refuses_no_model(tmp_path):
    """Lists of names are made for many models: integers stay as they are, and what cannot be half is said."""
    proto = text.model("""net (float[8, 16] x) => (float[8, 16] y, int64[2] n) <float[16, 16] w> {
        m = Shape (x)  [sizes] n = Add (m, m)  [last] y = MatMul (x, w) }""")
    assert in_half(compat.convert_float_to_float16(proto, node_block_list=["sizes", "last"])) == set()
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    with pytest.warns(UserWarning, match="nodes_to_include sizes has no effect: it computes nothing"):
        assert "last" in in_half(compat.convert_to_mixed_precision(path, nodes_to_include=["sizes", "last"]))


def test_a_validation_decides(net):
    """A function of the outputs, or tolerances; without a result that passes, a ValueError."""
    seen = []

    def validate(before, after):
        seen.append((len(before), after[0].shape))
        return np.allclose(before[0], after[0], rtol=0.1)

    half = compat.auto_convert_mixed_precision(net, SAMPLE, validate, keep_io_types=True)
    assert seen[0] == (1, (8, 16))
    assert in_half(half) >= {"first"}
    assert compat.auto_convert_mixed_precision(net, SAMPLE, rtol=0.1, atol=0.1, keep_io_types=True)
    with pytest.raises(ValueError, match="no result passes the validation"):
        compat.auto_convert_mixed_precision(net, SAMPLE, lambda *_: False)
    with pytest.raises(ValueError, match="no result passes the validation: valid: raised ZeroDivisionError"):
        compat.auto_convert_mixed_precision(net, SAMPLE, lambda *_: 1 / 0)
    with pytest.raises(OptionError, match="neither validate_fn nor rtol"):
        compat.auto_convert_mixed_precision(net, SAMPLE)


@pytest.mark.parametrize(
    ("arguments", "half"),
    [
        ({}, ALL),
        ({"nodes_to_exclude": ["sec"]}, ALL - {"second"}),
        ({"op_types_to_exclude": ["Add"], "nodes_to_include": ["c"]}, ALL - {"add"}),
        ({"custom_rule": SimpleNamespace(check=lambda node: node.name == "add")}, ALL - {"add"}),
        ({"init_max": 0.01}, ALL - {"first", "second"}),
        ({"data_max": 50.0, "calibration_data": SAMPLE}, ALL - {"second"}),
        ({"nodes_to_exclude": [".*"], "nodes_to_include": ["first"]}, {"first"}),
        ({"nodes_to_exclude": [".*"], "op_types_to_include": ["Relu"]}, {"c"}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else "",
)
def test_autocast_keeps_what_it_is_told_to(path, arguments, half):
    """Patterns match the beginning of a name; limits are of stored values, and of values on a sample."""
    assert in_half(compat.convert_to_mixed_precision(path, **arguments)) == half


def test_autocast_takes_types_opsets_and_what_has_no_effect(path, net):
    """`bf16` and `fp16` are types; an opset is the least, and providers have no effect."""
    wide = compat.convert_to_mixed_precision(path, "bf16", keep_io_types=True)
    assert set(borders(wide).values()) == {FLOAT}
    assert set(borders(compat.convert_to_f16(net, "bf16", keep_io_types=False)).values()) == {BFLOAT16}
    for newer in (compat.convert_to_mixed_precision(path, opset=18), compat.convert_to_f16(net, opset=18)):
        assert [each.version for each in newer.opset_import if not each.domain] == [18]
    with pytest.warns(UserWarning, match="providers has no effect: values are observed on the CPU"):
        compat.convert_to_mixed_precision(path, providers=["cuda"])
    kept = compat.convert_to_f16(net, op_block_list=["Add"], tensor_block_dict={"MatMul": {"inp": [1]}})
    assert in_half(kept).isdisjoint({"first", "second", "add"})


def test_a_file_that_is_no_model_or_lacks_its_weights_is_one_line(net, tmp_path):
    """As everywhere: what is wrong, and what would help."""
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    onnx.save(net, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    for name, why in {"none": r"none\.onnx", "bad": r"bad\.onnx", "m": "its weights cannot be read"}.items():
        with pytest.raises(ModelError, match=why):
            compat.convert_float_to_float16_model_path(tmp_path / f"{name}.onnx")
