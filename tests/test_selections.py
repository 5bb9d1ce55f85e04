"""Behind a selection, rows that change places between close scores are compared as the original selects."""

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.policy.options import Level
from tests import commands, real_models, text

pytest.importorskip("onnxruntime")
from amp_rewrite.reporting import verdict_text

RNG = np.random.default_rng(0)
SCORES = (0.5 + 1e-4 * RNG.standard_normal((1, 400, 1))).astype(np.float32)
"""Scores of which half makes few numbers, but for the first ones."""
SCORES[0, :5, 0] = 0.95, 0.9, 0.85, 0.8, 0.75
ROWS = np.concatenate([RNG.uniform(0, 640, (1, 400, 4)), SCORES], axis=2).astype(np.float32)

BODY = """g (float[1,400,5] x) => ({outputs}) <float[1,1,5] w = {{{factors}}}, int64[1] axis = {{2}},
    int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}},
    int64[1] four = {{4}}, int64[1] five = {{5}}, int64[1] k = {{100}}, int64[2] sides = {{20, 20}},
    int64 most = {{200}}, float low = {{0.2}}, float middle = {{0.5}}, float high = {{0.93}}> {{
    r = Mul (x, w) b = Slice (r, zero, four, axis) c = Slice (r, four, five, axis)
    s = Squeeze (c, axis) {selection} }}"""
SELECTIONS = {
    "TopK": (
        "float[1,100,4] y, float[1,100] v",
        "v, i = TopK (s, k) l = Squeeze (i, zero) y = Gather <axis = 1> (b, l)",
    ),
    "indices and values": ("float[1,100] v, int64[1,100] i", "v, i = TopK (s, k)"),
    "ArgMax": (
        "float[1,20,4] y",
        """m = Reshape (s, sides) i = ArgMax <axis = 1, keepdims = 0> (m)
           y = Gather <axis = 1> (b, i)""",
    ),
    "an index": ("int64[20] i", "m = Reshape (s, sides) i = ArgMax <axis = 1, keepdims = 0> (m)"),
    "NonMaxSuppression": (
        "float[1,n,4] y",
        """t = Transpose <perm = [0, 2, 1]> (c) i = NonMaxSuppression (b, t, most, middle, middle)
           p = Slice (i, two, three, one) l = Squeeze (p, one) y = Gather <axis = 1> (b, l)""",
    ),
    "a threshold": (
        "float[1,n,4] y",
        """m = GreaterOrEqual (s, middle) n = Squeeze (m, zero) i = NonZero (n)
           l = Squeeze (i, zero) y = Gather <axis = 1> (b, l)""",
    ),
}


def judged(name, factors="1, 1, 1, 1, 1", change=("", "")):
    """The verdict on a result that is half, computes with these factors, and has this change."""
    outputs, selection = (SELECTIONS | MORE)[name]
    before = BODY.format(outputs=outputs, selection=selection, factors="1, 1, 1, 1, 1")
    after = BODY.format(outputs=outputs, selection=selection.replace(*change), factors=factors)
    options = amp_rewrite.Options(level=Level.UNSAFE_FORCE_ALL)
    result = amp_rewrite.rewrite(text.model(after), options).model
    return amp_rewrite.verify(text.model(before), result, {"x": ROWS})


@pytest.mark.parametrize("name", SELECTIONS)
def test_rows_that_change_places_between_close_scores_pass(name):
    """What is selected is compared in the original's order; the verdict says what differs, and how close."""
    verdict = judged(name)
    assert verdict.ok
    assert verdict.error < 1e-3
    (choice,) = verdict.choices
    assert choice.places > 5
    assert 0 < choice.gap < 1e-3
    (said,) = (note for note in verdict_text.notes(verdict) if "selections" in note)
    assert said.startswith("compared with the original's selections: ")
    assert said.endswith(f"between values at most {choice.gap:.1e} apart")


MASKED = """d = Sub (s, middle) o = Identity (d) a = Slice (r, zero, one, axis) t = Squeeze (a, axis)
    edge = Constant <value = float {400.0}> () far = Constant <value = float {-10000.0}> ()
    h = Less (t, edge) j = Where (h, far, o)"""
"""Scores about 0, of which three in five are -10000."""
MORE = {
    "the least": ("float[1] y", "v, i = TopK (s, k) y = ReduceMin <axes = [1], keepdims = 0> (v)"),
    "masked": (
        "float[1,n,4] y",
        f"""{MASKED} nil = Constant <value = float {{0.0}}> () m = Greater (j, nil) n = Squeeze (m, zero)
            i = NonZero (n) l = Squeeze (i, zero) y = Gather <axis = 1> (b, l)""",
    ),
    "ranked": (
        "float[1,200,4] y",
        f"""{MASKED} kk = Constant <value = int64[1] {{200}}> () v, i = TopK (j, kk) l = Squeeze (i, zero)
            y = Gather <axis = 1> (b, l)""",
    ),
}
"""Selections for wrong results alone."""

WRONG = {
    "a coordinate": ("TopK", "1.05, 1, 1, 1, 1", ("", "")),
    "a box that is kept": ("NonMaxSuppression", "1.05, 1, 1, 1, 1", ("", "")),
    "all scores": ("indices and values", "1, 1, 1, 1, 0.5", ("", "")),
    "scores at a threshold": ("a threshold", "1, 1, 1, 1, 0.9", ("", "")),
    "scores that only choose": ("NonMaxSuppression", "1, 1, 1, 1, 1.1", ("", "")),
    "the order": ("TopK", "1, 1, 1, 1, 1", ("v, i = TopK (s, k)", "n = Neg (s) v, i = TopK (n, k)")),
    "the best row is missing": (
        "TopK",
        "1, 1, 1, 1, 1",
        (
            "v, i = TopK (s, k)",
            "e = Less (s, high) f = Cast <to = 1> (e) o = Mul (s, f) v, i = TopK (o, k)",
        ),
    ),
    "another class": ("an index", "1, 1, 1, 1, 1", ("= ArgMax", "= ArgMin")),
    "a limit": ("NonMaxSuppression", "1, 1, 1, 1, 1", ("middle, middle)", "middle, low)")),
    "no limit": ("NonMaxSuppression", "1, 1, 1, 1, 1", ("most, middle, middle)", "most, middle)")),
    "fewer": ("the least", "1, 1, 1, 1, 1", ("(s, k)", "(s, five)")),
    "masked scores at a threshold": ("masked", "1, 1, 1, 1, 1", ("Identity", "Neg")),
    "the order of masked scores": ("ranked", "1, 1, 1, 1, 1", ("Identity", "Neg")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_fails_behind_a_selection_too(name):
    """Values that differ, rows that change places between scores that are not close, and what is missing."""
    assert judged(*WRONG[name]).is_far


def test_nothing_is_tuned_for_rows_that_change_places(tmp_path):
    """The half result is written at once, and the line says what changed."""
    outputs, selection = SELECTIONS["TopK"]
    path, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    onnx.save(text.model(BODY.format(outputs=outputs, selection=selection, factors="1, 1, 1, 1, 1")), path)
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
