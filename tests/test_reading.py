"""Files that a run reads: only regular ones, at once."""

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import amp_rewrite
from amp_rewrite.files import reading
from tests.commands import refusal
from tests.model_files import saved

__all__ = ["saved"]

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")

ROOT = Path(__file__).parents[1]


@pytest.fixture
def pipe(tmp_path):
    """A pipe that nobody writes to: who waits for a writer waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_sockets_are_refused(tmp_path, monkeypatch):
    """A socket is named as one."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        assert refusal(amp_rewrite.analyze, Path("s")) == "s: is a socket, not a file; give a regular file"


def test_what_takes_the_place_of_a_file_is_refused(pipe, saved, monkeypatch):
    """Between the first look and the opening, a pipe may have come: the file that is open counts."""
    found = saved.stat()
    monkeypatch.setattr(Path, "stat", lambda *_, **__: found)
    with pytest.raises(reading.IrregularError, match="is a pipe"):
        reading.read(pipe)


def test_a_file_has_an_end(saved):
    """One that is larger than any valid file is not read."""
    with pytest.raises(reading.IrregularError, match="is larger than 5 bytes"):
        reading.read(saved, 5)


@pytest.mark.slow
def test_a_model_on_standard_input(saved):
    """What the shell's < gives is a regular file under an odd name; what its | gives is none."""
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    line = [sys.executable, "-m", "amp_rewrite", "/dev/stdin", "--dry-run", "-q"]
    with saved.open("rb") as file:
        assert run(line, stdin=file).returncode == 0
    assert "/dev/stdin: is a pipe, not a file" in run(line, input="").stderr
