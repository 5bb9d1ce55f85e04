"""What a rewrite must not change, and what it updates."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.options import Options
from tests.text import model, printed, rewritten


def test_what_surrounds_the_graph_survives():
    """Versions, producer, domain, texts, metadata, attributes and declared shapes are preserved."""
    proto = model(
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1, "my" : 7],
            producer_name: "me", producer_version: "1.2", domain: "org", model_version: 5,
            doc_string: "a model", metadata_props: ["author" : "someone"]>
        g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,3,3] w> {
            [c] a = Conv <auto_pad = "SAME_UPPER", strides = [1, 1]> (x, w)
            [r] y = LeakyRelu <alpha = 0.25> (a)
        }"""
    )
    proto.graph.doc_string = "a graph"
    proto.graph.node[0].doc_string = "a node"
    proto.graph.node[0].metadata_props.add(key="from", value="layer 1")
    proto.graph.initializer[0].doc_string = "a weight"
    proto.graph.initializer[0].metadata_props.add(key="from", value="checkpoint 3")
    proto.graph.value_info.add().CopyFrom(helper.make_tensor_value_info("a", 1, [1, 1, "H", 4]))
    after = rewritten(proto, Options(metadata=False)).model
    for name in (
        "ir_version opset_import producer_name producer_version domain model_version doc_string "
        "metadata_props"
    ).split():
        assert getattr(after, name) == getattr(proto, name), name
    assert (after.graph.name, after.graph.doc_string) == ("g", "a graph")
    conv = next(node for node in after.graph.node if node.op_type == "Conv")
    for name in ("name", "attribute", "doc_string", "metadata_props"):
        assert getattr(conv, name) == getattr(proto.graph.node[0], name), name
    weight = after.graph.initializer[0]
    assert weight.doc_string == "a weight"
    assert weight.metadata_props == proto.graph.initializer[0].metadata_props
    inside = next(info for info in after.graph.value_info if info.name == "a")
    assert inside == helper.make_tensor_value_info("a", 10, [1, 1, 4, 4])


def test_what_callers_know_of_an_output_stays_with_it():
    """An output keeps its shape, its text, its metadata and its quantisation annotation."""
    proto = model("g (float[N,4] x) => (float[N,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    proto.graph.output[0].doc_string = "the answer"
    proto.graph.output[0].metadata_props.add(key="unit", value="metres")
    annotation = proto.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    after = rewritten(proto).model
    assert after.graph.output[0] == proto.graph.output[0]
    inside = next(info for info in after.graph.value_info if info.name == "y__float16")
    assert (inside.doc_string, len(inside.metadata_props)) == ("", 0)
    assert set(map(str, after.graph.quantization_annotation)) == {str(annotation)}


def test_the_original_stays_as_it_is():
    """A model given as a proto or an onnx_ir.Model is not changed by its rewrite."""
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    before = proto.SerializeToString(deterministic=True)
    rewritten(proto)
    assert proto.SerializeToString(deterministic=True) == before
    ours = ir.from_proto(proto)
    assert ir.to_proto(rewrite(ours).model) != proto
    text = printed(ir.to_proto(ours))
    assert text == printed(proto)


HASHED = """
import sys
from amp_rewrite.pipeline import rewrite
from tests.text import model
text = '''g (float[4] x) => (float[4] y, float r, float[4] s) <float[4,4] w> {
    a = Constant <value_float = 0.1> () b = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> ()
    c = Constant <value = float[4] {1, 2, 3, 4}> () m = MatMul (x, w) p = Add (m, a) q = Mul (p, b)
    y = Sub (q, c) r = Exp (a) s = Exp (b) }'''
sys.stdout.buffer.write(rewrite(model(text)).model.SerializeToString())
"""


@pytest.mark.slow
def test_the_result_is_the_same_whatever_the_hash_seed():
    """Two processes with different hash seeds write the same bytes."""
    first, second = (_hashed(seed) for seed in ("1", "2"))
    assert onnx.ModelProto.FromString(first).graph.node
    assert first == second


def _hashed(seed):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", HASHED]
    return subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True).stdout
