"""A fair verdict: errors at the scale of an output over all samples, the floor, and float32's noise."""

import itertools
import json
import math

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.running.tolerances import Tolerances, parse_tolerances
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite.reporting import verdict_text
from amp_rewrite.running import bound_text, judging, verification
from amp_rewrite.running.sessions import Device

SMALLEST = 2.0**-14


def shifted(shift):
    """A model that adds a constant to its input."""
    return text.model(f"g (float[n] x) => (float[n] y) <float[1] c = {{{shift}}}> {{ y = Add (x, c) }}")


def judged(samples, shift, bounds=None):
    """The verdict on a model that is off by `shift`, for samples of one number each."""
    given = [{"x": np.float32([number])} for number in samples]
    return verification.verify(shifted(0), shifted(shift), given, bounds, device=Device.CPU)


@pytest.mark.parametrize(
    ("samples", "shift", "error", "relative_l2"),
    [
        ([1.0, 0.01], 1e-3, 1e-3, 0.1),  # faint beside loud
        ([1.0, 0.0], 1e-3, 1e-3, 1e-3),  # blank beside loud: no relative error
        ([0.01], 1e-3, 0.1, 0.1),  # faint alone
        ([0.0], 1e-7, 1e-7 / SMALLEST, 1e-7),  # blank, and off by less than half resolves
        ([0.0], 1e-6, 1e-6 / SMALLEST, 1e-6),  # blank, and off by more
        ([1e-9, -1e-9], 1e-8, 1e-8 / SMALLEST, 10.0),
        ([4e4, 2.0], 0.5, 0.5 / 4e4, 0.25),
        ([1.0, math.nan, 0.01], 1e-3, 1e-3, 0.1),  # what is finite nowhere has no scale
    ],
)
def test_the_scale_is_that_of_all_samples(samples, shift, error, relative_l2):
    """The difference is held against the largest RMS of the output, at least 2^-14; order does not matter."""
    for order in itertools.permutations(samples):
        (output,) = judged(order, shift).outputs
        assert output.error == pytest.approx(error, rel=1e-3)
        assert output.metrics.relative_l2 == pytest.approx(relative_l2, rel=1e-3)
        assert bool(output.broken) == (error > 1e-2)
        assert len(output.by_sample) == len(samples)


@pytest.mark.parametrize(
    ("sample", "shift", "said"),
    [(1e-6, 1e-7, True), (1e-6, 1e-9, False), (1e-2, 1e-5, False), (1e-6, 1e-5, False), (0.0, 1e-8, False)],
)
def test_an_output_that_passes_for_being_faint_is_named(sample, shift, said):
    """One that is off by a tenth of itself is no success without a word; a bound that judges it is named."""
    found = [note for note in verdict_text.notes(judged([sample], shift)) if "passes because" in note]
    assert bool(found) == said
    if said:
        assert "--tolerance relative_l2=0.01" in found[0]
        bounds = parse_tolerances(("relative_l2=0.01",))
        assert not judged([sample], shift, bounds).ok


@pytest.mark.parametrize(
    ("value", "bound", "said"),
    [
        (0.0214, 0.01, "error 0.0214 is above 0.01"),
        (0.010004, 0.01, "error 0.010004 is above 0.01"),
        (math.nextafter(0.01, 1), 0.01, "error 0.010000000000000002 is above 0.01"),
        (math.inf, 0.01, "error inf is above 0.01"),
        (math.nan, math.nan, "error nan is above nan"),
    ],
)
def test_a_violated_bound_is_told_from_what_violates_it(value, bound, said):
    """With as many digits as that takes."""
    assert bound_text.above("error", value, bound) == said


def test_the_relative_l2_of_each_sample_is_shown():
    """In order, in JSON and in words; a single sample's is in the table."""
    verdict = judged([1.0, 0.01, 0.1], 1e-3)
    assert verdict.ok
    (note,) = verdict_text.notes(verdict)
    assert note == "relative L2 of each sample, worst output: 1.0e-03, 1.0e-01, 1.0e-02"
    (output,) = json.loads(json.dumps(verdict.to_json()))["outputs"]
    assert output["by_sample"] == pytest.approx([1e-3, 0.1, 1e-2], rel=1e-3)
    assert output["error"] == pytest.approx(1e-3, rel=1e-3)
    assert list(verdict_text.notes(judged([1.0], 1e-3))) == []
    (long,) = verdict_text.notes(judged([1.0] * 30, 1e-3))
    assert long.endswith(", and 20 more, at most 1.0e-03")


@pytest.mark.parametrize(
    ("bounds", "passes"),
    [
        ((), False),
        (("error=0.2",), True),
        (("relative_l2=0.2",), True),  # replaces the default of `error`
        (("relative_l2=0.2", "error=0.01"), False),
        (("relative_l2=0.05", "error=0.2"), False),
        (("relative_l2=none",), True),
        (("atol=1",), True),
        (("atol=0.01",), False),
        (("atol=none",), False),
    ],
)
def test_bounds_of_both_kinds(bounds, passes):
    """A faint output that is off by a tenth: `error`, `relative_l2` as before, and a scale for `error`."""
    assert judged([0.01], 1e-3, parse_tolerances(bounds)).ok == passes


def test_bounds_from_python():
    """The same rule in the constructor, and what is not a number is refused."""
    assert (Tolerances().error, Tolerances().relative_l2) == (0.01, None)
    assert Tolerances(relative_l2=0.02).error is None
    assert Tolerances(relative_l2=0.02, error=0.01).error == 0.01
    with pytest.raises(amp_rewrite.errors.OptionError, match=r"Tolerances.atol: inf is not from 0 to"):
        Tolerances(atol=math.inf)
    with pytest.raises(amp_rewrite.errors.OptionError, match="no tolerance is left"):
        parse_tolerances(("error=none", "agreement=none", "non_finite=none", "atol=1"))


# ---- the floor, and float32's own noise

PRODUCT = """g (float[2,2] x, float[2,2] z) => (float[2,2] y, int64[2] k) {
    y = MatMul (x, z) k = ArgMax <axis = 1, keepdims = 0> (y) }"""


def product(scale, half="float16"):
    """The verdict on a product of numbers up to `scale`, rewritten to half."""
    feeds = {"x": np.float32([[0.3, 0.7], [0.11, 0.9]]), "z": np.float32([[0.7, 0.9], [1, 0.1]]) * scale}
    before = text.model(PRODUCT)
    options = amp_rewrite.Options(half=half)
    return verification.verify(before, amp_rewrite.rewrite(before, options).model, feeds, device=Device.CPU)


@pytest.mark.parametrize(
    ("scale", "low", "high"),
    [(1, 1e-5, 2**-11), (1e-6, 1e-3, 0.1), (1e-9, 0.9, 1.1), (1e5, math.inf, math.inf), (0, 0, 0)],
)
def test_the_floor_is_what_rounding_the_output_costs(scale, low, high):
    """Small at half's normal numbers, large below them, infinite beyond; integers have none."""
    y, k = product(scale).outputs
    assert low <= y.floor <= high
    assert (k.floor, k.error, k.noise) == (None, None, None)


def test_the_floor_is_that_of_the_half_type():
    """bfloat16 holds 1e-9 as well as 1, and float32 has no floor."""
    assert product(1e-9, BFLOAT16).outputs[0].floor < 2**-8
    assert judged([1.0], 0).outputs[0].floor is None


def test_float32_is_compared_with_itself(monkeypatch):
    """Where models run quickly, or the verdict is bad; what cannot be had is left out."""
    assert judged([1.0], 0).outputs[0].noise == 0
    monkeypatch.setattr(judging, "QUICK", 0)
    assert judged([1.0], 0).outputs[0].noise is None
    assert judged([1.0], 1.0).outputs[0].noise == 0
    refuse = amp_rewrite.errors.ModelError("refused")
    monkeypatch.setattr("amp_rewrite.running.sessions.open_unoptimised_session", lambda *_: _raise(refuse))
    bad = judged([1.0], 1.0)
    assert (bad.ok, bad.outputs[0].noise) == (False, None)


def _raise(error):
    raise error


def test_noise_is_what_optimisation_changes():
    """A Conv that is fused with what follows rounds elsewhere: by some units in the last place."""
    rng = np.random.default_rng(0)
    weights = ",".join(map(str, rng.standard_normal(3 * 3 * 9)))
    body = f"""g (float[1,3,16,16] x) => (float[1,3,14,14] y)
        <float[3,3,3,3] w = {{{weights}}}, float[3,1,1] m = {{0.1, 0.7, 0.3}}> {{
        a = Conv (x, w) b = Mul (a, m) y = Add (b, m) }}"""
    feeds = {"x": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)}
    found = verification.verify(text.model(body), text.model(body), feeds, device=Device.CPU)
    assert 0 < found.outputs[0].noise < 1e-6
