"""Faults put into real results: the certificate finds each that changes what is computed."""

import functools
from random import Random

import numpy as np
import onnx
import onnx.printer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_rewrite import Options, certify, emulate, rewrite
from amp_rewrite.errors import ModelError
from tests import real_models
from tests.certificate_mutants import KINDS, mutant
from tests.random_models import feeds, models
from tests.test_laws import LAW

HELD = """
    bigru_tagger.legacy dynamo_cond_scan.dynamo mnist_cntk onnx_affine_grid_2d_expanded
    onnx_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal_expanded
    onnx_group_normalization_epsilon_expanded onnx_loop11 onnx_loop13_seq
    onnx_rotary_embedding_with_rotary_dim_expanded onnxscript_nested_functions oww_melspectrogram
    scripted_greedy_decoder.legacy skl_mlp skl_svc_zipmap trt_attention_head_op22 trt_loop
    trt_needs_constraints trt_qdq_conv trt_scan winml_iris_mlp yunet_120x160
""".split()
"""Models of all sorts, with and without bodies, small enough to be followed thousands of times."""

LOOPS = "onnx_loop11 onnx_loop13_seq trt_loop trt_scan"
HELD_FOR = {
    "branches": "dynamo_cond_scan.dynamo onnx_affine_grid_2d_expanded onnx_if onnx_if_opt".split(),
    "body_result": f"{LOOPS} onnx_affine_grid_2d_expanded".split(),
    "carried": f"{LOOPS} dynamo_cond_scan.dynamo scripted_greedy_decoder.legacy".split(),
    "outputs": """bigru_tagger.legacy onnx_affine_grid_2d_expanded
        onnx_rotary_embedding_with_rotary_dim_expanded""".split(),
}
"""For kinds that few models have a place for."""
OPTIONS = Options(check=False, metadata=False)


@functools.cache
def results(name):
    """A model, and its result in half as bytes."""
    original = onnx.load(real_models.path(name))
    return original, rewrite(original, OPTIONS).model


def survivors(kind, count):
    """The mutants of a kind that were proved, of so many: models, and what was changed."""
    chance, names = Random(7), HELD_FOR.get(kind.__name__, HELD)
    found, made = [], 0
    for _ in range(20 * count):
        name = chance.choice(names)
        original, result = results(name)
        model = mutant(kind, result, chance)
        if model is None:
            continue
        made += 1
        if is_proved(original, model):
            found.append((name, changed(result, model)))
        if made == count:
            break
    assert made == count, f"only {made} mutants were made"
    return found


def is_proved(original, model):
    """Whether a mutant is proved; one that is no model any more is not."""
    try:
        return certify(original, model).proved
    except ModelError:
        return False


def changed(result, model):
    """The lines that a mutant changed."""
    before, after = (onnx.printer.to_text(each).splitlines() for each in (result, model))
    return [line for line in after if line not in before] or [line for line in before if line not in after]


@pytest.mark.parametrize("count", [4, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_some_of_each_kind_are_found(kind, count):
    """No mutant that changes what is computed is proved."""
    assert survivors(kind, count) == []


def test_what_is_proved_of_random_models_computes_the_same(runtime):
    """A mutant of a random result is not proved, or gives what the result gives."""

    @LAW
    @given(models(), st.integers(0, 1000))
    def law(original, seed):
        result, chance = rewrite(original, OPTIONS).model, Random(seed)
        for kind in KINDS:
            model = mutant(kind, result, chance)
            if model is not None and is_proved(original, model):
                assert same(result, model), (kind.__name__, changed(result, model))

    def same(result, model):
        before, after = (runtime.run(emulate(each).SerializeToString(), feeds()) for each in (result, model))
        return bool(after.failure) or all(
            np.allclose(after.values[name], value, 1e-3, 1e-3, equal_nan=True)
            for name, value in before.values.items()
        )

    law()
