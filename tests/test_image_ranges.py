"""Synthetic images: the range that a graph says, and both where it says none."""

import numpy as np
import pytest

from amp_rewrite import analyze
from amp_rewrite.errors import OptionError
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.inputs.values import ImageRange

UNIT, BYTES = ImageRange.UNIT, ImageRange.BYTES


CONV = "float[3,3,1,1] w"
CHANNELS_LAST = "a = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv (a, w)"
SCALE = "float s = {0.1}, uint8 z = {0}"
QUANTISED = "q = QuantizeLinear (x, s, z) a = DequantizeLinear (q, s, z) y = Conv (a, w)"


def graph(body, weights=""):
    """A model of one image, from the nodes before its `Conv`."""
    stored = f"{weights}, {CONV}" if weights else CONV
    return text.model(f"g (float[1,3,8,8] x) => (float[1,3,8,8] y) <{stored}> {{ {body} y = Conv (a, w) }}")


@pytest.mark.parametrize(
    ("body", "weights", "ranges"),
    [
        ("a = Div (x, c)", "float c = {255}", [BYTES]),
        ("a = Mul (x, c)", "float c = {0.003921569}", [BYTES]),
        ("a = Mul (c, x)", "float c = {0.003921569}", [BYTES]),
        ("a = Sub (x, c)", "float[3,1,1] c = {123.7, 116.3, 103.5}", [BYTES]),
        ("a = Add (x, c)", "float[3,1,1] c = {-123.7, -116.3, -103.5}", [BYTES]),
        ("a = Sub (c, x)", "float c = {255}", [BYTES]),
        ("b = Sub (x, c) a = Div (b, d)", "float c = {0.485}, float d = {0.229}", [UNIT]),
        ("a = Mul (x, c)", "float c = {2}", [UNIT]),
        ("a = Mul (x, c)", "float c = {255}", [UNIT]),  # which makes 0..255 of it
        ("a = Clip (x, c, d)", "float c = {0}, float d = {1}", [UNIT]),
        ("a = Clip (x, c, d)", "float c = {0}, float d = {255}", [BYTES]),
        ("b = Transpose <perm = [0, 1, 3, 2]> (x) a = Div (b, c)", "float c = {127.5}", [BYTES]),
        ("a = Transpose <perm = [0, 1, 3, 2]> (x)", "", [UNIT, BYTES]),
        ("a = Cast <to = 1> (x)", "", [UNIT, BYTES]),
        ("b = Conv (x, w) a = Div (b, c)", "float c = {255}", [UNIT, BYTES]),  # not of the image itself
    ],
)
def test_the_graph_says_the_range_or_both_are_tried(body, weights, ranges):
    """By the first constant that it applies; the images are in that range."""
    model = graph(body, weights)
    found = feeds.trials(model, Data())
    assert [trial.source.images for trial in found] == ranges
    for trial, images in zip(found, ranges, strict=True):
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


IMAGES = {
    "four channels": ("float[1,4,8,8] x", "float[2,4,1,1] w", "y = Conv (x, w)", True),
    "channels last": ("float[1,8,8,3] x", "float[2,3,1,1] w", CHANNELS_LAST, True),
    "resized": ("float[1,3,8,8] x", "float[4] s = {1, 1, 2, 2}", "y = Resize (x, , s)", True),
    "quantised": ("float[1,3,8,8] x", f"{SCALE}, float[2,3,1,1] w", QUANTISED, True),
    "hidden states": ("float[1,3,8,8] h", "float[8,8] w", "y = MatMul (h, w)", False),
    "two channels": ("float[1,2,8,8] x", "float[2,2,1,1] w", "y = Conv (x, w)", False),
    "latents": ("float[1,4,8,8] latent_sample", "float[2,4,1,1] w", "y = Conv (latent_sample, w)", False),
    "a spectrogram": ("float[1,1,80,8] mel", "float[2,1,1,1] w", "y = Conv (mel, w)", False),
    "weights": ("float[2,3,1,1] x", "float[1,3,8,8] d", "y = Conv (d, x)", False),
    "offsets": ("float[1,4,8,8] x", "float[1,3,8,8] d", "a = Mul (x, x) y = Conv (d, a)", False),
}


@pytest.mark.parametrize(("declared", "stored", "body", "expected"), IMAGES.values(), ids=list(IMAGES))
def test_images_have_channels_and_go_into_a_convolution_or_a_resize(declared, stored, body, expected):
    """What is drawn and what is assumed of its range follow one rule."""
    model = text.model(f"g ({declared}) => (float[a,b,c,d] y) <{stored}> {{ {body} }}")
    ranges = analyze(model).ranges().counts.inputs
    assert [each.source.value for each in ranges] == (["image"] if expected else [])
    assert (feeds.trials(model, Data())[0].source.images is not None) == expected


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
    (first, _) = feeds.trials(graph("a = Identity (x)"), Data(ranges={"x": (0, 3e38)}))
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
    (sample,) = feeds.feeds(graph("a = Identity (x)"), Data(images="0..255"))
    assert sample["x"].max() > 200
    with pytest.raises(OptionError, match=r"Data.images: '0..9' is not one of 0..1, 0..255"):
        Data(images="0..9")
