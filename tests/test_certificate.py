"""The certificate beyond what text says: real models, long ones, tensors; the rest are cases."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate import folding, numbering
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.shapes import Ranks
from tests.certificate_pairs import changed, check, model, store

MODELS = Path(__file__).parents[2] / "shared" / "models"
MODES = {
    "float16": {},
    "bfloat16": {"half": "bfloat16"},
    "half_io": {"io": "half"},
    "force_all": {"level": "unsafe-force-all"},
    "keep_functions": {"keep_functions": True},
}


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
@pytest.mark.parametrize("mode", MODES)
def test_shared_models_are_proved(mode, tmp_path):
    """Results are the originals but for precision, whatever was asked for."""
    for path in proved_in(mode):
        result = rewrite(path, Options(check=False, **MODES[mode]), output=tmp_path / "r.onnx")
        found = certify(path, result.model)
        assert found.proved, f"{path}: {found}"


def proved_in(mode):
    """Every second shared model; where tests/test_models.py has all the others, the train steps."""
    training = mode in ("float16", "bfloat16")
    return sorted(MODELS.glob("training/*.onnx")) if training else sorted(MODELS.glob("*/*.onnx"))[::2]


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
def test_ranks_are_those_that_onnx_infers():
    """Of every value of the shared models whose rank is found, though no declaration tells it."""
    known = 0
    for proto in map(onnx.load, sorted(MODELS.glob("*/*.onnx"))):
        inferred = inferred_ranks(proto)
        del proto.graph.value_info[:]
        numbered = numbering.number(Numbered(proto, None), numbering.functions_of(proto))
        ranks, makers = Ranks(numbered), numbered.makers
        inside = [at for at, node in enumerate(makers) if node is not None and node.scope.outer is None]
        for name, rank in ((numbered.names[at], ranks.of(at)) for at in inside):
            assert rank is None or rank == inferred.get(name, rank), name
            known += rank is not None and name in inferred
    assert known > 2_000


def inferred_ranks(proto):
    """The rank of each value that onnx's inference finds one for."""
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        proto = onnx.shape_inference.infer_shapes(proto)
    kinds = ((info.name, info.type.tensor_type) for info in proto.graph.value_info)
    return {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}


def test_long_and_doubled_rows_are_followed_once():
    """Neither the depth of a model nor the number of its paths matters."""
    nodes = [helper.make_node("Add", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(20_000)]
    infos = [helper.make_tensor_value_info(name, 1, [1]) for name in ("v0", "v20000")]
    chain = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]))
    check(chain, chain, "proved: 20000 nodes")


def test_functions_may_call_one_another_in_a_long_row():
    """As deep as exporters nest them, and deeper."""
    functions = "".join(
        f'<domain: "d", opset_import: ["": 17, "d": 1]> f{i} (a) => (b) {{ b = {called} (a) }}'
        for i in range(200)
        for called in [f"d.f{i + 1}" if i < 199 else "Exp"]
    )
    called = "g (float[2] x) => (float[2] y) { y = d.f0 (x) }" + functions
    check(called, "g (float[2] x) => (float[2] y) { y = Exp (x) }", "proved")


PLAIN = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.1, 2.0, 3.0, 4.0}> {
    c = Constant<value = float[1] {0.3}>() a = MatMul(x, w) b = Add(a, c) d = Relu(b) y = Exp(d) }"""


@pytest.mark.parametrize("asked", [{}, {"half": "bfloat16"}, {"metadata": False}], ids=str)
def test_a_plain_result_is_proved(asked):
    """All nodes of the original are counted, and none of the Casts."""
    original = model(PLAIN)
    result = rewrite(original, Options(**asked)).model
    assert len(result.graph.node) > len(original.graph.node)
    check(original, result, "proved: 4 nodes")


def test_a_bit_of_a_small_weight():
    """Weights that are compared many at a time are compared."""
    before = changed(PLAIN, store("w", np.float32([[1.1, 2], [3, 4]])))
    after = rewrite(before).model
    check(before, after, "proved")
    (half,) = after.graph.initializer
    assert half.data_type == TensorProto.FLOAT16
    half.raw_data = bytes([half.raw_data[0] ^ 1]) + half.raw_data[1:]
    assert "element 0 was" in certify(before, after).problem


@pytest.mark.parametrize("number", [1e-44, -1e-40, np.uint32(0x7F80_0001).view(np.float32), np.nan, np.inf])
def test_other_weights_of_odd_numbers_are_refused(number):
    """Without an error: subnormal numbers alone, a signalling NaN."""
    before = changed(PLAIN, store("w", np.float32([[5e-45, 7e-45], [9e-45, 1e-44]])))
    assert not certify(before, changed(PLAIN, store("w", np.full((2, 2), number, np.float32)))).proved


def test_metadata_of_nodes_is_not_compared():
    """However long it is; the overload of a node is."""
    before, after = model(PLAIN), model(PLAIN)
    for text in ("", "short", "long" * 99):
        after.graph.node[1].metadata_props.add(key="amp_rewrite", value=text)
        check(before, after, "proved")
    after.graph.node[1].overload = "other"
    check(before, after, "not proved: they are of different overloads")


@pytest.mark.parametrize("graph", ["y = ArgMax <axis = 0> (x)", "y = Softmax <axis = 1> (x)"])
def test_an_attribute_without_a_name_hides_no_other(graph):
    """Whether or not the one beside it is the same."""

    def change(result):
        attributes = result.graph.node[0].attribute
        attributes[0].i = 1
        attributes.append(AttributeProto(type=AttributeProto.INT, i=1))

    text = f"g (float[2,2] x) => (y) {{ {graph} }}"
    assert not certify(model(text), changed(text, change)).proved


@pytest.mark.parametrize("sparse", [False, True])
def test_tensors_of_attributes_in_a_list_or_sparse_have_no_exponent(sparse):
    """Like single ones."""
    places = numpy_helper.from_array(np.array([0, 2]), "places")

    def with_attribute(scale):
        values = numpy_helper.from_array(np.float32([1, 3]) * np.float32(scale), "v")
        value = helper.make_sparse_tensor(values, places, [4]) if sparse else [values, places]
        change = helper.make_attribute("w", value)
        return changed(
            "g (float[2] x) => (float[2] y) { y = d.Op (x) }",
            lambda result: result.graph.node[0].attribute.append(change),
        )

    check(with_attribute(1), with_attribute(1), "proved")
    for factor in (2, 0.25):
        check(with_attribute(1), with_attribute(factor), "not proved: their attribute 'w' differs")


def test_most_work_bounds_what_is_computed_anew(monkeypatch):
    """A product of two vectors counts each element of its result."""
    monkeypatch.setattr(folding, "MOST_WORK", 2048 * 2048)
    original = """g (float[2] x) => (float[2] y) <int64[2] s = {2048, 1}, float w = {0.5}> {
        e = Expand (w, s) t = Transpose (e) m = MatMul (e, t) q = ReduceSum <keepdims = 0> (m)
        y = Add (x, q) }"""
    folded = "g (float[2] x) => (float[2] y) <float q = {1048576}> { y = Add (x, q) }"
    check(original, folded, "not proved: what is folded is too large to compute anew")


def test_a_table_of_angles_is_computed_anew():
    """A product of positions and frequencies, each element of which reads one of either, is little work."""
    text = 'g (int64[1] x) => (float[1,64] y) { q = Einsum <equation = "i,j->ij"> (p, f) y = Gather (q, x) }'
    positions, frequencies = np.arange(1 << 16, dtype="f4"), np.linspace(0, 1, 64, dtype="f4")
    original = changed(changed(text, store("p", positions)), store("f", frequencies))
    folded = changed(text, store("q", np.outer(positions, frequencies)))
    del folded.graph.node[0]
    check(original, folded, "proved: folded 1")
