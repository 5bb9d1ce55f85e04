"""Models with operators of a library: the one that onnxruntime-extensions ships; skipped without it."""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from amp_rewrite import observe, rewrite, tune, verify
from amp_rewrite.errors import ModelError, OptionError
from tests.commands import failure, run

onnxruntime = pytest.importorskip("onnxruntime")
extensions = pytest.importorskip("onnxruntime_extensions")
# Its import sets this for every process that is started afterwards, and that protobuf refuses more models.
os.environ.pop("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", None)
LIBRARY = extensions.get_library_path()
FEEDS = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)}
TEXT = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
g (float[8,8] x) => (float[8,8] y)
<float[8,8] w = {%s}>
{
  [first] a = MatMul(x, w)
  [split] negative, positive = ai.onnx.contrib.NegPos(a)
  [second] b = MatMul(positive, w)
  [third] c = MatMul(negative, w)
  y = Add(b, c)
}
""" % ", ".join(f"{np.sin(i):.3f}" for i in range(64))  # noqa: UP031 - braces are the syntax's


@pytest.fixture
def model():
    """Products around an operator of the library."""
    return parser.parse_model(TEXT)


@pytest.fixture
def files(model, tmp_path):
    """The model in a file, and its inputs."""
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **FEEDS)
    return tmp_path


def test_the_comparison_runs_around_an_unknown_operator(model):
    """It stays float32 between halves; without the library nothing runs, with it the two are near."""
    half = rewrite(model).model
    nodes = {node.name: node for node in half.graph.node}
    assert {node.op_type for node in half.graph.node} >= {"Cast", "NegPos", "MatMul"}
    assert "float16" in nodes["second"].input[0]
    with pytest.raises(ModelError, match="onnxruntime refuses the model"):
        verify(model, half, FEEDS)
    verdict = verify(model, half, FEEDS, custom_ops=[LIBRARY, LIBRARY])  # which registers once
    assert verdict.ok
    assert 0 < verdict.error < 1e-2
    other = rewrite(parser.parse_model(TEXT.replace("0.", "1."))).model
    assert not verify(model, other, FEEDS, custom_ops=[LIBRARY]).ok


def test_values_are_observed(model):
    """Around the operator as without it, by a worker too: the library goes with the task."""
    assert observe(model, FEEDS, custom_ops=LIBRARY)["a"].high > 0
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seen = observe(model, [FEEDS] * 2, custom_ops=[LIBRARY], executor=pool)
        tuned = tune(model, [FEEDS] * 2, custom_ops=[LIBRARY], executor=pool)
    assert seen["a"] == observe(model, [FEEDS] * 2, custom_ops=LIBRARY)["a"]
    assert seen.samples == 2
    assert tuned.is_met


COMMANDS = {
    "rewrite": "rewrite m.onnx -o half.onnx --data in.npz --require verify --show nodes",
    "calibrate": "m.onnx -o half.onnx --data in.npz --require verify --calibrate in.npz",
    "page": "m.onnx -o half.onnx --data in.npz --require verify --html r.html",
    "tuned": "m.onnx -o half.onnx --data in.npz --require verify --tolerance error=1e-7",
    "tune": "tune m.onnx -o half.onnx --data in.npz --tolerance error=1e-3",
    "verify": "verify m.onnx m.onnx --data in.npz --show nodes --json v.json",
    "placement": "placement m.onnx --provider cpu --show run --data in.npz",
    "bench": "bench m.onnx m.onnx --data in.npz --budget 0 --json b.json",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_the_model(command, files, monkeypatch):
    """Whatever runs the model takes the library; it is compared, not left out."""
    monkeypatch.chdir(files)
    made = run(*COMMANDS[command].split(), "--custom-ops", LIBRARY)
    assert made.exit_code == 0, made.output
    assert "not compared" not in made.output
    told = {"bench": "p50", "placement": "one run"}
    assert told.get(command, "PASS  ") in made.stdout
    assert ("search   " in made.stdout) == (command in ("tuned", "tune"))
    if command == "bench":
        assert json.loads((files / "b.json").read_text())["models"][0]["libraries"] == [LIBRARY]


BAD = {
    "none.so": (None, "does not exist"),
    "folder": (None, "is not a file"),
    "text.so": (b"no library", "onnxruntime refuses the library"),
    "cut.so": (Path(LIBRARY).read_bytes()[:200_000], "crashes: it may be damaged"),
    onnxruntime.capi.onnxruntime_pybind11_state.__file__: (None, "onnxruntime refuses the library"),
}
"""Paths of what is no library, what they contain, and what is said of each."""


@pytest.mark.parametrize("path", BAD, ids=["missing", "folder", "text", "damaged", "other"])
@pytest.mark.parametrize("command", ["rewrite", "verify", "bench", "placement"])
def test_a_bad_library_is_one_line(path, command, files, monkeypatch):
    """Exit code 2, a line that names it, and nothing is written."""
    monkeypatch.chdir(files)
    data, problem = BAD[path]
    (files / "folder").mkdir()
    if data:
        (files / path).write_bytes(data)
    said = failure(*COMMANDS[command].split(), "--custom-ops", files / path)
    assert str(path) in said
    assert problem in said
    assert not (files / "half.onnx").exists()


@pytest.mark.parametrize("given", ["/none.so", 3, [b"lib.so"], ""])
@pytest.mark.parametrize("function", [verify, observe, tune])
def test_a_bad_library_is_an_option_error(function, given, model):
    """From Python too, before anything runs."""
    models = (model, model) if function is verify else (model,)
    with pytest.raises(OptionError, match="custom"):
        function(*models, FEEDS, custom_ops=given)
