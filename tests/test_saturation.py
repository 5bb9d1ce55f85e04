"""A saturated output proves nothing: what it is computed from is compared in its place."""

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting import annotations, plan_files
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Rescaled, Scaled
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite.reporting import verdict_text

WEIGHTS = np.random.default_rng(0).standard_normal((32, 10)).astype(np.float32)
BODY = """g (float[4,32] x) => ({output}) <float[32,10] w, float low = {{-1}}, float high = {{1}},
    float zero = {{0}}, int64[1] axis = {{1}}, int64[1] first = {{0}}> {{
    h = MatMul (x, w) {tail} }}"""
TAILS = {
    "softmax": "y = Softmax (h)",
    "sigmoid": "y = Sigmoid (h)",
    "tanh": "y = Tanh (h)",
    "clip": "y = Clip (h, low, high)",
    "hard sigmoid": "y = HardSigmoid (h)",
    "sign": "y = Sign (h)",
    "index": "s = Softmax (h) y = ArgMax <axis = 1, keepdims = 0> (s)",
    "moved": "s = Softmax (h) r = Slice (s, first, axis, axis) y = Squeeze (r, axis)",
    "written out": """m = ReduceMax <axes = [1]> (h) d = Sub (h, m) e = Exp (d) t = ReduceSum (e, axis)
        q = Div (e, t) y = Transpose (q)""",
}


def judged(tail, loud=300.0, factor=1.0, output="float[p,q] y"):
    """The verdict on a half result whose weights are off by a factor, for inputs of this size."""
    output = {"index": "int64[4] y", "moved": "float[4] y"}.get(tail, output)
    body = BODY.format(output=output, tail=TAILS.get(tail, tail))
    before, after = (text.model(body, {"w": WEIGHTS * np.float32(by)}) for by in (1.0, factor))
    options = amp_rewrite.Options(level=Level.UNSAFE_FORCE_ALL)
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    sample = {"x": np.float32(loud) * x}
    return amp_rewrite.verify(before, amp_rewrite.rewrite(after, options).model, sample)


@pytest.mark.parametrize("tail", TAILS)
def test_what_is_before_a_saturated_output_is_compared(tail):
    """The error is that of the numbers that were saturated, and the verdict says so."""
    verdict = judged(tail)
    (output,) = verdict.outputs
    assert verdict.ok
    assert output.saturated == ("d" if tail == "written out" else "h")
    assert 1e-4 < verdict.error < 1e-3
    said = f"y is saturated on these inputs: '{output.saturated}' before it is compared"
    assert said in list(verdict_text.notes(verdict))


@pytest.mark.parametrize("tail", TAILS)
def test_a_wrong_result_that_is_saturated_is_inconclusive(tail):
    """It may be right on these inputs; other inputs would show that it is not, so nothing is searched."""
    verdict = judged(tail, factor=1.05)
    assert (verdict.ok, verdict.is_far, verdict_text.conclusion(verdict)) == (False, False, "inconclusive")
    value = "d" if tail == "written out" else "h"
    said = f"y: proves nothing: it is saturated, and before it, in '{value}', error 0."
    assert verdict.faults[0].startswith(said)


@pytest.mark.parametrize(
    ("tail", "loud"),
    [
        ("softmax", 0.1),
        ("sigmoid", 0.1),
        ("y = Identity (h)", 300.0),
        ("y = Relu (h)", 300.0),
        ("y = LogSoftmax (h)", 300.0),
        ("m = Greater (h, zero) y = Cast <to = 1> (m)", 300.0),  # a mask is what was asked for
        ("f = Mul (x, high) y = Concat <axis = 0> (f, f)", 300.0),  # nothing of it is half, or hidden
    ],
)
def test_an_output_that_is_not_saturated_is_compared_itself(tail, loud):
    """Its own error counts."""
    verdict = judged(tail, loud)
    assert verdict.ok
    assert not verdict.outputs[0].saturated
    assert judged(tail, loud, factor=1.5).is_far == ("(x, high)" not in tail and "Greater" not in tail)


@pytest.mark.parametrize("is_rescaled", [True, False])
def test_a_value_that_is_stored_times_a_power_of_two_is_compared_without_it(is_rescaled):
    """Where the result says that it stores values so: else it is wrong."""
    before = text.model(BODY.format(output="float[4,10] y", tail=TAILS["softmax"]), {"w": WEIGHTS})
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
