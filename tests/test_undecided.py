"""What float32 itself does not tell is inconclusive: neither a failure of half, nor a pass."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting import annotations, plan_files
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Rescaled, Scaled
from amp_rewrite.running.tolerances import Tolerances
from tests import case_files, commands, real_models, text

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


# ---- behind a selection rows are compared as the original selects; the models are in selections.models

RNG = np.random.default_rng(0)
SCORES = (0.5 + 1e-4 * RNG.standard_normal((1, 400, 1))).astype(np.float32)
"""Scores of which half makes few numbers, but for the first ones."""
SCORES[0, :5, 0] = 0.95, 0.9, 0.85, 0.8, 0.75
ROWS = np.concatenate([RNG.uniform(0, 640, (1, 400, 4)), SCORES], axis=2).astype(np.float32)

SELECTIONS = list(case_files.read(Path(__file__).with_name("selections.models")))


@pytest.mark.parametrize("case", SELECTIONS, ids=lambda case: case.name)
def test_what_is_selected_is_compared_in_the_originals_order(case):
    """The verdict says what differs, and how close it is."""
    options = amp_rewrite.Options(level=Level.UNSAFE_FORCE_ALL)
    result = amp_rewrite.rewrite(text.model(case.result), options).model
    verdict = amp_rewrite.verify(text.model(case.model), result, {"x": ROWS})
    if case.claims == ("far",):
        assert verdict.is_far
        return
    assert verdict.ok
    assert verdict.error < 1e-3
    (choice,) = verdict.choices
    assert choice.places > 5
    assert 0 < choice.gap < 1e-3
    (said,) = (note for note in verdict_text.notes(verdict) if "selections" in note)
    assert said.startswith("compared with the original's selections: ")
    assert said.endswith(f"between values at most {choice.gap:.1e} apart")


def test_nothing_is_tuned_for_rows_that_change_places(tmp_path):
    """The half result is written at once, and the line says what changed."""
    path, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    onnx.save(text.model(SELECTIONS[0].model), path)
    np.savez(data, x=ROWS)
    done = commands.run(path, "--data", data, "--force-half", ".*")
    assert done.exit_code == 0
    assert "compared with the original's selections: TopK 'v', at " in done.output
    assert "PASS" in done.output
    assert "values that half rounds" not in done.output


def test_a_detectors_rows_are_compared_one_by_one():
    """From a report: half misses none of the best 300 rows, and is off by 0.07 px."""
    path = real_models.SHARED / "cases" / "82_topk.onnx"
    if not path.is_file():
        pytest.skip(real_models.MISSING)
    sample = dict(np.load(path.with_suffix(".npz")))
    verdict = amp_rewrite.verify(path, amp_rewrite.rewrite(path.read_bytes()).model, sample)
    assert verdict.ok
    assert [choice.places > 100 for choice in verdict.choices] == [True, True]


# ---- A saturated output proves nothing: what it is computed from is compared in its place

WEIGHTS = np.random.default_rng(0).standard_normal((32, 10)).astype(np.float32)
SATURATED = list(case_files.read(Path(__file__).with_name("saturation.models")))


@pytest.mark.parametrize("case", SATURATED, ids=lambda case: case.name)
def test_what_is_before_a_saturated_output_is_compared(case):
    """The error is that of the numbers that were saturated, and the verdict says so. A result that is wrong
    there is inconclusive: it may be right on these inputs, so nothing is searched. An output that is not
    saturated has an error of its own, which counts.
    """
    claims = dict(claim.split() for claim in case.claims)
    value = claims.get("saturated", "")
    verdict, wrong = (judged_case(case, claims, factor=factor) for factor in (1.0, 1.05 if value else 1.5))
    (output,) = verdict.outputs
    assert (verdict.ok, output.saturated or "") == (True, value)
    if not value:
        assert wrong.is_far == (claims["wrong"] == "far")
        return
    assert 1e-4 < verdict.error < 1e-3
    said = f"y is saturated on these inputs: '{value}' before it is compared"
    assert said in list(verdict_text.notes(verdict))
    assert (wrong.ok, wrong.is_far, verdict_text.conclusion(wrong)) == (False, False, "inconclusive")
    said = f"y: proves nothing: it is saturated, and before it, in '{value}', error 0."
    assert wrong.faults[0].startswith(said)


def judged_case(case, claims, factor):
    """The verdict on a half result whose weights are off by a factor."""
    before, after = (text.model(case.model, {"w": WEIGHTS * np.float32(by)}) for by in (1.0, factor))
    options = amp_rewrite.Options(level=Level.UNSAFE_FORCE_ALL)
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    sample = {"x": np.float32(claims.get("inputs", 300)) * x}
    return amp_rewrite.verify(before, amp_rewrite.rewrite(after, options).model, sample)


@pytest.mark.parametrize("is_rescaled", [True, False])
def test_a_value_that_is_stored_times_a_power_of_two_is_compared_without_it(is_rescaled):
    """Where the result says that it stores values so: else it is wrong."""
    before = text.model(SATURATED[0].model, {"w": WEIGHTS})
    body = """g (float[4,32] x) => (float[4,10] y) <float[32,10] w, float four = {4}> {
        c = Cast <to = 10> (x) f = Cast <to = 1> (c) h = MatMul (f, w) u = Mul (h, four) y = Softmax (u) }"""
    after = text.model(body, {"w": WEIGHTS / 4})
    if is_rescaled:
        scaled = Rescaled((Scaled("h", None, 0, 2),))
        plan = plan_files.of("", Decisions(()), plan_files.options_of(Options()), scaled)
        after.metadata_props.add(key=annotations.KEY, value=annotations.packed(plan))
    x = 300 * np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    x[0, 0] = np.inf
    assert amp_rewrite.verify(before, after, {"x": x}).ok == is_rescaled


def test_channels_of_far_means_are_not_saturated():
    """Each lies at an end of the range of both, but has an error of its own that shows."""
    body = """g (float[1,2,8,8] x) => (float[1,2,8,8] y) <float[1,2,1,1] deviations = {{1, 100}},
        float[1,2,1,1] means = {{0, 40000}}> {{ {h} u = Mul (h, deviations) y = Add (u, means) }}"""
    before = text.model(body.format(h="h = Tanh (x)"))
    after = text.model(body.format(h="c = Cast <to = 10> (x) t = Tanh (c) h = Cast <to = 1> (t)"))
    x = np.random.default_rng(1).standard_normal((1, 2, 8, 8)).astype(np.float32)
    verdict = amp_rewrite.verify(before, after, {"x": x})
    assert verdict.ok
    assert not verdict.outputs[0].saturated
    assert 1e-5 < verdict.error < 1e-3
