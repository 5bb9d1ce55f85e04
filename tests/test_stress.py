"""Copies of synthetic inputs, large, small, or far from 0: a warning where the result fails on one."""

import numpy as np
import onnx
import pytest

from amp_rewrite import rewrite
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite import verify

SIZE = 256


def layers(*weights):
    """A model of matrix products, one after the other."""
    arrays = {f"w{index}": array.astype(np.float32) for index, array in enumerate(weights)}
    stored = ", ".join(f"float[{','.join(map(str, array.shape))}] {name}" for name, array in arrays.items())
    names = ["x", *"abc"[: len(weights) - 1], "y"]
    body = " ".join(f"{names[at + 1]} = MatMul ({names[at]}, w{at})" for at in range(len(weights)))
    return text.model(f"g (float[{SIZE},{SIZE}] x) => (float[{SIZE},n] y) <{stored}> {{ {body} }}", arrays)


def normal(size):
    """Weights of this size."""
    return size * np.random.default_rng(0).standard_normal((SIZE, SIZE))


LOUD = layers(normal(20), normal(0.001))
SAFE = layers(normal(0.05))


def test_what_half_computes_well_is_no_warning():
    """The changed copies pass as well, but for an offset that half inputs cannot hold: it only insures."""
    verdict = verify(SAFE, rewrite(SAFE).model)
    assert (verdict.ok, [failed for failed in verdict.stressed if failed.warns]) == (True, [])


@pytest.mark.parametrize("name", ["pixel_values", "latents", "attention_mask"])
def test_what_is_normalised_or_a_mask_stays_as_it_is(name):
    """Its name tells how large it is."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(LOUD)
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = name
    assert verify(renamed, rewrite(renamed).model).stressed == ()
