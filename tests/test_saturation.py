"""A saturated output proves nothing: what it is computed from is compared in its place. The models are in
saturation.models, which is written as cases are (tests/case_files.py).
"""

from pathlib import Path

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting import annotations, plan_files
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Rescaled, Scaled
from tests import case_files, text

pytest.importorskip("onnxruntime")
from amp_rewrite.running import verdict_text

WEIGHTS = np.random.default_rng(0).standard_normal((32, 10)).astype(np.float32)
CASES = list(case_files.read(Path(__file__).with_name("saturation.models")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_before_a_saturated_output_is_compared(case):
    """The error is that of the numbers that were saturated, and the verdict says so. A result that is wrong
    there is inconclusive: it may be right on these inputs, so nothing is searched. An output that is not
    saturated has an error of its own, which counts.
    """
    claims = dict(claim.split() for claim in case.claims)
    value = claims.get("saturated", "")
    verdict, wrong = (judged(case, claims, factor=factor) for factor in (1.0, 1.05 if value else 1.5))
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


def judged(case, claims, factor):
    """The verdict on a half result whose weights are off by a factor."""
    before, after = (text.model(case.model, {"w": WEIGHTS * np.float32(by)}) for by in (1.0, factor))
    options = amp_rewrite.Options(level=Level.UNSAFE_FORCE_ALL)
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    sample = {"x": np.float32(claims.get("inputs", 300)) * x}
    return amp_rewrite.verify(before, amp_rewrite.rewrite(after, options).model, sample)


@pytest.mark.parametrize("is_rescaled", [True, False])
def test_a_value_that_is_stored_times_a_power_of_two_is_compared_without_it(is_rescaled):
    """Where the result says that it stores values so: else it is wrong."""
    before = text.model(CASES[0].model, {"w": WEIGHTS})
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
