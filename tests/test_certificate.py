"""The certificate beyond what text says: real models, long ones, tensors; the rest are cases."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate import folding, numbering
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.shapes import Ranks
from amp_rewrite.demo import network
from amp_rewrite.errors import CertificateError, ModelError
from amp_rewrite.rewriting import result_checks
from tests import text
from tests.certificate_pairs import changed, check, model, store
from tests.commands import failure, run

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
    for words in ("", "short", "long" * 99):
        after.graph.node[1].metadata_props.add(key="amp_rewrite", value=words)
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


# ---- `amp-rewrite certify`, and the proof that every rewrite makes of its own result


def test_a_result_that_no_runtime_takes_is_warned_of(tmp_path):
    """A Cast to the other half type computes the same but for precision, and what reads it wants one type."""
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(network(), paths[0])
    made = rewrite(network()).model
    cast = next(node for node in made.graph.node if node.op_type == "Cast")
    cast.attribute[0].i = TensorProto.BFLOAT16
    onnx.save(made, paths[1])
    done = run("certify", *paths)
    assert done.exit_code == 0
    assert "warning  onnx's checker rejects the result: " in done.stdout


WIDE = "g (float[4,256] x) => (float[4,256] y) <float[256,256] w> { h = MatMul (x, w) y = Relu (h) }"


@pytest.fixture
def wide(tmp_path):
    """A model that becomes half."""
    onnx.save(text.model(WIDE), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_main_job_proves_its_result(wide, tmp_path):
    """The report and its JSON say what was proved."""
    told = tmp_path / "r.json"
    done = run(wide, "-o", tmp_path / "out.onnx", "--skip=verify", "-v", "--json", told)
    assert "proof    proved equal but for precision\n" in done.stdout
    assert json.loads(told.read_text())["certificate"]["nodes"] == 2


def test_what_is_not_proved_is_not_written(wide, tmp_path, monkeypatch):
    """One line, exit code 2, and no file; --skip certify writes it, and an older file stays as it was."""
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")

    def only_itself(original, rewritten, **_):
        return Certificate(original == rewritten, 0, problem="they differ")

    monkeypatch.setattr(result_checks, "certify", only_itself)
    line = failure(wide, "-o", out, "--force", "--skip=verify")
    assert "not proved equal: they differ; please report this fault" in line
    assert "--skip certify writes it all the same" in line
    assert out.read_bytes() == b"old"
    assert run(wide, "-o", out, "--force", "--skip=verify", "--skip=certify").exit_code == 0
    assert certify(wide, out).proved
    with pytest.raises(CertificateError, match="not proved"):
        rewrite(wide.read_bytes(), Options(certify=True))


KINDS = {
    "path": str,
    "bytes": Path.read_bytes,
    "proto": onnx.load,
    "ir": onnx_ir.load,
    "graphsurgeon": lambda path: pytest.importorskip("onnx_graphsurgeon").import_onnx(onnx.load(path)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_certify_as_an_option(wide, tmp_path, kind):
    """From Python, a model of any kind is proved, unless that is not asked for."""
    source = KINDS[kind](wide)
    given = {"output": tmp_path / "out.onnx"} if kind == "path" else {}
    assert rewrite(source, **given).report.certificate.proved
    assert rewrite(source, Options(certify=False), **given).report.certificate is None


def test_a_model_in_memory_is_proved_with_its_weights_in_files(wide, tmp_path):
    """onnx-ir tells where they lie; where they lie in several folders, nothing is proved."""
    onnx.save(onnx.load(wide), wide, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = rewrite(onnx_ir.load(wide)).report
    assert found.changed
    assert found.certificate.proved
    model, folder = onnx_ir.load(wide), tmp_path / "other"
    folder.mkdir()
    (folder / "v.bin").write_bytes(bytes(4))
    shape, kind = onnx_ir.Shape([1]), onnx_ir.DataType.FLOAT
    other = onnx_ir.ExternalTensor("v.bin", 0, 4, kind, shape=shape, name="v", base_dir=folder)
    model.graph.register_initializer(onnx_ir.Value(name="v", const_value=other))
    assert not rewrite(model).report.certificate.proved


def test_what_cannot_be_proved_equal_to_itself_is_written(wide, tmp_path, monkeypatch):
    """A model that the certificate does not understand says nothing of its rewrite; the report says so."""
    monkeypatch.setattr(
        result_checks, "certify", lambda *_, **__: Certificate(False, 0, problem="what is this")
    )
    out = tmp_path / "out.onnx"
    done = run(wide, "-o", out, "--skip=verify", "-v")
    assert done.exit_code == 0
    assert "proof    none: the model is not even proved equal to itself (what is this)" in done.stdout
    assert out.exists()


def test_external_data_is_proved_where_it_lies(wide, tmp_path):
    """Weights in files beside both models are read from there, of the result before it is in place."""
    onnx.save(onnx.load(wide), wide, save_as_external_data=True, location="w.bin", size_threshold=0)
    done = run(wide, "-o", tmp_path / "out.onnx", "--skip=verify", "-v")
    assert "proof    proved equal but for precision" in done.stdout
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(wide)
    (link.parent / "w.bin").symlink_to(tmp_path / "w.bin")
    assert certify(link, tmp_path / "out.onnx").proved


@pytest.mark.parametrize(("words", "kind"), [("Sub (a, x)", CertificateError), ("Sub (a)", ModelError)])
def test_what_is_not_proved_of_an_invalid_model_is_no_fault_of_ours(words, kind):
    """It is said what is wrong with the model; of a valid one, that it is to be reported."""
    original = text.unchecked(f"g (float[2] x) => (float[2] y) {{ a = Neg (x) y = {words} }}")
    with pytest.raises(kind) as raised, result_checks.blaming(lambda: original):
        raise CertificateError("the result is not proved", remedy="please report this")
    assert ("report" in str(raised.value)) == (kind is CertificateError)
