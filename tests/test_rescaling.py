"""Exact powers of two: values that leave float16 are stored as v * 2^-e, and float32 keeps its bits.
rescaling.models has small models with the operators that have rules, and some that have none, and
rescaling.transcript what the command does.
"""

import math
import random
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_rewrite
from amp_rewrite import Options, analyze, certify, observe, restore, rewrite, verify
from amp_rewrite.analysis.facts import gather
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.coverage import counts
from amp_rewrite.model import loading
from amp_rewrite.preparing import preparing
from amp_rewrite.rescaling import region_search
from amp_rewrite.rewriting import annotations, result_checks
from amp_rewrite.rewriting.restore import unscale
from tests import case_files, real_models
from tests.text import model

ort = pytest.importorskip("onnxruntime")

CASES = list(case_files.read(Path(__file__).with_suffix(".models").with_stem("rescaling")))
MODELS = {case.name: case.model for case in CASES}


def feeds(proto, seed=0):
    """Normal inputs, indices and truths for a model."""
    generator = np.random.default_rng(seed)
    made = {}
    for each in proto.graph.input:
        shape = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
        made[each.name] = np.asarray(
            generator.standard_normal(shape) if kind == np.float32 else np.ones(shape), kind
        )
    return made


def bits(proto, inputs):
    """The outputs of a model in onnxruntime, unoptimised and optimised."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    levels = ort.GraphOptimizationLevel
    for options.graph_optimization_level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        yield [np.asarray(output).tobytes() for output in session.run(None, inputs)]


def scaled(proto, most, inputs=None, *, is_undone=False):
    """The model before and after values got these magnitudes (with the same bits), and what was done."""
    before, after = (preparing.prepare(loading.load(proto).model, Options().form, {}) for _ in range(2))
    facts, graph = gather(after, Options(), {}, {}), after.model.graph
    values = {value.name: value for value in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    wanted = {values[name]: size for name, size in most.items()}
    applied = region_search.meet(after, facts, region_search.Demand(wanted, wanted))
    if is_undone:
        unscale(after.model, applied.rescaled)
    onnx.checker.check_model(ir.to_proto(after.model), full_check=True)
    inputs = inputs or feeds(proto)
    assert list(bits(ir.to_proto(after.model), inputs)) == list(bits(ir.to_proto(before.model), inputs)), most
    return ir.to_proto(before.model), ir.to_proto(after.model), applied


@pytest.mark.parametrize("case", [case for case in CASES if case.claims], ids=lambda case: case.name)
def test_what_changes_with_a_value(case):
    """The exponents around a value of twice half's range; undone where that is claimed, it is as before."""
    proto = model(case.model)
    _drop_unread(proto)
    (verb, value), *exponents = (claim.split() for claim in case.claims)
    before, after, applied = scaled(proto, {value: 65504.0 * 2}, is_undone=verb == "undo")
    done = applied.rescaled
    assert done.values
    if verb == "undo":
        assert parts_of(after)[:2] == parts_of(before)[:2]
        return
    *expected, (_, *edits) = exponents
    found = {each.value: each.exponent for each in done.values if each.reader is None}
    assert [[name, str(found.get(name, 0))] for name, _ in expected] == expected
    assert [done.weights, done.epsilons, done.muls] == [int(each) for each in edits]


def _drop_unread(proto):
    """Leaves out the statistics of a fused norm, as onnxruntime's optimiser does."""
    for node in proto.graph.node:
        if node.domain:
            node.output[1:3] = ["", ""]


@pytest.mark.parametrize("name", MODELS)
def test_random_demands_keep_the_bits(name):
    """Any values at any magnitude."""
    proto = model(MODELS[name])
    _drop_unread(proto)
    for seed in range(6):
        dice = random.Random(seed)
        names = [each for node in proto.graph.node for each in node.output if each not in ("", "q", "k")]
        most = {each: 65504 * 2.0 ** dice.randint(0, 8) for each in dice.sample(names, min(3, len(names)))}
        try:
            scaled(proto, most)
        except KeyError:  # a value that the preparation folds
            continue


def test_subnormal_weights_are_left_alone():
    """Their bits would be lost."""
    weights = {"w1": np.full((8, 8), 1e-40, np.float32), "w2": np.full((8, 8), 1e-40, np.float32)}
    _, _, applied = scaled(model(MODELS["residual"], weights), {"s": 65504.0 * 2})
    assert applied is None or applied.rescaled.weights == 0


def test_large_shared_weights_are_not_copied():
    """Both uses of a table above 2^16 elements have one exponent."""
    text = MODELS["tied"].replace("[8,8]", "[8,16384]").replace("[8]", "[16384]")
    before, after, applied = scaled(model(text), {"a": 65504.0 * 2})
    assert len(after.graph.initializer) <= len(before.graph.initializer) + 1
    assert applied.rescaled.muls <= 1


# ---- the pipeline

LARGE = {"w1": np.eye(8, dtype=np.float32) * 3e4, "w2": np.eye(8, dtype=np.float32)}


@pytest.fixture(scope="module")
def overflowing():
    """A model whose sum leaves float16, its inputs, and what was observed."""
    proto = model(MODELS["residual"], LARGE)
    inputs = feeds(proto)
    return proto, inputs, observe(proto, inputs)


def test_a_rescaled_result_that_is_not_proved_is_made_without(overflowing, monkeypatch):
    """With a warning; no result is lost."""
    proto, _, seen = overflowing

    def without_powers(original, result, **_):
        metadata = tensors.read_model(result)[0].metadata_props
        is_rescaled = annotations.is_rescaled({each.key: each.value for each in metadata})
        return Certificate(original is result or not is_rescaled, 0, problem="they differ")

    monkeypatch.setattr(result_checks, "certify", without_powers)
    result = rewrite(proto, observed=seen)
    assert result.report.rescaled is None
    assert "nothing is stored times powers of two: the result is not proved equal: they differ" in str(
        result.report.warnings[0]
    )


def test_what_is_restored_before_a_mask_is_float32():
    """Products are half; the Mul that restores them, the mask and the softmax stay float32; proved."""
    text = """g (float[1,1024,256] x) => (float[1,1024,256] y)
        <float[256,256] wq, float[256,256] wk, float[1024,1024] mask> {
      q = MatMul (x, wq) k = MatMul (x, wk) t = Transpose <perm = [0, 2, 1]> (k) l = MatMul (q, t)
      m = Add (l, mask) p = Softmax (m) y = MatMul (p, x) }"""
    generator = np.random.default_rng(0)
    weights = {name: generator.standard_normal((256, 256)).astype(np.float32) * 4 for name in ("wq", "wk")}
    proto = model(text, {**weights, "mask": np.triu(np.full((1024, 1024), -3e38, np.float32), 1)})
    seen = observe(proto, feeds(proto))
    analysis = analyze(proto, observed=seen)
    units = analysis.graph.units
    full = {each.node.op_type for each in units if not analysis.painting.is_half(each.index)}
    assert full == {"Mul", "Add", "Softmax"}
    assert rewrite(proto, observed=seen).report.certificate.proved


def test_metadata_hold_exponents(overflowing):
    """Of all rewrites of a model, as its original is needed for the way back."""
    proto, _, seen = overflowing
    result = rewrite(proto, observed=seen)
    stored = stored_exponents(result.model)
    assert set(stored.values) == set(result.report.rescaled.values)
    assert stored_exponents(rewrite(result.model).model) == stored
    assert stored_exponents(rewrite(result.model, Options(half="bfloat16")).model) == stored
    damaged = onnx.ModelProto.FromString(result.model.SerializeToString())
    next(each for each in damaged.metadata_props if each.key == annotations.KEY).value = "?"
    with pytest.raises(amp_rewrite.errors.ModelError, match="damaged"):
        stored_exponents(damaged)
    (warning,) = restore(damaged).warnings
    assert "values may stay stored times powers of two" in warning


def stored_exponents(proto):
    """What a model stores times powers of two, by its metadata."""
    return annotations.rescaled({each.key: each.value for each in proto.metadata_props})


def parts_of(proto):
    """The operators, epsilons but for default ones, and stored numbers of a model."""
    operators = sorted(node.op_type for node in proto.graph.node)
    attributes = (each for node in proto.graph.node for each in node.attribute)
    epsilons = [each.f for each in attributes if each.name == "epsilon" and each.f != np.float32(1e-5)]
    tensors = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    return operators, epsilons, tensors


@pytest.mark.parametrize(
    ("name", "largest"),
    [("residual", "s"), ("written out", "s"), ("gated", "h"), ("images", "p"), ("tied", "a")],
)
@pytest.mark.parametrize("io", ["keep", "half"])
def test_restore_undoes_exponents(name, largest, io):
    """Nodes and epsilons are those of the original, and stored numbers those that half rounded; proved."""
    proto = model(MODELS[name])
    seen = {largest: Extremes(-1e6, 1e6)}
    result = rewrite(proto, Options(io=io, fold=False), observed=seen)
    assert result.report.rescaled is not None
    restored = restore(result.model, io="float")
    keys = {each.key for each in restored.model.metadata_props}
    assert (restored.warnings, annotations.KEY in keys) == ((), False)
    (nodes, epsilons, tensors), (before, old_epsilons, old) = parts_of(restored.model), parts_of(proto)
    assert (nodes, epsilons) == (before, old_epsilons)
    for each in tensors.keys() & old.keys():
        np.testing.assert_allclose(tensors[each], old[each], rtol=2**-11, atol=2**-25)
    assert certify(proto, restored.model).proved
    assert rewrite(restored.model).report.rescaled is None


def test_restore_of_another_graph_keeps_exponents(overflowing):
    """Where another tool has renamed what the metadata name, nothing is undone, and a warning says so."""
    proto, inputs, seen = overflowing
    result = rewrite(proto, observed=seen).model
    for node in result.graph.node:
        names = [*node.input], [*node.output]
        for ports, old in zip((node.input, node.output), names, strict=True):
            ports[:] = [f"other_{each}" if each in ("a", "s") else each for each in old]
    restored = restore(result)
    assert restored.unscaled == 0
    assert "times powers of two" in restored.warnings[-1]
    assert verify(proto, restored.model, inputs).ok


@pytest.mark.parametrize("change", [np.round, np.sign, np.zeros_like])
def test_coarse_weights_are_not_restored_ones(change):
    """What keeps few digits of most numbers is no rounding to half, at whatever power of two."""
    weights = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32) * 0.15
    weights[0, 0] = 1500
    text = "g (float[4,128] x) => (float[4,128] y) <float[128,128] w> { y = MatMul (x, w) }"
    assert not certify(model(text, {"w": weights}), model(text, {"w": change(weights)})).proved


# ---- the shared models

OVERFLOW = """attention_logits cnn_bn_large gemma3 glu_product rms_mean t5_v11_encoder vae_decoder
    whisper_encoder""".split()
FOLDER = real_models.MODELS / "overflow"


@pytest.mark.slow
def test_models_that_overflow():
    """In the median 99 % of the FLOPs in half, within 4 times today's error; proved, always the same bytes,
    and the same bits in float32.
    """
    if not FOLDER.is_dir():
        pytest.skip(real_models.MISSING)
    shares = []
    for name in OVERFLOW:
        proto = onnx.load(FOLDER / name / "model.onnx")
        inputs = dict(np.load(FOLDER / name / "inputs.npz"))
        seen = observe(proto, inputs)
        today, result, again = (
            rewrite(proto, Options(rescale=on), observed=seen) for on in (False, True, True)
        )
        assert again.model.SerializeToString() == result.model.SerializeToString()
        assert result.report.certificate.proved
        was, now = (verify(proto, each.model, inputs).error for each in (today, result))
        assert now <= 4 * was, name
        assert now <= max(1e-2, was), name
        assert result.report.prediction.result.seconds <= today.report.prediction.result.seconds
        flops = counts.measure(result.model, {}).flops
        shares.append((flops.half + flops.mixed) / (flops.half + flops.mixed + flops.full))
        most = {each: e.most for each, e in seen.items() if e.most > 65504 / 2 and math.isfinite(e.most)}
        made = {each for node in proto.graph.node for each in node.output}
        try:
            scaled(proto, {each: size for each, size in most.items() if each in made}, inputs)
        except KeyError:
            continue
    assert np.median(shares) >= 0.99
