"""The command line when it compares: verdicts, exit codes, and what it advises."""

import sys
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from amp_rewrite import pipeline

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs import feeds
from tests.commands import run

OVERFLOW = """<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {
    [shift] s = Add (x, x) [square] a = Mul (s, s) [root] y = Sqrt (a) }"""
FORCED = ("--level", "unsafe-force-all")


@pytest.fixture
def model(tmp_path):
    """A model that is fine in float32, and overflows in float16 on the inputs beside it."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(OVERFLOW), path)
    np.savez(tmp_path / "large.npz", x=np.float32([150, 1]))
    np.savez(tmp_path / "small.npz", x=np.float32([2, 1]))
    return path


def data(model, name):
    """The flag for one of the inputs beside a model."""
    return ("--data", model.with_name(f"{name}.npz"))


def test_without_onnxruntime_the_advice_works(model, monkeypatch):
    """It names a package on PyPI, which amp-rewrite is not."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install onnxruntime\n" in run(model, *FORCED).output


def test_a_source_that_is_deleted_midway_is_not_compared(model, monkeypatch):
    """The result stands, and a line says that nothing was compared."""
    whole = pipeline.rewrite

    def rewrite(source, *arguments, **options):
        made = whole(source, *arguments, **options)
        source.unlink()
        return made

    monkeypatch.setattr(pipeline, "rewrite", rewrite)
    result = run(model, "-q", "--require=verify")
    assert result.exit_code == 1
    nothing, line = result.stderr.splitlines()
    assert nothing.startswith("nothing became float16")
    assert line.startswith("not compared with the original: ")
    assert "there is no such file" in line


@pytest.fixture
def folder(model):
    """A folder of three samples, of which the second is not one of this model."""
    made = model.with_name("samples")
    made.mkdir()
    for name, size in (("a", 2), ("b", 3), ("c", 2)):
        np.savez(made / f"{name}.npz", x=np.ones(size, np.float32))
    return made


def test_samples_are_read_one_at_a_time(model, folder, monkeypatch):
    """At most one sample is in memory while all are checked beforehand."""
    (folder / "b.npz").unlink()
    arrays, read_all = [], feeds.read

    def read(*arguments):
        assert sum(array() is not None for array in arrays) <= 1
        found = read_all(*arguments)
        arrays.append(weakref.ref(found["x"]))
        return found

    monkeypatch.setattr(feeds, "read", read)
    assert run(model, "--data", folder).exit_code == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="a folder that nobody can write to")
def test_a_model_in_a_folder_that_cannot_be_written_to(model, tmp_path):
    """One line says where the result cannot stand, and which flag names another place."""
    with model.open("rb") as opened:
        path = Path(f"/proc/self/fd/{opened.fileno()}")
        result = run(path, *FORCED)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert f"{path}_fp16.onnx: cannot be written" in line
        assert "with -o" in line
        assert run(path, *FORCED, "-o", tmp_path / "out.onnx").exit_code == 0
