"""Files that a run reads: whatever is no regular file is refused at once, at both doors."""

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.files import reading
from amp_rewrite.policy import operator_lists
from amp_rewrite.rewriting import plan_files
from tests import text
from tests.commands import failure

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs.feeds import Data, feeds

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")

ROOT = Path(__file__).parents[1]
AT_ONCE = 60
"""Seconds: a run that waits for a pipe's writer waits for ever."""


@pytest.fixture
def pipe(tmp_path):
    """A pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.fixture
def model(tmp_path):
    """A small model in a file."""
    path = tmp_path / "m.onnx"
    onnx.save(text.model("g (float[2, 2] x) => (float[2, 2] y) { y = MatMul (x, x) }"), path)
    return path


def refused(call, path):
    """The one line with which a file is refused."""
    with pytest.raises(AmpRewriteError) as caught:
        call(path)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def verify_with(data):
    """Reads samples from a path, for a model that takes one."""
    list(feeds(text.model("g (float[2, 2] x) => (float[2, 2] y) { y = Relu (x) }"), Data((data,))))


READERS = {
    "rewrite": amp_rewrite.rewrite,
    "analyze": amp_rewrite.analyze,
    "emulate": amp_rewrite.emulate,
    "coverage": amp_rewrite.measure_coverage,
    "verify": lambda path: amp_rewrite.verify(path, path, [{}]),
    "observe": lambda path: amp_rewrite.observe(path, [{}]),
    "plan": plan_files.load,
    "list": operator_lists.load,
    "rules": coverage_rules.load,
    "baseline": coverage_rules.load_baseline,
    "data": verify_with,
}
each_reader = pytest.mark.parametrize("call", READERS.values(), ids=READERS)


@each_reader
def test_pipes_are_refused_in_python(call, pipe):
    """Nobody waits for a writer, and the line says what to do with what a shell's <(...) gives."""
    assert refused(call, pipe) == f"{pipe}: is a pipe, not a file; save what comes through it to a file first"


@each_reader
def test_devices_are_refused(call):
    """A device without end is not read at all."""
    assert refused(call, Path("/dev/zero")) == "/dev/zero: is a device, not a file; give a regular file"


def test_sockets_are_refused(tmp_path, monkeypatch):
    """A socket is named as one."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        assert refused(amp_rewrite.analyze, Path("s")) == "s: is a socket, not a file; give a regular file"


def test_what_takes_the_place_of_a_file_is_refused(pipe, model, monkeypatch):
    """Between the first look and the opening, a pipe may have come: the file that is open counts."""
    found = model.stat()
    monkeypatch.setattr(Path, "stat", lambda *_, **__: found)
    with pytest.raises(reading.IrregularError, match="is a pipe"):
        reading.read(pipe)


def test_links_to_files_are_read(model, pipe):
    """A link is what it leads to."""
    link = model.with_name("link.onnx")
    link.symlink_to(model)
    assert amp_rewrite.analyze(link).plan
    link.unlink()
    link.symlink_to(pipe)
    assert "is a pipe" in refused(amp_rewrite.analyze, link)


def test_a_file_has_an_end(model):
    """More bytes than make sense are not read."""
    with pytest.raises(reading.IrregularError, match="is larger than 5 bytes"):
        reading.read(model, 5)


def test_a_path_that_no_file_can_have():
    """A NUL ends a path for the system: one line."""
    assert "character that is not valid in a path; check the path" in refused(plan_files.load, Path("a\0b"))
    assert "is not a model; give the path of a file" in refused(amp_rewrite.analyze, Path("a\0b"))


COMMANDS = {
    "model": ("{pipe}",),
    "plan": ("{model}", "--plan", "{pipe}"),
    "list": ("{model}", "--list", "{pipe}"),
    "data": ("{model}", "--data", "{pipe}"),
    "explain": ("explain", "{pipe}"),
    "explained plan": ("explain", "{pipe}.json"),
    "coverage": ("coverage", "{pipe}"),
    "rules": ("coverage", "{model}", "--rules", "{pipe}"),
    "baseline": ("coverage", "{model}", "--rules", "baseline={pipe}"),
    "verify": ("verify", "{model}", "{pipe}"),
    "verify data": ("verify", "{model}", "{model}", "--data", "{pipe}"),
    "bench": ("bench", "{model}", "{pipe}", "--seconds", "0"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_pipes_are_refused_by_the_command(arguments, model, pipe, tmp_path):
    """Exit code 2 and one line, wherever a path is given."""
    os.mkfifo(tmp_path / "pipe.json")
    said = failure(*(argument.format(model=model, pipe=pipe) for argument in arguments))
    assert "is a pipe, not a file; save what comes through it to a file first" in said


def test_a_sample_that_is_a_pipe(pipe, tmp_path):
    """Inside a folder of samples too."""
    pipe.rename(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.ones((2, 2), np.float32))
    assert "a.npz: is a pipe" in refused(verify_with, tmp_path)
    (tmp_path / "test_data_set_0").mkdir()
    (tmp_path / "a.npz").rename(tmp_path / "test_data_set_0" / "input_0.pb")
    assert "input 'x' is a pipe" in refused(verify_with, tmp_path / "test_data_set_0")


def test_a_model_on_standard_input(model):
    """What the shell's < gives is a regular file under an odd name; what its | gives is none."""
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, timeout=AT_ONCE, check=False)
    line = [sys.executable, "-m", "amp_rewrite", "/dev/stdin", "--dry-run", "-q"]
    with model.open("rb") as file:
        assert run(line, stdin=file).returncode == 0
    assert "/dev/stdin: is a pipe, not a file" in run(line, input="").stderr
