"""Infinities and NaN of a result, in numbers: the error is not that of the values beside them."""

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest

from amp_rewrite import Tolerances, rewrite, verify
from amp_rewrite.running import verdict_text
from amp_rewrite.running.verdict import NotJudged, Tried
from tests import text

SQUARE = text.model("g (float[4] x, float[4] m) => (float[4] y) { s = Mul (x, x) y = Mul (s, m) }")
IN_HALF = text.model("""g (float[4] x, float[4] m) => (float[4] y) {
    h = Cast <to = 10> (x) s = Mul (h, h) n = Cast <to = 10> (m) p = Mul (s, n) y = Cast <to = 1> (p) }""")
SAMPLE = {"x": np.array([300, 1, 0.5, 0], np.float32), "m": np.array([0, 1, 1, 1], np.float32)}
"""The first is 0 in float32, and NaN in half (infinity times 0); all others are exact."""


def test_the_error_of_lost_values_is_infinite():
    """In the verdict, its JSON and its line; other values agree exactly."""
    verdict = verify(SQUARE, IN_HALF, SAMPLE)
    found = verdict.to_json()["outputs"][0]
    assert (verdict.ok, verdict.error, found["error"], found["by_sample"]) == (
        False,
        math.inf,
        "inf",
        ["inf"],
    )
    cells = verdict_text.cells(verdict.outputs[0])
    assert [cells[at] for at in (1, 4, 5)] == ["inf"] * 3, "error, relative L2 and max abs"
    assert verdict_text.short_cells(verdict.outputs[0])[1] == "1 inf or NaN"


def test_lost_values_that_are_allowed_are_counted():
    """Without the bound it passes on the others, and the row still says what is lost."""
    verdict = verify(SQUARE, IN_HALF, SAMPLE, Tolerances(non_finite=None))
    assert (verdict.ok, verdict.error) == (True, 0.0)
    assert verdict_text.short_cells(verdict.outputs[0])[1] == "1 inf or NaN"


def test_lines_on_other_inputs_and_trials_name_what_is_lost():
    """They have no `error inf` either."""
    tried = Tried(("a",), None, math.inf, ok=False)
    assert verdict_text.of_tried(tried) == "tried --keep-full a: infinities or NaN, FAIL"
    passed = verify(SQUARE, SQUARE, SAMPLE)
    other = NotJudged("0..255", math.inf, None, ok=False)
    (line,) = verdict_text.warnings(replace(passed, not_judged=(other,)))
    assert "FAIL (infinities or NaN)" in line


@pytest.mark.parametrize(("poked", "named"), [("v", "'v'"), ("uv", "'u' and 1 other weight"), ("", "")])
def test_a_weight_with_nan_is_named(poked, named):
    """A damaged weight is a warning; infinities and single numbers may be meant."""
    proto = text.model("""g (float[2,4] x) => (float[2,4] y) <float[4,4] u, float[4,4] v, float s> {
        a = MatMul (x, u) r = Relu (a) b = MatMul (r, v) y = Min (b, s) }""")
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name, value in (*((name, np.nan) for name in poked), ("s", np.nan)):
        array = onnx.numpy_helper.to_array(stored[name]).copy()
        array.flat[-1] = value
        stored[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
    warnings = [each for each in rewrite(proto).report.warnings if "NaN" in each]
    assert len(warnings) == bool(poked)
    assert all(f"the weight {named}, and" in each for each in warnings)
