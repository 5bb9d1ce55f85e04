"""Parts of a model that runtimes accept and onnx-ir rejects or drops."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.policy.options import Options
from tests import text
from tests.commands import run

PRODUCT = "g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { h = MatMul(x, w)  y = Relu(h) }"
UNCHECKED = Options(check=False, metadata=False)


def damaged(change):
    """A model of two nodes after a change, rewritten without the checker."""
    proto = text.model(PRODUCT)
    change(proto)
    return rewrite(proto, UNCHECKED)


ODD = {
    "a value of a type that is none": lambda proto: proto.graph.value_info.append(
        helper.make_tensor_value_info("h", 99, None)
    ),
    "IR version 0, which is an old one": lambda proto: setattr(proto, "ir_version", 0),
    "no import, where runtimes use the newest, so also for Casts": lambda proto: proto.opset_import.pop(0),
    "two imports, of which the last counts": lambda proto: (
        setattr(proto.opset_import[0], "version", 5),
        proto.opset_import.add(domain="ai.onnx", version=17),
    ),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_an_odd_model_is_not_refused(change):
    """All of it is half as before; imports are no other than runtimes take them for."""
    result = damaged(change)
    versions = [each.version for each in result.model.opset_import if each.domain in ("", "ai.onnx")]
    assert (versions, result.report.nodes.half) in (([], 1), ([17], 2))


def test_a_reference_outside_of_a_function_is_none():
    """The value of the attribute counts, not the reference."""

    def change(proto):
        proto.graph.node.add(op_type="Cast", input=["y"], output=["z"]).attribute.append(
            onnx.AttributeProto(
                name="to", type=onnx.AttributeProto.INT, i=TensorProto.FLOAT16, ref_attr_name="r"
            )
        )
        proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, [4, 4]))

    cast = next(n for n in damaged(change).model.graph.node if n.output[0] == "z")
    assert (cast.attribute[0].i, cast.attribute[0].ref_attr_name) == (TensorProto.FLOAT16, "")


@pytest.mark.parametrize("place", ["node", "value", "domain", "producer"])
def test_names_that_are_no_utf_8(place):
    """They are read as Latin-1, with a warning; references to them still match."""
    data = text.model(PRODUCT)
    data.producer_name = "producer"
    data.graph.node[0].name, data.graph.node[0].output[0] = "node", "value"
    data.graph.node[1].input[0] = "value"
    data.opset_import.add(domain="domain", version=1)
    raw = data.SerializeToString().replace(place.encode(), place.encode()[:-1] + b"\xe9")
    result = rewrite(raw, Options(metadata=False))
    assert text.complaints(result) == ("names that are not UTF-8 were read as Latin-1",)
    assert place[:-1] + "é" in str(onnx.ModelProto.FromString(result.model))
    assert result.report.nodes.half == 2


UNDECODABLE = {
    "node's metadata": lambda model: model.graph.node[0].metadata_props.add(key="????", value="v"),
    "node's documentation": lambda model: setattr(model.graph.node[0], "doc_string", "????"),
    "denotation": lambda model: setattr(model.graph.input[0].type, "denotation", "????"),
    "size": lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "????"),
    "metadata": lambda model: model.metadata_props.add(key="k", value="????"),
}
"""Changes of a model, by the string that is no UTF-8 afterwards."""


@pytest.mark.parametrize("place", [*UNDECODABLE, "left", "last"])
def test_a_string_that_is_not_utf8_is_no_fault_of_any_command(tmp_path, place):
    """Wherever it is, the model is rewritten, explained and counted; where it does not run, a line tells."""
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    proto = text.model(
        "g (float[4, 4] left) => (float[4, 4] last) { h = MatMul (left, left) last = Relu (h) }"
    )
    UNDECODABLE.get(place, bool)(proto)
    data = proto.SerializeToString().replace(place.encode(), b"????")
    path.write_bytes(data.replace(b"????", b"?\xff\xfe?"))
    for command in ((path, "-o", out), ("explain", path), ("coverage", path), ("certify", path, out)):
        done = run(*command)
        assert done.exit_code == 0, done.output
    assert "this is a fault" not in run("verify", path, out).output


def test_data_that_is_there_twice_or_does_not_fit():
    """Of two fields with data, the one for the element type counts; too few values are refused in one
    line.
    """
    proto = text.model(PRODUCT)
    tensor = proto.graph.initializer[0]
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [4, 4], array.ravel()))
    tensor.int64_data.append(7)
    made = rewrite(proto, UNCHECKED).model
    np.testing.assert_array_equal(text.stored(made)["w"], array.astype(np.float16))
    tensor.dims[0] = 3
    with pytest.raises(ModelError, match="the content of 'w' does not fit its type and shape"):
        rewrite(proto, UNCHECKED)


@pytest.mark.parametrize("keep_functions", [True, False])
def test_sparse_constants_stay(keep_functions):
    """A Constant with a sparse tensor is preserved, in functions too; its consumers stay float32."""
    values = helper.make_tensor("v", TensorProto.FLOAT, [2], [1, 2])
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [0, 3])
    sparse = helper.make_sparse_tensor(values, indices, [4])
    proto = text.model(text.FUNCTIONS)
    for nodes in (proto.graph.node, proto.functions[0].node):
        nodes.append(helper.make_node("Constant", [], ["s"], sparse_value=sparse))
        nodes.append(helper.make_node("Add", [nodes[0].output[0], "s"], ["unread"]))
    made = rewrite(proto, Options(check=False, keep_functions=keep_functions)).model
    nodes = [*made.graph.node, *(node for function in made.functions for node in function.node)]
    found = [a.sparse_tensor for node in nodes for a in node.attribute if a.name == "sparse_value"]
    assert found == [sparse, sparse]


def sparse_initializer(name):
    """A sparse 4 x 4 with two numbers."""
    values = numpy_helper.from_array(np.array([0.5, 0.25], np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 6])), [4, 4])


BRANCHES = """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
    h = MatMul (x, w)
    y = If (c) <
        then_branch = t () => (float[4,4] p) { p = Add (h, k) },
        else_branch = e () => (float[4,4] q) { q = MatMul (h, w) }
    >
}"""


def test_the_sparse_initializers_of_a_body_stay():
    """A branch keeps its sparse initializers, and their consumers stay float32."""
    proto = text.unchecked(BRANCHES)
    branch = proto.graph.node[1].attribute[0].g
    branch.sparse_initializer.append(sparse_initializer("k"))
    made = rewrite(proto, UNCHECKED).model
    (node,) = (node for node in made.graph.node if node.op_type == "If")
    assert node.attribute[0].g.sparse_initializer == branch.sparse_initializer
    assert not node.attribute[0].g.metadata_props
    text.agree(proto, made)


def test_the_names_of_sparse_initializers_are_taken():
    """No value of a Cast gets the name of one."""
    proto = text.model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { h = MatMul(x, w)  y = Exp(h) }")
    proto.graph.node.add(op_type="MatMul", input=["h", "h__float32"], output=["z"])
    proto.graph.sparse_initializer.append(sparse_initializer("h__float32"))
    made = rewrite(proto, UNCHECKED).model
    assert "h__float32" not in {name for node in made.graph.node for name in node.output}


LEFT_OUT = {
    "Split": """g (float[6,4] x) => (float[2,4] a, float[2,4] b) <float[4,4] w> {
        m = MatMul (x, w) a, b, "" = Split <axis = 0> (m) }""",
    "Loop": """g (float[4,4] x, int64 n) => (float[4,4] y) <float[4,4] w> { y, "" = Loop (n, "", x) <
        body = b (int64 i, bool c, float[4,4] s) => (bool d, float[4,4] t, float[4,4] u) {
            d = Identity (c) t = MatMul (s, w) u = Relu (t) }> }""",
    "Unique": """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[6,4] x) => (float[n] a, float[4,4] y) <float[4,4] w> { a = my.first (x) y = MatMul (w, w) }
        <domain: "my", opset_import: ["" : 17]> first (v) => (a) { a, "", "" = Unique (v) }""",
}


@pytest.mark.parametrize("operator", LEFT_OUT)
def test_outputs_that_are_left_out_at_the_end_stay(operator):
    """Omitted outputs count, and are preserved, in the bodies of kept functions too."""
    made = rewrite(text.model(LEFT_OUT[operator]), Options(keep_functions=True)).model
    nodes = [*made.graph.node, *(node for function in made.functions for node in function.node)]
    (node,) = (node for node in nodes if node.op_type == operator)
    assert node.output[-1] == ""


def test_a_function_without_a_domain_stays_valid():
    """An empty domain is written explicitly."""
    proto = text.model(text.FUNCTIONS)
    proto.functions[0].domain = proto.graph.node[1].domain = ""
    made = rewrite(proto, Options(check=False, keep_functions=True)).model
    assert made.functions[0].HasField("domain")


def test_a_body_that_does_not_fit_its_node():
    """A loop whose body lacks outputs is opaque."""
    proto = text.model(
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, int64 n = {2}, bool c = {1}> {
            h = MatMul (x, w)
            y = Loop (n, c, h) <body = b (int64 i, bool going, float[4,4] s) => (bool on, float[4,4] t) {
                on = Identity (going)  t = MatMul (s, w) }>
        }"""
    )
    del proto.graph.node[1].attribute[0].g.output[:]
    made = rewrite(proto, UNCHECKED).model
    assert "y = Loop(n, c, h__float32)" in text.nodes(made)
