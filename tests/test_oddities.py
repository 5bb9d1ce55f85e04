"""What runtimes read and onnx-ir does not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.options import Options
from tests import text

PRODUCT = "g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { h = MatMul(x, w)  y = Relu(h) }"
UNCHECKED = Options(check=False, metadata=False)


def damaged(change):
    """A model of two nodes after a change, rewritten without the checker."""
    proto = text.model(PRODUCT)
    change(proto)
    return rewrite(proto, UNCHECKED)


def test_a_type_that_is_none_says_nothing():
    """An element type that ONNX does not have is no reason to refuse a model that says it in passing."""

    def change(proto):
        proto.graph.value_info.add(name="h").type.tensor_type.elem_type = 99

    assert damaged(change).report.nodes.half == 2


def test_a_reference_outside_of_a_function_is_none():
    """Such an attribute counts by what it holds."""

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
    """They are read as Latin-1, which is said; what refers to them still does."""
    data = text.model(PRODUCT)
    data.producer_name = "producer"
    data.graph.node[0].name, data.graph.node[0].output[0] = "node", "value"
    data.graph.node[1].input[0] = "value"
    data.opset_import.add(domain="domain", version=1)
    raw = data.SerializeToString().replace(place.encode(), place.encode()[:-1] + b"\xe9")
    result = rewrite(raw, Options(metadata=False))
    assert result.report.warnings == ("names that are no UTF-8 were read as Latin-1",)
    assert place[:-1] + "é" in str(onnx.ModelProto.FromString(result.model))
    assert result.report.nodes.half == 2


def test_the_last_of_several_imports_counts():
    """A domain that is imported twice, also under its other name, has the version that is said last."""

    def change(proto):
        proto.opset_import[0].version = 5
        proto.opset_import.add(domain="ai.onnx", version=17)

    made = damaged(change).model
    assert [o.version for o in made.opset_import if o.domain in ("", "ai.onnx")] == [17]


def test_data_that_is_there_twice():
    """Of two fields with numbers, the one for the type counts."""

    def change(proto):
        tensor = proto.graph.initializer[0]
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [4, 4], array.ravel()))
        tensor.int64_data.append(7)

    expected = text.stored(text.model(PRODUCT))["w"].astype(np.float16)
    np.testing.assert_array_equal(text.stored(damaged(change).model)["w"], expected)


def test_data_that_does_not_fit_its_shape():
    """Too few numbers are the model's fault, and said in one line."""

    def change(proto):
        proto.graph.initializer[0].dims[0] = 3

    with pytest.raises(ModelError, match="what 'w' holds does not fit its type and shape"):
        damaged(change)


@pytest.mark.parametrize("keep_functions", [True, False])
def test_sparse_constants_stay(keep_functions):
    """A Constant that holds a sparse tensor is left as it is, in functions too; its readers stay float32."""
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


def test_a_function_without_a_domain_stays_valid():
    """An empty domain is still said."""
    proto = text.model(text.FUNCTIONS)
    proto.functions[0].domain = proto.graph.node[1].domain = ""
    made = rewrite(proto, Options(check=False, keep_functions=True)).model
    assert made.functions[0].HasField("domain")


def test_ir_version_zero():
    """A model that says 0 is one of an old version, for runtimes as for us."""

    def change(proto):
        proto.ir_version = 0

    assert damaged(change).report.nodes.half == 2


def test_casts_before_opset_6_have_a_name_for_their_type():
    """`to` is text there, in Casts that stand in the model and in ours."""
    proto = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 1]> g (float[4,4] x, float[4,4] w, int64[4,4] i)
        => (float[4,4] y, float[4,4] f) { f = Cast <to = "FLOAT"> (i)  a = MatMul(x, w)  y = Relu(a) }"""
    )
    result = rewrite(proto, Options(metadata=False))
    assert (result.report.broken, result.report.warnings) == ((), ())
    casts = [node.attribute[0].s for node in result.model.graph.node if node.op_type == "Cast"]
    assert sorted(casts) == [b"FLOAT", b"FLOAT", b"FLOAT16", b"FLOAT16"]


def test_no_import_for_casts_where_nodes_have_none():
    """Runtimes take the newest opset for nodes whose domain is not imported, and so for our Casts."""

    def change(proto):
        del proto.opset_import[0]

    assert [o.domain for o in damaged(change).model.opset_import] == ["com.microsoft"]


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
