"""`--io half`: an input or output that half cannot hold is named, with what keeps it in float32."""

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Options
from tests import text

pytest.importorskip("onnxruntime")

CENTRED = """g (float[4,64] pressure, float[4,64] other) => (float[4,64] y) <float[64,64] w, float mean> {
    a = Sub (pressure, mean) b = MatMul (a, w) c = MatMul (other, w) y = Add (b, c) }"""
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(0, 0.1, (64, 64)).astype("f")


def numbers(low, high):
    """A sample of uniform numbers."""
    return RANDOM.uniform(low, high, (4, 64)).astype("f")


def centred(mean):
    """A model that takes a number from one of two inputs."""
    return text.model(CENTRED, {"w": WEIGHT, "mean": np.float32(mean)})


COARSE = {"pressure": numbers(999, 1001), "other": numbers(-1, 1)}
BEYOND = {"pressure": numbers(99e3, 101e3), "other": numbers(-1, 1)}


@pytest.mark.parametrize(
    ("model", "sample", "said"),
    [
        (centred(1000), COARSE, [("pressure", True, None)]),
        (centred(1e5), BEYOND, [("pressure", True, float(BEYOND["pressure"].max()))]),
        (centred(0), {name: numbers(-1, 1) for name in COARSE}, []),
    ],
)
def test_an_input_that_half_cannot_hold(model, sample, said):
    """It is named alone, with its largest magnitude where half ends before that."""
    half = amp_rewrite.rewrite(model, Options(io="half")).model
    verdict = amp_rewrite.verify(model, half, sample, io="half", device="cpu")
    assert [(port.name, port.is_input, port.largest) for port in verdict.misfits] == said
    assert verdict.ok is not bool(said)
    kept = Options(io="half", keep_io=tuple(name for name, *_ in said))
    if said:
        mended = amp_rewrite.verify(model, amp_rewrite.rewrite(model, kept).model, sample, io="half")
        assert mended.ok


def test_it_may_be_in_any_sample():
    """The first sample that is too far off shows it."""
    model = centred(1000)
    half = amp_rewrite.rewrite(model, Options(io="half", keep_io="y")).model
    fits = {**COARSE, "pressure": np.round(COARSE["pressure"])}
    (port,) = amp_rewrite.verify(model, half, [fits, COARSE], io="half", device="cpu").misfits
    assert (port.name, port.limit) == ("pressure", 65504)


def test_several_inputs_are_found_together():
    """Each that is too far alone; none without half in either model."""
    model = centred(1000)
    both = {name: numbers(999, 1001) for name in COARSE}
    half = amp_rewrite.rewrite(model, Options(io="half")).model
    verdict = amp_rewrite.verify(model, half, both, amp_rewrite.Tolerances(error=3e-6), io="half")
    assert {port.name for port in verdict.misfits} >= {"pressure", "other"}
    same = amp_rewrite.verify(model, model, both, amp_rewrite.Tolerances(max_abs=0), device="cpu")
    assert same.misfits == ()
