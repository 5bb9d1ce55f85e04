"""Files that a run reads: only regular ones, at once, and as they were when it began."""

import os
import re
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import onnx
import pytest

import amp_rewrite
from amp_rewrite import Options, rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.files import reading
from tests import text
from tests.model_files import GRAPH, content, saved
from tests.refusals import refusal

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


# ---- a model that changes while it is read is an error, and not a mixture of two


def replaced(path):
    """Another file takes its name."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def written_to(path):
    """A byte changes, and the time of that is hidden, as far as that can be done."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def removed(path):
    """The file goes."""
    path.unlink()


def made_a_pipe(path):
    """A named pipe takes its name, into which nothing is ever written."""
    path.unlink()
    os.mkfifo(path)


CHANGES = {
    replaced: "was changed or replaced while it was read",
    written_to: "was changed or replaced while it was read",
    removed: "there is no such file",
    made_a_pipe: "is a pipe, not a file",
}


@pytest.mark.parametrize(
    ("where", "change"),
    [
        *(("copied", change) for change in CHANGES),
        *((where, change) for where in ("m.onnx", "w.data", "float32", "in place") for change in CHANGES),
    ],
)
def test_a_source_that_changes_meanwhile(tmp_path, where, change):
    """Whichever file changes between reading and writing is named, and no result is there; a model in which
    nothing becomes half is copied, and its source is named, not the result.
    """
    path, file = tmp_path / "m.onnx", tmp_path / ("w.data" if where in ("w.data", "float32") else "m.onnx")
    others = {
        "copied": "g (float[4] x) => (float[4] y) { y = Exp (x) }",
        "float32": GRAPH.replace("MatMul", "Pow"),
    }
    source = others.get(where, GRAPH)
    onnx.save(text.model(source), path, save_as_external_data=True, location="w.data")
    time.sleep(0.02)  # file systems tell times apart by the ticks of a clock
    before = {*content(tmp_path)}
    said = f": {CHANGES[change]}" if where == "copied" else ""
    with pytest.raises(ModelError, match=re.escape(str(file)) + said):
        rewrite(path, Options(check=False), in_place=where == "in place", on_plan=lambda _: change(file))
    assert {*content(tmp_path)} <= before
