"""Where a newcomer came to a dead end: the line now says what to do."""

import math
from dataclasses import replace

import onnx
import pytest

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.policy.options import Options
from amp_rewrite.running import verdict_text
from amp_rewrite.running.verdict import NotJudged, Tried

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("ok", "said"),
    [(True, "on synthetic images in 0..1 the error is"), (False, "if your images are in 0..1")],
)
def test_a_range_of_images_that_would_fail_is_no_riddle(ok, said):
    """What was not judged, and would have failed, says how to have one's own images judged."""
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    (note,) = verdict_text.notes(replace(verdict, not_judged=(NotJudged("0..1", 0.1, None, ok),)))
    assert said in note
    assert ("--data" in note) is not ok


def test_a_model_that_is_half_already_is_its_own_result(tmp_path):
    """Nothing is written; where nothing can become half, the report says why."""
    onnx.save(demo.network(), tmp_path / "m.onnx")
    half = amp_rewrite.rewrite(tmp_path / "m.onnx").model
    assert amp_rewrite.rewrite(half).model == half
    report = amp_rewrite.rewrite(onnx.load(tmp_path / "m.onnx"), Options(gate=True, device="t4")).report
    assert (report.obstacle is None) is bool(report.nodes.half)


def test_lines_on_other_inputs_and_trials_name_what_is_lost():
    """They have no `error inf`."""
    tried = Tried(("a",), None, math.inf, ok=False)
    assert verdict_text.of_tried(tried) == "tried --keep-full a: infinities or NaN, FAIL"
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    (line,) = verdict_text.warnings(
        replace(verdict, not_judged=(NotJudged("0..255", math.inf, None, ok=False),))
    )
    assert "FAIL (infinities or NaN)" in line
