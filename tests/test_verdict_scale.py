"""A fair verdict: errors at the scale of an output over all samples, the floor, and float32's noise."""

import itertools
import json
import math

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.running.tolerances import parse_tolerances
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite.running import judging, metrics, sessions, tolerances, verdict_text, verification
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
    assert tolerances.above("error", value, bound) == said


# ---- errors about the mean

OFF = """g (float[N,C,H] x, float[N,C,H] d) => (float[N,C,H] y) <float zero = {{0}}> {{
    off = {} y = Add (x, off) }}"""


def moved(samples):
    """The verdict on outputs that are off: samples of the original's and of the difference."""
    before, after = text.model(OFF.format("Mul (d, zero)")), text.model(OFF.format("Identity (d)"))
    feeds = [{"x": np.float32(x), "d": np.float32(d)} for x, d in samples]
    return verification.verify(before, after, feeds, device=Device.CPU)


def alternating(*sizes, shape=(1, 1, 64)):
    """Numbers of these magnitudes with alternating signs, a channel each along axis 1."""
    signs = np.resize([1.0, -1.0], shape)
    return np.concatenate([size * signs for size in sizes], axis=1)


def last(array):
    """Its axis 1 as the last one."""
    return np.swapaxes(array, 1, 2)


OFFSETS, STDS = np.float32([[[40000], [0]]]), alternating(100, 1)
SCORES = np.where(np.arange(64) % 32 == 0, 1.0, 0.0).reshape(1, 1, 64)
BOXED = np.concatenate([np.linspace(0, 600, 64).reshape(1, 1, 64), SCORES], axis=1)
ABOUT_THE_MEAN = {
    "an offset of all": (4000 + alternating(10), alternating(0.1), 1e-2, None),
    "an offset below zero": (-4000 + alternating(10), alternating(0.1), 1e-2, None),
    "of one channel": (OFFSETS + STDS, alternating(1, 0), 1e-2, (1, 0)),
    "small beside another one": (OFFSETS + STDS, alternating(0, 0.02), 2e-2, (1, 1)),
    "of channels that are last": (last(OFFSETS + STDS), last(alternating(1, 0)), 1e-2, (2, 0)),
    "faint scores beside an offset": (
        np.concatenate([40000 + alternating(100), 1e-3 * SCORES], axis=1),
        alternating(0, 1e-4),
        1e-4 * 64,
        (1, 1),
    ),
    "boxes and scores": (BOXED, alternating(0, 0.1), 0.1 * math.sqrt(32), (1, 1)),
    "boxes and scores that are last": (last(BOXED), last(alternating(0, 0.1)), 0.1 * math.sqrt(32), (2, 1)),
    "boxes beside scores": (BOXED, alternating(5, 0), 5 / 176, (1, 0)),
    "scores of which one is rare": (
        np.concatenate([alternating(300), SCORES, 1e-3 * SCORES], axis=1),
        alternating(0, 0, 1e-4),
        1e-4 * 64,
        (1, 2),
    ),
    "metres and angles": (alternating(40, 30, 1.5, 1.2), alternating(0, 0, 0, 0.1), 0.1 / 1.36, (1, 3)),
    "beside what float32 resolves": (
        np.concatenate([alternating(1e9), SCORES], axis=1),
        alternating(0, 0.1),
        0.1 / (1e9 * 2**-24),
        (1, 1),
    ),
    "a rare class of probabilities": (
        np.concatenate([1 - 0.02 * SCORES, 0.02 * SCORES], axis=1),
        alternating(0, 1e-3),
        1e-3 / 0.707,
        (1, 1),
    ),
    "probabilities that are nearly constant": (0.5 + alternating(1e-3), alternating(1e-4), 2e-4, None),
    "one of many": (SCORES, alternating(1e-3), 1e-3 * math.sqrt(32), None),
    "a constant": (300 + alternating(0), alternating(0.3), 1e-3, None),
    "what float32 itself rounds": (300 + alternating(1e-3), alternating(0.3), 1e-3, None),
    "few values": (4000 + alternating(10, shape=(1, 1, 8)), alternating(4, shape=(1, 1, 8)), 1e-3, None),
}


@pytest.mark.parametrize("name", ABOUT_THE_MEAN)
def test_errors_are_about_the_mean(name):
    """The difference is held against what varies, channel by channel where their means or sizes are far
    apart: not where there is no telling what is an offset. The channel is named, and relative L2 stays.
    """
    x, d, error, channel = ABOUT_THE_MEAN[name]
    (output,) = (verdict := moved([(x, d)])).outputs
    if error is not None:
        assert output.error == pytest.approx(error, rel=2e-2)
    assert (output.channel and (output.channel.axis, output.channel.index)) == channel
    assert output.metrics.relative_l2 == pytest.approx(np.linalg.norm(d) / np.linalg.norm(x), rel=2e-2)
    assert verdict.is_far == (output.error > 1e-2)
    if channel is not None and verdict.is_far:
        assert verdict.faults[0].endswith(f" is above 0.01 in channel {channel[1]} of axis {channel[0]}")
    shown = json.loads(json.dumps(verdict.to_json()))["outputs"][0]
    assert shown["spread"] == pytest.approx(output.spread)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 6, 24, 32), 1),
        ((1, 24, 32, 6), 3),
        ((1, 1, 200, 6), 3),
        ((1, 3, 16, 16, 6), 4),
        ((200, 6), 1),
        ((1, 6, 200), 1),
    ],
)
def test_quantities_lie_along_any_axis_of_channels(shape, axis):
    """In every layout of a detector, a wrong score fails beside right coordinates."""
    size = np.expand_dims(
        np.float32([300, 300, 300, 300, 1, 1]), [at for at in range(len(shape)) if at != axis]
    )
    values = size * np.random.default_rng(0).uniform(0, 1, shape)
    off = np.where(size == 1, values / 2, 0)
    spread = metrics.spread([metrics.moments(values)])
    error, channel = spread.error(metrics.differences(values, values + off), SMALLEST)
    assert (spread.axis, error) == (axis, pytest.approx(0.5, rel=1e-2))
    assert channel in (4, 5)


def test_rows_and_columns_of_an_image_are_no_quantities():
    """However dark some of them are."""
    image = np.ones((1, 2, 24, 32))
    image[..., :8] = 100
    assert metrics.spread([metrics.moments(image)]).axis is None


def test_the_mean_is_that_of_all_samples():
    """Single numbers that differ from sample to sample spread as well."""
    numbers = 4000 + alternating(10, shape=(1, 1, 20)).reshape(-1, 1, 1, 1)
    assert moved([(number, [[[0.2]]]) for number in numbers]).outputs[0].error == pytest.approx(
        2e-2, rel=1e-2
    )
    assert moved([(number, [[[0.2]]]) for number in numbers[:8]]).outputs[0].error < 1e-4


def test_float32s_noise_is_about_the_mean_as_well(monkeypatch):
    """Where float32 itself is as far off, beside what varies, nothing is decided."""
    monkeypatch.setattr(
        judging.ComparedModels,
        "unoptimised",
        lambda *_: {"y": np.float32(4000 + alternating(10) + alternating(0.3))},
    )
    verdict = moved([(4000 + alternating(10), alternating(0.4))])
    assert not verdict.ok
    assert not verdict.is_far
    assert verdict.outputs[0].is_undecided
    assert verdict.outputs[0].noise == pytest.approx(3e-2, rel=1e-2)


# ---- what proves nothing, and bounds that do not bound


@pytest.mark.parametrize(
    ("x", "d", "said"),
    [
        (0.0, 0.0, "y: proves nothing: it is all zero"),
        (3.0, 0.0, "y: proves nothing: it is constant"),
        (3.0, 1e-3, "y: proves nothing: it is constant"),
        (0.5 + alternating(1e-4), -alternating(1e-4), "y: proves nothing: it is constant in the result"),
    ],
)
def test_outputs_that_say_nothing_prove_nothing(x, d, said):
    """Two models that compute one and the same number everywhere may have nothing else in common."""
    verdict = moved([(np.broadcast_to(x, (1, 1, 64)), np.broadcast_to(d, (1, 1, 64)))])
    assert (verdict.ok, verdict.is_far) == (False, False)
    assert verdict.faults == (said,)
    assert verdict_text.cells(verdict.outputs[0])[-1] == "inconclusive"
    assert verdict_text.conclusion(verdict) == "inconclusive"


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
    """Where models are small, or the verdict is bad; what cannot be had is left out."""
    assert judged([1.0], 0).outputs[0].noise == 0
    monkeypatch.setattr(judging, "LARGE", 0)
    assert judged([1.0], 0).outputs[0].noise is None
    assert judged([1.0], 1.0).outputs[0].noise == 0
    refuse = amp_rewrite.errors.ModelError("refused")
    plain = sessions.open_session

    def refusing(*given, optimised=True, **_):
        if optimised:
            return plain(*given)
        raise refuse

    monkeypatch.setattr(sessions, "open_session", refusing)
    bad = judged([1.0], 1.0)
    assert (bad.ok, bad.outputs[0].noise) == (False, None)


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
