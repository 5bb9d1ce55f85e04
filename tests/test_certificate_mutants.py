"""Faults put into real results: the certificate finds each that changes what is computed."""

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.errors import ModelError
from tests.certificate_mutants import KINDS, mutant, rewired

MODELS = Path(__file__).parents[2] / "shared" / "models"
HELD = """
    bigru_tagger.legacy dynamo_cond_scan.dynamo mnist_cntk onnx_affine_grid_2d_expanded
    onnx_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal_expanded
    onnx_group_normalization_epsilon_expanded onnx_loop11 onnx_loop13_seq
    onnx_rotary_embedding_with_rotary_dim_expanded onnxscript_nested_functions oww_melspectrogram
    scripted_greedy_decoder.legacy skl_mlp skl_svc_zipmap trt_attention_head_op22 trt_loop
    trt_needs_constraints trt_qdq_conv trt_scan winml_iris_mlp yunet_120x160
""".split()
"""Models of all sorts, with and without bodies, small enough to be followed thousands of times."""

HELD_FOR = {
    "negated": "dynamo_cond_scan.dynamo onnx_affine_grid_2d_expanded onnx_if onnx_if_opt".split(),
    "body_result": "onnx_loop11 onnx_loop13_seq trt_loop trt_scan onnx_affine_grid_2d_expanded".split(),
    "body_inputs": "onnx_loop11 onnx_loop13_seq trt_loop trt_scan dynamo_cond_scan.dynamo".split(),
    "branches": "dynamo_cond_scan.dynamo onnx_affine_grid_2d_expanded onnx_if onnx_if_opt".split(),
    "carried": "onnx_loop11 onnx_loop13_seq trt_loop trt_scan scripted_greedy_decoder.legacy".split(),
    "port": [
        "bigru_tagger.legacy",
        "onnx_affine_grid_2d_expanded",
        "onnx_rotary_embedding_with_rotary_dim_expanded",
    ],
}
"""For kinds that few models have a place for."""

pytestmark = pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")


@functools.cache
def results(name):
    """A model, and its result in half as bytes."""
    (path,) = (MODELS / name).glob("*.onnx")
    data = path.read_bytes()
    return onnx.ModelProto.FromString(data), rewrite(data, Options(check=False, metadata=False)).model


def survivors(kind, count):
    """The mutants of a kind that were proved, of so many."""
    random = np.random.default_rng(7)
    names = HELD_FOR.get(kind.__name__, HELD)
    found, made = [], 0
    for _ in range(20 * count):
        name = names[random.integers(len(names))]
        original, result = results(name)
        model = onnx.ModelProto.FromString(result)
        what = mutant(kind, model, random)
        if what is None:
            continue
        made += 1
        if is_proved(original, model) and not is_the_same(kind, result, model):
            found.append((name, what))
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


def is_the_same(kind, result, model):
    """Whether a survivor computes what the result does: it reads another stored value that is equal.

    Graphs store equal numbers under several names, and rewiring a node from one to the other changes nothing.
    """
    return kind is rewired and certify(result, model).proved and same_stored(result, model)


def same_stored(result, model):
    """Whether a node that reads something else than before reads stored values of equal content."""
    before, after = onnx.ModelProto.FromString(result), model
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in before.graph.initializer}
    for node in before.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            held[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    pairs = [
        (one, other)
        for x, y in zip(before.graph.node, after.graph.node, strict=True)
        for one, other in zip(x.input, y.input, strict=True)
        if one != other
    ]
    return all(a in held and b in held and np.array_equal(held[a], held[b]) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_few_of_each_kind_are_found(kind):
    """No mutant that changes what is computed is proved."""
    assert survivors(kind, 2) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_two_hundred_of_each_kind_are_found(kind):
    """No mutant that changes what is computed is proved."""
    assert survivors(kind, 200) == []
