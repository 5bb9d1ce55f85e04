"""The command line: what it writes, prints and answers."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from amp_rewrite import pipeline
from amp_rewrite.errors import MissingPackageError
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device
from tests.commands import failure, run

ROOT = Path(__file__).parents[1]

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
two_products (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) {
  [product] a = MatMul (x, w)
  [exponential] e = Exp (a)
  [root] r = Sqrt (e)
  [second] y = MatMul (r, w)
}
"""


@pytest.fixture
def model(tmp_path):
    """A model in a folder of its own."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def test_a_bare_clone_has_a_version():
    """--version of a checkout that is not installed says so, and ends well."""
    command = [sys.executable, "-S", "-c", BARE, "--version"]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "amp-rewrite, version 0+unknown\n"


BARE = """
from importlib import metadata
def version(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = version
from amp_rewrite.cli import main
main(prog_name="amp-rewrite")
"""
"""The command line where the package's metadata cannot be found."""


def test_a_fault_of_our_own_is_no_traceback(model, monkeypatch):
    """An error that nobody foresaw is one line as well, and says how to report it."""

    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(pipeline, "rewrite", fail)
    line = failure(model)
    assert "ZeroDivisionError: a bug" in line
    assert "AMP_REWRITE_TRACEBACK=1" in line


def test_a_result_that_is_not_valid_ends_with_1(model, monkeypatch):
    """When the check fails, the file is written, the summary says what broke, and the exit code is 1."""
    monkeypatch.setattr("amp_rewrite.rewriting.result_checks.broken_io", lambda *_: ("the output is gone",))
    result = run(model)
    assert result.exit_code == 1
    assert "BROKEN" in result.output
    assert "the output is gone" in result.output
    assert model.with_name("model_fp16.onnx").exists()


def test_the_demo_without_onnxruntime(tmp_path, monkeypatch):
    """Where nothing can run the models, the demo still rewrites, says so in one line, and ends well."""

    def missing(*_, **__):
        raise MissingPackageError("onnxruntime", extra="cpu", purpose="running a model")

    monkeypatch.setattr("amp_rewrite.running.verification.verify_trials", missing)
    result = run("demo", "-o", tmp_path / "demo")
    assert result.exit_code == 0
    assert "in float16" in result.output
    told, last, _, _ = result.output.splitlines()
    assert last.startswith("not compared  ")
    assert told.startswith("not compared with the original: running a model needs the package onnxruntime")
    assert "pip install onnxruntime" in told


def test_a_mistake_of_two_lines_is_one_line():
    """What is printed of an argument is escaped."""
    line = failure("m.onnx", "--a\nb")
    assert line == "amp-rewrite: there is no flag --a\\nb; see amp-rewrite rewrite --help-all"


def test_a_word_that_no_file_can_be_called():
    """A first argument that is too long for a name is looked at as a model."""
    assert failure("x" * 5000)


def test_a_device_that_is_not_there(model, monkeypatch):
    """One line says so, whatever this machine has."""
    monkeypatch.setattr(sessions, "best_device", lambda: Device.CPU)
    assert "CUDA does not work here" in failure("bench", model, "--provider", "cuda")
