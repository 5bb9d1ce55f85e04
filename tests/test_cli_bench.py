"""`amp-rewrite bench`: what it prints, writes and answers; nothing here depends on how long a run takes."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import parser

from amp_rewrite.cli import main
from amp_rewrite.running import sessions
from amp_rewrite.running.latency import FEWEST
from amp_rewrite.running.sessions import Device

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[n, 4] x) => (float[n, 4] y) {
  h = Cast <to = 10> (x)
  y = Cast <to = 1> (h)
}
"""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """A machine without CUDA, whatever this one has."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(sessions, "best_device", lambda: Device.CPU)


@pytest.fixture
def model(tmp_path):
    """A model in a folder of its own."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def bench(*arguments):
    """Runs the command in this process, as briefly as it goes."""
    return CliRunner().invoke(main, ["bench", *map(str, arguments), "--seconds", "0"])


def test_bench_prints_and_writes(model, tmp_path):
    """Two models give a table, and JSON with both."""
    path = tmp_path / "b.json"
    result = bench(model, model, "--dim", "n=3", "--json", path)
    assert result.exit_code == 0, result.output
    assert "on CPU" in result.output
    assert "speed against A" in result.output
    made = json.loads(path.read_text())
    assert [entry["path"] for entry in made["models"]] == [str(model)] * 2
    assert made["rounds"] == FEWEST
    assert [entry["tf32"] for entry in made["models"]] == [False] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.onnx",), "none.onnx: there is no such file; check the path"),
        (("{model}", "none.onnx"), "none.onnx: there is no such file; check the path"),
        (("{model}", "--provider", "cuda"), "CUDA does not work here"),
        (
            ("{model}", "--tf32", "--provider", "cpu"),
            "--tf32 is for CUDA, and this runs on the CPU; leave it",
        ),
        (("{model}", "--data", "none.npz"), "none.npz: there is no such file"),
        (("{model}", "--dim", "m=3"), "'m'"),
        (("{model}", "--json", "{model}/x.json"), "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(model, arguments, words):
    """Every mistake gets one line that says what would help."""
    result = bench(*(argument.format(model=model) for argument in arguments))
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert words in line


def test_no_model_is_a_usage_error():
    """At least one model is needed."""
    result = bench()
    assert result.exit_code == 2
    assert "missing argument" in result.stderr


def test_an_input_is_named_with_its_model(model, tmp_path):
    """With several models one must know whose inputs are meant: those that A has, and those that B lacks."""
    two = tmp_path / "two.onnx"
    other = MODEL.replace("x) =>", "x, float[n, 4] z) =>").replace("(h)\n}", "(h)\n  unread = Relu (z)\n}")
    onnx.save(parser.parse_model(other), two)
    inputs = tmp_path / "x.npz"
    np.savez(inputs, x=np.ones((1, 4), np.float32))
    first = bench(two, model, "--data", inputs)
    assert (first.exit_code, f"input 'z' of {two} is missing" in first.stderr) == (2, True)
    second = bench(model, two)
    assert (second.exit_code, second.stderr.startswith(f"amp-rewrite: {two}: the run failed")) == (2, True)
