"""Models that draw random numbers: what is compared draws the same."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import amp_rewrite
from amp_rewrite.demo import network

pytest.importorskip("onnxruntime")
from amp_rewrite.running import repeatable, sessions

DRAWN = """<ir_version: 8, opset_import: ["": 13, "own": 1]>
g (float[N, 64] x, bool c) => (float[N, 64] a, float[40, 100] b, float[40, 100] d, float16[N, 64] e,
   float[N, 64] f)
{ [noise] a = RandomNormalLike <dtype = 1, mean = 2.0, scale = 0.5> (x)
  [even] b = RandomUniform <shape = [40, 100], low = -1.0, high = 3.0> ()
  [normal] d = RandomNormal <shape = [40, 100]> ()
  e = own.Noise (x)
  f = If (c) <then_branch = t () => (float[N, 64] p) { [inner] p = RandomUniformLike <dtype = 1> (x) },
              else_branch = u () => (float[N, 64] q) { q = Identity (x) }> }
<domain: "own", opset_import: ["": 13]> Noise (v) => (w) { [called] w = RandomNormalLike <dtype = 10> (v) }"""
FEEDS = {"x": np.zeros((200, 64), np.float32), "c": np.array(True)}

SPEECH = """<ir_version: 8, opset_import: ["": 17]>
speech (float[1, 40] x) => (float[1, T] y) <float[40, 40] w, int64[1] axis = {1}, int64[1] first = {0}>
{ z = RandomNormalLike <dtype = 1, scale = 0.8> (x) n = Add (x, z) h = MatMul (n, w) s = Sigmoid (h)
  long = ReduceSum <keepdims = 0> (s) whole = Ceil (long) count = Cast <to = 7> (whole)
  end = Unsqueeze (count, first) part = Slice (h, first, end, axis) y = Tanh (part) }"""
"""Its length depends on what it draws, as that of speech."""


def speech():
    """That model with its weights."""
    model = parser.parse_model(SPEECH)
    draw = np.random.default_rng(1)
    weights = numpy_helper.from_array(draw.normal(size=(40, 40), scale=0.1).astype(np.float32), "w")
    model.graph.initializer.append(weights)
    return model


def run(model, feeds=FEEDS):
    """The outputs of a session of its own, of two runs."""
    session = sessions.open_session(model)
    return [sessions.run_session(session, feeds) for _ in range(2)]


def test_every_run_draws_the_same():
    """In main graph, branch and function; in every session and every run of it."""
    model = parser.parse_model(DRAWN)
    first, *others = [outputs for _ in range(2) for outputs in run(model)]
    for name, value in first.items():
        for other in others:
            np.testing.assert_array_equal(value, other[name])
    assert first["e"].dtype == np.float16


def test_what_is_drawn_has_its_distribution():
    """Mean and deviation, the ends of what is uniform, and each node numbers of its own."""
    (drawn, _) = run(parser.parse_model(DRAWN))
    for name, mean, deviation in (("a", 2, 0.5), ("b", 1, 4 / 12**0.5), ("d", 0, 1), ("f", 0.5, 12**-0.5)):
        assert drawn[name].mean() == pytest.approx(mean, abs=0.05)
        assert drawn[name].std() == pytest.approx(deviation, rel=0.05)
    assert -1 <= drawn["b"].min() < -0.99
    assert 2.99 < drawn["b"].max() <= 3
    other = drawn["e"].astype(np.float32).ravel()[:4000]
    for numbers in (drawn["d"].ravel(), drawn["a"].ravel()[:4000] - 2):
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.1
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.1


@pytest.mark.parametrize("in_file", [False, True])
def test_a_model_that_draws_is_compared(tmp_path, in_file):
    """Original and result draw the same, so that the verdict and float32's noise are about rounding."""
    model = speech()
    if in_file:
        saved = {"save_as_external_data": True, "size_threshold": 0, "location": "w.bin"}
        onnx.save(model, tmp_path / "m.onnx", **saved)
        model = tmp_path / "m.onnx"
    result = amp_rewrite.rewrite(model).model
    verdict = amp_rewrite.verify(model, result, {"x": np.ones((1, 40), np.float32)})
    assert verdict.ok
    assert 0 < verdict.error < 5e-3
    assert verdict.outputs[0].noise < 1e-5


def test_what_cannot_be_replaced_is_left():
    """A node that names no type, and an opset without Range: the runtime draws, as ever."""
    untyped = (
        '<ir_version: 8, opset_import: ["": 13]> g (float[4] x) => (float[4] y) { y = RandomNormalLike (x) }'
    )
    old = untyped.replace("13", "10").replace("Like (x)", "Like <dtype = 1> (x)")
    for source in (untyped, old):
        model = parser.parse_model(source)
        assert repeatable.repeatable(model) is None
        assert run(model, {"x": np.zeros(4, np.float32)})[0]["y"].shape == (4,)


def test_only_what_draws_is_read(tmp_path):
    """A file without the name of such an operator is opened as it is."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    assert not repeatable.may_draw(path)
    onnx.save(parser.parse_model(DRAWN), path)
    assert repeatable.may_draw(path)
    assert repeatable.repeatable(network()) is None


DROPPED = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 64] x, bool c) => (float[N, 64] a, bool[N, 64] m, float[N, 64] b, float[N, 64] d,
    float16[N, 64] e, float[N, 64] f) <float quarter = {0.25}, bool yes = {1}>
{ [one] a, m = Dropout (x, quarter, yes) [two] b = Dropout (x, quarter, c) [three] d = Dropout (x, , yes)
  h = Cast <to = 10> (x) [four] e = Bernoulli (h) [five] f = RandomNormalLike (x) }"""


@pytest.mark.parametrize("training", [True, False])
def test_what_is_dropped_is_drawn_as_well(training):
    """In training mode alone, which an input of the model may say; and what has the type of its input."""
    feeds = {"x": np.full((200, 64), 0.3, np.float32), "c": np.array(training)}
    model = parser.parse_model(DROPPED)
    (first, again), (other, _) = run(model, feeds), run(model, feeds)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
        np.testing.assert_array_equal(value, other[name])
    assert set(first["b"].ravel().tolist()) == {0, np.float32(0.4)} if training else {np.float32(0.3)}
    assert set(first["d"].ravel().tolist()) == {0, np.float32(0.6)}
    np.testing.assert_array_equal(first["m"], first["a"] > 0)
    assert first["m"].mean() == pytest.approx(0.75, abs=0.02)
    assert first["e"].astype(np.float32).mean() == pytest.approx(0.3, abs=0.02)
    assert (first["e"].dtype, first["f"].dtype) == (np.float16, np.float32)
