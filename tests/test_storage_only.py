"""Weights alone in half: what half does not hold, the way back, real models."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from amp_rewrite import Options, Pins, analyze, measure_coverage, observe, restore, rewrite, tune
from amp_rewrite.cli.commands import main
from amp_rewrite.demo import feeds, network
from amp_rewrite.rewriting.annotations import KEY
from tests import real_models, text

ONLY = Options(storage_only=True)
LAYER = """g (float[2,16] x) => (float[2,16] y) <float[16,16] w, float[16] b> {
    [product] p = MatMul (x, w)
    [sum] y = Add (p, b) }"""


@pytest.mark.parametrize(
    ("operator", "weight", "options"),
    [
        pytest.param("MatMul", np.full((16, 16), 7e4), ONLY, id="overflows"),
        pytest.param("MatMul", np.full((16, 16), 3e-6), ONLY, id="subnormal"),
        pytest.param("Div", np.full((16, 16), 1e-9), ONLY, id="flushed divisor"),
        pytest.param("MatMul", np.full((16, 16), 0.3), Options(storage_only=True, pins=Pins("n")), id="kept"),
    ],
)
def test_what_half_does_not_hold_stays(operator, weight, options):
    """As do the weights of nodes that are kept in float32; the report counts them."""
    before = f"g (float[16,16] x) => (float[16,16] y) <float[16,16] w> {{ [n] y = {operator} (x, w) }}"
    result = text.rewritten(text.model(before, {"w": weight.astype(np.float32)}), options)
    assert result.model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT
    assert (result.report.stored_half, result.report.stored_full) == (0, 1)


def test_float32_again():
    """`restore` undoes the Casts, and leaves the rounding."""
    result = rewrite(text.model(LAYER), ONLY)
    assert measure_coverage(result.model).nodes.half == 0
    assert (result.report.nodes.half, result.report.stored_half, result.report.stored_full) == (0, 1, 0)
    assert rewrite(text.model(LAYER)).report.stored_full is None
    restored = restore(result.model).model
    assert [node.op_type for node in restored.graph.node] == ["MatMul", "Add"]
    weight = numpy_helper.to_array(restored.graph.initializer[0])
    assert weight.dtype == np.float32
    assert np.array_equal(weight, weight.astype(np.float16).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", [each["name"] for each in real_models.INDEX if each["runs"]])
def test_a_real_model_differs_by_the_rounding_of_weights(name):
    """With its weights rounded in place, the original computes the same as the result."""
    runtime = pytest.importorskip("onnxruntime")
    original = onnx.load(real_models.path(name))
    result = rewrite(original, ONLY)
    halves = {t.name for t in _tensors(result.model) if t.data_type == onnx.TensorProto.FLOAT16}
    saved = 0
    for tensor in _tensors(original):
        if tensor.name in halves and tensor.data_type == onnx.TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            saved += array.nbytes // 2
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16).astype(np.float32), tensor.name))
    expected, got = (
        runtime.InferenceSession(each.SerializeToString()).run(None, real_models.feeds(name))
        for each in (original, result.model)
    )
    for one, other in zip(expected, got, strict=True):
        if isinstance(one, np.ndarray) and one.dtype.kind == "f" and one.size:
            finite = np.isfinite(one)
            assert np.array_equal(one[~finite], other[~finite], equal_nan=True)
            error = np.abs(one[finite] - other[finite]).max(initial=0)
            assert error <= 1e-5 * np.abs(one[finite]).max(initial=0)
    if saved > 0.48 * original.ByteSize():
        assert result.model.ByteSize() < 0.55 * original.ByteSize()


def _tensors(model):
    """The stored tensors of a model, those of Constant nodes under the names of their outputs."""
    for graph in text.graphs(model.graph):
        yield from graph.initializer
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                node.attribute[0].t.name = node.output[0]
                yield node.attribute[0].t


# ---- what an earlier rewrite saw in runs holds in a second one, which may not run the model

GRAPH = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) <float[4, 4] w, float[4, 4] v> {
    [large] a = MatMul (x, w)  [small] b = MatMul (a, v)  [last] y = Tanh (b)
    [other] z = MatMul (x, v) }"""
WEIGHTS = {"w": np.full((4, 4), 300, np.float32), "v": np.eye(4, dtype=np.float32) / 100000}
SAMPLES = [{"x": np.full((2, 4), 100, np.float32)}]


@pytest.fixture(scope="module")
def proto():
    """A product whose values leave the range of float16, and no stored number that would say so."""
    return text.model(GRAPH, WEIGHTS)


@pytest.fixture(scope="module")
def once(proto):
    """Its result after a run that showed it."""
    return rewrite(proto, observed=observe(proto, SAMPLES)).model


def kept(model, options=None):
    """The nodes that an analysis keeps in float32."""
    return {d.node for d in analyze(model, options).decisions().all if not d.is_half and d.node}


def test_what_was_seen_is_kept(proto, once):
    """The second rewrite changes nothing, and says for what."""
    assert "large" not in kept(proto)
    assert "large" in kept(once)
    again = rewrite(once)
    assert again.model.SerializeToString() == once.SerializeToString()
    assert (again.report.earlier > 0, again.report.observed) == (True, 0)


def test_what_a_search_found_is_kept():
    """So are the nodes whose rounding moves the outputs too far."""
    found = tune(network(), feeds(), max_error=2e-4, prefer="flops")
    assert found.kept
    once = rewrite(network(), replay=found.plan)
    again = rewrite(once.model)
    assert again.report.earlier == once.report.sensitive > 0
    assert again.model.SerializeToString() == once.model.SerializeToString()


def test_the_user_decides_all_the_same(once):
    """A pin outranks what was seen, in the second rewrite as in the first."""
    assert "large" not in kept(once, Options(pins=Pins(force_half="large")))


def test_without_metadata_nothing_is_known(proto):
    """A result that carries no decisions is a model like any other."""
    bare = rewrite(proto, Options(metadata=False), observed=observe(proto, SAMPLES)).model
    assert "large" not in kept(bare)


@pytest.mark.parametrize("damage", ["{", "eJwDAAAAAAE="])
def test_damaged_decisions_hold_nothing(once, damage):
    """They are warned of, and the rewrite goes on without."""
    broken = type(once).FromString(once.SerializeToString())
    next(entry for entry in broken.metadata_props if entry.key == KEY).value = damage
    again = rewrite(broken)
    assert again.report.earlier == 0
    assert any("damaged" in warning for warning in again.report.warnings)


def test_the_command_says_so(once, tmp_path):
    """A line counts the units, and the next command reads their reasons in the model itself."""
    path = tmp_path / "once.onnx"
    path.write_bytes(once.SerializeToString())
    told = CliRunner().invoke(main, [str(path), "--skip=verify", "-v"])
    assert told.exit_code == 0
    assert "for what an earlier rewrite of this model saw in runs" in told.output
    assert f"amp-rewrite explain {path}" in told.output
    assert "--save plan" not in told.output
    CliRunner().invoke(
        main, [str(path), "--skip=verify", "--dry-run", "--json", str(tmp_path / "report.json")]
    )
    assert json.loads((tmp_path / "report.json").read_text())["earlier"] > 0
