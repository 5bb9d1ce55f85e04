"""Metrics of the user's own: from Python, from the command line, and what is wrong with them."""

import json
import weakref

import numpy as np
import pytest

from amp_rewrite import Metric, Tolerances
from amp_rewrite.errors import OptionError
from tests import text

pytest.importorskip("onnxruntime")
from amp_rewrite.running import verification
from amp_rewrite.running.sessions import Device

BEFORE = text.model("g (float[n] x) => (float[n] y) { y = Identity (x) }")
AFTER = text.model("g (float[n] x) => (float[n] y) <float[1] c = {0.5}> { y = Add (x, c) }")
SAMPLES = [{"x": np.float32([1, 2])}, {"x": np.float32([3])}]
LOOSE = Tolerances(error=1.0)


def largest(original, rewritten, samples):
    """The largest difference over all samples, each of which is seen with its inputs."""
    assert [sample["x"].tolist() for sample in samples] == [out["y"].tolist() for out in original]
    return max(np.abs(b["y"] - a["y"]).max() for a, b in zip(original, rewritten, strict=True))


def judged(metrics, samples=SAMPLES):
    """The verdict by metrics, with bounds of the built-in ones that pass."""
    return verification.verify(BEFORE, AFTER, samples, LOOSE, device=Device.CPU, metrics=metrics)


@pytest.mark.parametrize(
    ("metric", "faults"),
    [
        (largest, ()),
        (Metric(largest, most=0.5), ()),
        (Metric(largest, least=0.5), ()),
        (Metric(largest, most=0.4), ("largest 0.5 is above 0.4",)),
        (Metric(largest, name="off", least=0.6, most=0.7), ("off 0.5 is below 0.6",)),
        ([Metric(largest, most=0.1), lambda *_: 3], ("largest 0.5 is above 0.1",)),
        (lambda *_: np.float32(2), ()),
        (lambda *_: np.array([2]), ()),
        (lambda *_: np.inf, ()),
    ],
)
def test_a_function_becomes_a_bound(metric, faults):
    """It gets all outputs and samples in order; without bounds it is shown alone."""
    verdict = judged(metric)
    assert verdict.faults == faults
    assert (verdict.ok, verdict.is_far) == (not faults, bool(faults))
    assert verdict.metrics[0].value is not None
    json.dumps(verdict.to_json(), allow_nan=False)


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda *_: _raise(KeyError("label\nnext")), "raised KeyError: 'label\\nnext'"),
        (lambda *_: _raise(SystemExit(3)), "raised SystemExit: 3"),
        (lambda: 1, "raised TypeError: "),
        (lambda *_: np.nan, "returned nan, which is not a number"),
        (lambda *_: None, "returned None, which is not a number"),
        (lambda *_: True, "returned True, which is not a number"),
        (lambda *_: "0.5", "returned '0.5', which is not a number"),
        (lambda *_: np.zeros(3), "returned ndarray, which is not a number"),
        (lambda *_: 1j, "returned complex, which is not a number"),
    ],
)
def test_a_metric_without_a_value_fails_the_verdict(function, problem):
    """All else is measured as ever; the verdict says what is wrong, and observing values would not help."""
    verdict = judged([function, largest])
    assert not verdict.ok
    assert not verdict.is_far
    assert verdict.metrics[0].problem.startswith(problem)
    assert verdict.metrics[1].value == 0.5
    assert problem in verdict.to_json()["not_verified"]
    assert verdict.outputs[0].error < 1


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Metric("wer"), "Metric.function: 'wer' is not callable"),
        (lambda: Metric(largest, most="1"), "Metric.most: '1' is not a number"),
        (lambda: Metric(largest, least=float("nan")), "Metric.least: nan is not a number"),
        (lambda: Metric(largest, least=2, most=1), "the bounds of largest cross: 2 to 1"),
        (lambda: judged([largest, largest]), "two metrics are called largest"),
        (lambda: judged(3), "metrics: 3 is neither a function nor a Metric"),
        (lambda: judged(["wer"]), "Metric.function: 'wer' is not callable"),
    ],
)
def test_what_is_no_metric_is_refused(make, line):
    """One line that names the field."""
    with pytest.raises(OptionError) as caught:
        make()
    assert line in str(caught.value)


@pytest.mark.parametrize(("metrics", "kept"), [((), 2), (largest, 5)])
def test_samples_are_kept_for_metrics_alone(metrics, kept):
    """A sample at a time beside the first, unless a metric needs them all."""
    arrays, alive = [], []

    def samples():
        for _ in range(6):
            array = np.arange(8, dtype=np.float32)
            arrays.append(weakref.ref(array))
            yield {"x": array}
            del array
            alive.append(sum(made() is not None for made in arrays))

    assert judged(metrics, samples()).ok
    assert max(alive) <= 2 if kept == 2 else alive[-1] >= kept
