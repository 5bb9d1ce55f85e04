"""Metrics of the user's own: from Python, from the command line, and what is wrong with them."""

import json
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite import Metric, Tolerances
from amp_rewrite.errors import OptionError
from tests import text
from tests.commands import run

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


# ---- on the command line

MODULE = """
def largest(original, rewritten, samples):
    return max(abs(b["y"] - a["y"]).max() for a, b in zip(original, rewritten))
def top1(original, rewritten, samples):
    return float(len(samples))
def broken(original, rewritten, samples):
    raise ValueError("no labels")
def silent(original, rewritten, samples):
    pass
word = "no function"
class Scores:
    best = staticmethod(top1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, a sample and a module of metrics, as the current one."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_bad.py").write_text("import nowhere")
    product = "g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }"
    onnx.save(text.model(product), "m.onnx")
    np.savez("in.npz", x=np.float32([[0.1, 0.3], [0.7, 0.9]]))
    return name


def flags(folder, *words):
    """Flags with the module's name."""
    return [word.format(m=folder) for word in words]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("{m}:largest",), 0, "metric largest: 0.000"),
        (("{m}:largest", "--tolerance", "largest=:1e-9"), 1, "(at most 1e-09)"),
        (("count={m}:top1", "--tolerance", "count=1:"), 0, "metric count: 1 (at least 1)"),
        (("count={m}:Scores.best", "--tolerance", "count=2:3"), 1, "metric count: 1 (at least 2, at most 3)"),
        (("{m}:largest", "--tolerance", "error=none", "--tolerance", "largest=:1"), 0, "at most 1"),
    ],
)
def test_a_metric_is_named_and_bounded(folder, words, code, line):
    """`--tolerance` bounds it on both sides or on one; the report has its value."""
    asked = ["--data", "in.npz", "--json", "r.json", "--skip", "repair"]
    done = run("m.onnx", *asked, "--metric", *flags(folder, *words))
    assert done.exit_code == code
    assert line in done.output
    assert json.loads(Path("r.json").read_text())["verification"]["metrics"][0]["problem"] == ""
    again = run("verify", "m.onnx", "m_fp16.onnx", "--data", "in.npz", "--metric", *flags(folder, *words))
    assert again.exit_code == code


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("{m}",), "is not MODULE:FUNCTION"),
        ((":f",), "is not MODULE:FUNCTION"),
        (("nowhere_at_all:f",), "cannot be imported (ModuleNotFoundError: No module named 'nowhere_at_all')"),
        (("{m}:gone",), "cannot be imported (AttributeError: module"),
        (("{m}_bad:f",), "cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        (("{m}:word",), "is not a function"),
        (("{m}:top1",), "the metric top1 has the name of a built-in tolerance"),
        (("{m}:largest", "--metric", "{m}:largest"), "two metrics are called largest"),
        (("{m}:largest", "--tolerance", "largest=0.5"), "write largest=0.9: for at least 0.9"),
        (("{m}:largest", "--tolerance", "largest=:"), "is not LEAST:MOST"),
        (("{m}:largest", "--tolerance", "largest=few:"), "is not LEAST:MOST"),
        (("{m}:largest", "--tolerance", "largest=2:1"), "the bounds of largest cross"),
        (("{m}:largest", "--tolerance", "largest=1:", "--tolerance", "largest=:2"), "has two bounds"),
        (("{m}:largest", "--tolerance", "smallest=1:"), "there is no tolerance smallest"),
        (("{m}:largest", "--skip=verify"), "--metric has no effect with --skip verify"),
    ],
)
def test_a_metric_that_cannot_be_had_is_refused_before_anything_is_written(folder, words, line, tmp_path):
    """One line, exit code 2, and no file."""
    before = sorted(tmp_path.iterdir())
    done = run("m.onnx", "--metric", *flags(folder, *words))
    assert done.exit_code == 2
    (said,) = done.stderr.splitlines()
    assert line in said
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken", "the metric broken raised ValueError: no labels; it gets three lists"),
        ("silent", "the metric silent returned None, which is not a number"),
    ],
)
def test_a_metric_that_fails_loses_nothing(folder, name, line, tmp_path):
    """Exit code 2 and one line; the result, the verdict and the report are there."""
    done = run("m.onnx", "--data", "in.npz", "--json", "r.json", "--metric", f"{folder}:{name}")
    assert done.exit_code == 2
    (said,) = done.stderr.splitlines()
    assert line in said
    assert "PASS" in done.stdout
    assert (tmp_path / "m_fp16.onnx").exists()
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["verification"]["outputs"][0]["error"] < 1e-2
    assert not found["verified"]
    again = run("verify", "m.onnx", "m_fp16.onnx", "--json", "v.json", "--metric", f"{folder}:{name}")
    assert (again.exit_code, (tmp_path / "v.json").exists()) == (2, True)
