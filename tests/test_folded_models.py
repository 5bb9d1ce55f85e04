"""Real models after folding, in float32: the bits of what was computed beforehand, and float32's rounding."""

import numpy as np
import onnx
import pytest

from amp_rewrite.model import inlining, loading, serialization
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.preparing import batch_norm_folding, constant_folding
from tests import real_models
from tests.real_models import INDEX, MODELS

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow


def outputs(model, given, level):
    """What onnxruntime computes, with its optimisation at a level."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


def changed(entry, fold):
    """A model before and after a step, serialised; skips what the step leaves as it is."""
    source = MODELS / entry["file"]
    loaded = loading.load(source)
    inlining.inline(loaded.model)
    if not fold(loaded.model):
        pytest.skip("nothing to fold")
    made = serialization.to_proto(loaded).SerializeToString()
    onnx.checker.check_model(made, full_check=True)
    return source.read_bytes(), made


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: entry["name"])
def test_computed_beforehand(entry):
    """Nodes that run as they are give the same bits as before, from values that were stored."""
    before, after = changed(entry, lambda model: constant_folding.fold_constants(model, ()))
    given = real_models.feeds(entry["name"])
    pairs = zip(*(outputs(m, given, "ORT_DISABLE_ALL") for m in (before, after)), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: entry["name"])
def test_merged(entry):
    """Folded weights differ from those that the runtime folds itself by float32's rounding.

    At ORT_ENABLE_BASIC, where it folds them: further levels choose kernels by the processor, whose order of
    additions alone makes 1.1e-6 of a difference in ppocr_cls_v2 on some.
    """
    before, after = changed(entry, lambda model: batch_norm_folding.fold(model, FLOAT16, ()))
    given = real_models.feeds(entry["name"])
    for a, b in zip(*(outputs(m, given, "ORT_ENABLE_BASIC") for m in (before, after)), strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(a)
