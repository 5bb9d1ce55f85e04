"""A model that changes while it is read is an error, and not a mixture of two."""

import os
import re
import time

import onnx
import pytest

from amp_rewrite import Options, pipeline, rewrite
from amp_rewrite.errors import ModelError
from tests import text

GRAPH = "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }"


@pytest.fixture
def model(tmp_path):
    """The path of a model with its weights in `w.data`."""
    path = tmp_path / "m.onnx"
    onnx.save(text.model(GRAPH), path, save_as_external_data=True, location="w.data")
    return path


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


CHANGES = dict.fromkeys([replaced, written_to], "was changed or replaced while it was read")
CHANGES |= {removed: "there is no such file"}
CHANGES |= {made_a_pipe: "is a pipe, not a file"} if hasattr(os, "mkfifo") else {}


@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_is_copied_as_it_is_and_changes_meanwhile(tmp_path, change):
    """A model in which nothing becomes half is copied: the error names the source, not the result."""
    time.sleep(0.02)
    path = tmp_path / "m.onnx"
    onnx.save(text.model("g (float[4] x) => (float[4] y) { y = Exp (x) }"), path)
    with pytest.raises(ModelError, match=f"{re.escape(str(path))}: {CHANGES[change]}"):
        rewrite(path, Options(check=False), on_plan=lambda _: change(path))
    assert [path.name for path in tmp_path.iterdir()] == ([] if change is removed else ["m.onnx"])


@pytest.mark.parametrize("change", [replaced, written_to, removed])
@pytest.mark.parametrize("name", ["m.onnx", "w.data"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_source_that_changes_meanwhile(model, tmp_path, name, change, in_place):
    """Whichever file changes between reading and writing is named, and no result is there."""
    time.sleep(0.02)  # file systems tell times apart by the ticks of a clock
    before = {path.name for path in tmp_path.iterdir()}

    def meanwhile(_):
        change(tmp_path / name)

    with pytest.raises(ModelError) as caught:
        rewrite(model, Options(check=False), in_place=in_place, on_plan=meanwhile)
    assert str(tmp_path / name) in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= before


def test_a_source_that_stays(model):
    """Reading is no change."""
    assert pipeline.rewrite(model, Options(check=False)).model.is_file()
