"""Synthetic images: the range that a graph says, and both where it says none."""

import numpy as np
import pytest

from amp_rewrite import analyze
from amp_rewrite.errors import OptionError
from tests import text
from tests.test_synthetic_inputs import CASES as INPUTS

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.inputs.values import ImageRange

IDENTITY = text.model("""g (float[1,3,8,8] x) => (float[1,3,8,8] y) <float[3,3,1,1] w> {
    a = Identity (x) y = Conv (a, w) }""")
CASES = [(case, claim) for case in INPUTS for claim in case.claims if claim.startswith("images")]


@pytest.mark.parametrize(("case", "claim"), CASES, ids=[case.title for case, _ in CASES])
def test_images_are_tried_in_the_ranges_that_are_claimed(case, claim):
    """One trial for each, whose samples are in that range; the analysis assumes images of the same inputs."""
    model, ranges = text.unchecked(case.model), [ImageRange(word) for word in claim.split()[1:]]
    found = feeds.trials(model, Data())
    assert [trial.source.images for trial in found] == (ranges or [None])
    assumed = analyze(model).ranges().counts.inputs
    assert [each.source.value for each in assumed] == ["image"] * bool(ranges)
    for trial, images in zip(found, ranges, strict=False):
        (sample,) = trial.samples
        assert images.most / 2 < sample["x"].max() <= images.most
        (again,) = feeds.feeds(model, feeds.of_source(Data(), trial.source))
        assert np.array_equal(sample["x"], again["x"])


def test_what_is_no_synthetic_image_is_tried_once(tmp_path):
    """Given inputs, inputs of other shapes, and positive operands, which have a range of their own."""
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 3, 8, 8), np.float32))
    cases = {
        "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu (x) }": Data(tmp_path / "in.npz"),
        "g (float[1,3,8,8] v) => (float[1,3,8,8] y) { y = Sqrt (v) }": Data(),
        "g (float[1,8] v) => (float[1,8] y) { y = Relu (v) }": Data(),
        "g () => (float y) { y = Constant <value = float {1}> () }": Data(),
    }
    for body, data in cases.items():
        (trial,) = feeds.trials(text.model(body), data)
        assert trial.source.images is None


@pytest.mark.parametrize(("low", "high"), [(0, 255), (-1, 1), (3, 3)])
def test_a_declared_range_is_kept(low, high):
    """Images, and other floats, are anywhere in it; there is nothing to try."""
    model = text.model("""g (float[1,3,8,8] x, float[8,8] v) => (float[1,3,8,8] y) {
        a = Add (x, v) y = Relu (a) }""")
    (trial,) = feeds.trials(model, Data(ranges={"x": (low, high), "v": (low, high)}))
    (sample,) = trial.samples
    assert trial.source.images is None
    for array in sample.values():
        assert low <= array.min() <= low + (high - low) / 8
        assert high - (high - low) / 8 <= array.max() <= high


def test_what_half_does_not_hold_is_not_drawn():
    """Whatever reads it stays float32, and numbers of that size would tell nothing of the rest."""
    (first, _) = feeds.trials(IDENTITY, Data(ranges={"x": (0, 3e38)}))
    (sample,) = first.samples
    assert sample["x"].max() <= 1


def test_images_of_two_ranges_have_what_the_graph_says():
    """One of each, and nothing to try."""
    model = text.model("""g (float[1,3,8,8] p, float[1,3,8,8] q) => (float[1,3,8,8] y)
        <float[3,3,1,1] w, float c = {255}, float d = {0.5}> {
        a = Div (p, c) b = Sub (q, d) e = Conv (a, w) f = Conv (b, w) y = Add (e, f) }""")
    (trial,) = feeds.trials(model, Data())
    (sample,) = trial.samples
    assert (trial.source.images, sample["p"].max() > 200, sample["q"].max() <= 1) == (None, True, True)


def test_the_range_can_be_given_from_python():
    """By its name; another one is refused."""
    (sample,) = feeds.feeds(IDENTITY, Data(images="0..255"))
    assert sample["x"].max() > 200
    with pytest.raises(OptionError, match=r"Data.images: '0..9' is not one of 0..1, 0..255"):
        Data(images="0..9")
