"""Behind a selection, rows that change places between close scores are compared as the original selects. The
models are in selections.models, which is written as cases are (tests/case_files.py).
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Level
from tests import case_files, commands, real_models, text

pytest.importorskip("onnxruntime")
from amp_rewrite.running import verdict_text

RNG = np.random.default_rng(0)
SCORES = (0.5 + 1e-4 * RNG.standard_normal((1, 400, 1))).astype(np.float32)
"""Scores of which half makes few numbers, but for the first ones."""
SCORES[0, :5, 0] = 0.95, 0.9, 0.85, 0.8, 0.75
ROWS = np.concatenate([RNG.uniform(0, 640, (1, 400, 4)), SCORES], axis=2).astype(np.float32)

CASES = list(case_files.read(Path(__file__).with_name("selections.models")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
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
    onnx.save(text.model(CASES[0].model), path)
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
