"""A sequence as a sample: each model goes on from its own state."""

import numpy as np
import pytest

from amp_rewrite import Options, Pins, observe, rewrite, tune, verify
from amp_rewrite.errors import FeedError
from amp_rewrite.running import sessions
from tests import text

pytest.importorskip("onnxruntime")

AVERAGE = """g (float[16] x, float[16] state) => (float[16] y, float[16] new_state)
    <float keep = {0.999}, float take = {0.001}> {
    [kept] a = Mul(state, keep)
    [taken] b = Mul(x, take)
    [sum] new_state = Add(a, b)
    [end] y = Identity(new_state)
}"""
CACHE = """g (float[1,4] x, float[p,4] past) => (float[1,4] y, float[q,4] present) {
    present = Concat<axis = 0>(past, x)
    y = ReduceSum<keepdims = 1>(present)
}""".replace("ReduceSum<keepdims = 1>(present)", "ReduceMax<axes = [0]>(present)")


def sample(seed=0, **more):
    """Inputs of a step, with a state near 1."""
    random = np.random.default_rng(seed)
    return {"x": random.uniform(0.5, 1.5, 16).astype(np.float32), "state": np.ones(16, np.float32), **more}


def blind(**options):
    """The moving average in half, whatever that does."""
    return rewrite(text.model(AVERAGE), Options(level="unsafe-force-all", **options)).model


@pytest.mark.parametrize("io", ["keep", "half", "state"])
def test_errors_add_up_over_steps(io):
    """A step is within every bound, and a hundred are not; types of states may differ."""
    before, after = text.model(AVERAGE), blind(io=io)
    samples = [sample(seed) for seed in range(8)]
    assert verify(before, after, samples, io=io).error < 1e-3
    verdict = verify(before, after, samples, io=io, steps=100)
    assert verdict.error > 0.03
    assert not verdict.ok
    assert (verdict.samples, verdict.steps) == (1, 100)
    assert verify(before, before, samples, steps=100).ok


def by_hand(model, samples, steps):
    """The outputs y of a chain of runs."""
    session = sessions.open_session(model)
    state, outputs = samples[0]["state"], []
    for at in range(steps):
        y, state = session.run(["y", "new_state"], {"x": samples[at % len(samples)]["x"], "state": state})
        outputs.append(y)
    return np.array(outputs)


def test_each_model_feeds_its_own_state():
    """The errors are those of two separate chains; the samples of a sequence come in turn."""
    before, after = text.model(AVERAGE), text.model(AVERAGE.replace("0.999", "0.99"))
    samples = [sample(seed) for seed in range(3)]
    one, two = (by_hand(model, samples, 7) for model in (before, after))
    verdict = verify(before, after, samples, steps=7)
    found = next(output for output in verdict.outputs if output.name == "y").by_sample
    wanted = np.linalg.norm(two - one, axis=1) / np.linalg.norm(one, axis=1)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_consecutive_samples_are_a_sequence():
    """Further samples are further sequences, and each begins with the state of its first sample."""
    before, after = text.model(AVERAGE), blind()
    samples = [sample(seed, state=np.full(16, 1.0 + seed, np.float32)) for seed in range(4)]
    verdict = verify(before, after, samples, steps=2)
    assert (verdict.samples, verdict.steps) == (2, 2)
    apart = [verify(before, after, samples[at : at + 2], steps=2) for at in (0, 2)]
    for which, output in enumerate(verdict.outputs):
        assert output.by_sample == sum((one.outputs[which].by_sample for one in apart), ())


def test_what_grows_keeps_its_last_entries():
    """As a window over a cache: what was in it at first has left it after as many steps."""
    model = text.model(CACHE)
    past = np.full((3, 4), 9, np.float32)
    samples = [{"x": np.full((1, 4), at, np.float32), "past": past} for at in range(6)]
    seen = observe(model, samples, steps=6)
    assert (seen.samples, seen["present"].high, seen["y"].low) == (1, 9, 3)
    with pytest.raises(FeedError, match="past"):
        observe(model, {"x": np.ones((1, 4), np.float32)}, steps=2)
    with pytest.raises(FeedError, match="the state 'past' has no elements"):
        observe(model, {"x": np.ones((1, 4), np.float32), "past": past[:0]}, steps=2)


def test_observation_merges_all_steps():
    """A state that grows is seen at its largest."""
    model = text.model(AVERAGE.replace("0.999", "2.0"))
    assert observe(model, sample())["new_state"].high == pytest.approx(2, rel=0.01)
    assert observe(model, sample(), steps=10)["new_state"].high == pytest.approx(1024, rel=0.01)


def test_a_search_looks_at_all_steps():
    """The plan that it takes is within the bound after all of them."""
    before = text.model(AVERAGE)
    options = Options(io="keep", pins=Pins(), lists="default", device="t4")
    samples = [sample(seed) for seed in range(2)]
    tuned = tune(before, samples, options, max_error=1e-3, steps=60, prefer="flops")
    result = rewrite(before, replay=tuned.plan).model
    assert verify(before, result, samples, steps=60).error <= 1e-3
    assert tuned.verdict.steps == 60


def test_every_step_is_checked():
    """NaN in a later step proves nothing, and is not observed."""
    nan = sample(2)
    nan["x"][:] = np.nan
    steps = [sample(0), sample(1), nan]
    verdict = verify(text.model(AVERAGE), blind(io="keep"), steps, steps=3, device="cpu")
    assert not verdict.ok
    with pytest.raises(FeedError, match="input 'x' holds NaN"):
        observe(text.model(AVERAGE), steps, steps=3)
