"""What float32 itself does not tell is inconclusive: neither a failure of half, nor a pass."""

import json

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.running.tolerances import Tolerances
from tests import commands, text

pytest.importorskip("onnxruntime")
from amp_rewrite.reporting import page
from amp_rewrite.running import judging, verdict_text, verification
from amp_rewrite.running.sessions import Device

SAID = "y: error 0.05 is above 0.01, but float32 itself differs by 0.03 when it is optimised differently"


@pytest.fixture
def inexact(monkeypatch):
    """A float32 whose outputs differ by what is asked for, unless it is optimised."""

    def differ(by):
        run = judging.ComparedModels.unoptimised

        def off(self, feeds):
            found = run(self, feeds)
            return {name: value + np.asarray(by(feeds), value.dtype) for name, value in found.items()}

        monkeypatch.setattr(judging.ComparedModels, "unoptimised", off)

    return differ


def shifted(shift, operator="Add"):
    """A model that adds a constant to its input."""
    return text.model(
        f"g (float[n] x) => (float[n] y) <float[1] c = {{{shift}}}> {{ y = {operator} (x, c) }}"
    )


def judged(shift, samples=(1.0,), bounds=None, after=None):
    """The verdict on a model that is off by `shift`, for samples of one number each."""
    given = [{"x": np.float32([number])} for number in samples]
    rewritten = shifted(shift) if after is None else after
    return verification.verify(shifted(0), rewritten, given, bounds, device=Device.CPU)


@pytest.mark.parametrize(
    ("own", "shift", "error", "is_undecided"),
    [
        (0.03, 0.05, 1e-2, True),  # float32 itself misses the bound, and half not by much more
        (0.03, 0.47, 1e-2, True),
        (0.03, 0.5, 1e-2, False),  # half is off by more than float32's rounding can be
        (0.007, 0.012, 1e-2, True),  # the exact result may be nearer than the bound
        (0.007, 0.015, 1e-2, False),
        (0.0001, 0.012, 1e-2, False),
        (0.0, 0.012, 1e-2, False),
        (0.03, 0.05, 4e-2, True),
        (0.02, 0.05, 4e-2, False),
    ],
)
def test_float32_must_tell(inexact, own, shift, error, is_undecided):
    """Beyond the bounds up to 16 times its own difference, and within them up to twice: never a pass."""
    inexact(lambda _: own)
    found = judged(shift, bounds=Tolerances(error=error))
    (output,) = found.outputs
    assert (found.ok, found.is_far, output.is_undecided) == (False, not is_undecided, is_undecided)
    assert output.error == pytest.approx(shift, rel=1e-3)
    assert output.noise == pytest.approx(own, rel=1e-3)
    assert bool(found.unproven) == (not output.broken) == is_undecided


def test_what_is_within_the_bounds_passes(inexact):
    """Whatever float32 does: the result is near the original that is used."""
    inexact(lambda _: 0.5)
    assert judged(0.001).ok


def test_lost_values_are_a_failure(inexact):
    """What is infinite in half alone is no rounding."""
    inexact(lambda _: 0.5)
    found = judged(0, after=shifted(0, "Div"))
    assert found.is_far
    assert found.outputs[0].broken[0] == "non_finite 1 is above 0"


def test_one_sample_that_float32_tells_is_enough(inexact):
    """For a failure, wherever it stands, and however small it is beside what no run tells."""
    inexact(lambda feeds: 0.5 if feeds["x"][0] == 1 else 0)
    assert not judged(0.5, samples=[1, 1]).is_far
    for samples in ([1, 2], [2, 1]):
        found = judged(0.5, samples=samples)
        assert found.is_far
        assert not found.unproven


def test_integers_are_told_by_how_many_differ(inexact):
    """Indices that float32 itself has otherwise prove nothing; those that it has alike do."""
    body = "g (float[4] x) => (int64[4] y) <float[1] c = {{{}}}> {{ a = Add (x, c) y = Cast <to = 7> (a) }}"
    before, after = text.model(body.format(0.5)), text.model(body.format(1.5))
    feeds = {"x": np.ones(4, np.float32)}
    assert verification.verify(before, after, feeds, device=Device.CPU).is_far
    inexact(lambda _: 1)
    found = verification.verify(before, after, feeds, device=Device.CPU)
    assert (found.ok, found.is_far) == (False, False)
    assert "but float32 itself differs by 100.0% of its values when" in found.faults[0]


def test_it_is_said(inexact):
    """In faults, table, page and hints, with both numbers; in JSON as well."""
    inexact(lambda _: 0.03)
    found = judged(0.05)
    assert found.faults == (SAID,)
    assert verdict_text.conclusion(found) == "inconclusive"
    assert verdict_text.cells(found.outputs[0])[-1] == "inconclusive"
    assert page._plain_output(found.outputs[0])["ok"] is None
    assert [*verdict_text.hints(found)] == ["--data FILE.npz   # other inputs: these decide nothing"]
    assert found.to_json()["outputs"][0]["is_undecided"]
    for samples in ([1, 0.5], [0.5, 1]):  # of the sample that is farthest off
        assert (
            "error 0.1 is above 0.01, but float32 itself differs by 0.06" in judged(0.05, samples).faults[0]
        )


NORMALISED = """g (float[1, 3, 32, 32] x) => (float[1, 4, 28, 28] y) <float[8, 3, 3, 3] v, float[8] s,
    float[8] b, float[4, 8, 3, 3] w> {
    a = Conv (x, v) n = InstanceNormalization (a, s, b) r = Relu (n) y = Conv (r, w) }"""
SIZES = {"v": (0.3, 8, 3, 3, 3), "s": (1, 8), "b": (0, 8), "w": (0.1, 4, 8, 3, 3)}


def test_a_constant_image_is_inconclusive(tmp_path):
    """All that is left of it is rounding: exit code 1, no search, and nothing is blamed."""
    random = np.random.default_rng(0)
    stored = {n: np.float32(size * random.standard_normal(shape)) for n, (size, *shape) in SIZES.items()}
    model, image = text.model(NORMALISED, stored), np.full((1, 3, 32, 32), 200.3, np.float32)
    own = amp_rewrite.verify(model, model, {"x": image}, device=Device.CPU).outputs[0].noise
    if not own or own < 0.07:
        pytest.skip("float32 rounds alike here, however it is optimised")
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=image)
    found = commands.run(tmp_path / "m.onnx", "--data", tmp_path / "x.npz", "--json", tmp_path / "r.json")
    assert found.exit_code == 1
    assert "inconclusive" in found.output
    assert not any(word in found.output for word in ("FAIL", "tuned", "tried", "search"))
    verdict = json.loads((tmp_path / "r.json").read_text())["verification"]
    assert (verdict["verified"], verdict["blame"]) == (False, None)
