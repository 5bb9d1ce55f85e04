"""The command line, where a part of the program is replaced; what it prints is in transcripts."""

import math
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import demo, pipeline
from amp_rewrite.errors import MissingPackageError
from amp_rewrite.policy.options import Options
from amp_rewrite.running import verdict_text
from amp_rewrite.running.verdict import NotJudged, Tried
from tests import text
from tests.commands import failure, run

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.sessions import Device

OVERFLOW = """g (float[2] x) => (float[2] y) {
    [shift] s = Add (x, x) [square] a = Mul (s, s) [root] y = Sqrt (a) }"""
FORCED = ("--level", "unsafe-force-all")


@pytest.fixture
def model(tmp_path):
    """A small model in a folder of its own."""
    path = tmp_path / "model.onnx"
    onnx.save(text.model(OVERFLOW), path)
    return path


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
    result = run(model, *FORCED)
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


def test_what_no_file_can_be_called():
    """What is printed of an argument is escaped, and a long first argument is looked at as a model."""
    line = failure("m.onnx", "--a\nb")
    assert line == "amp-rewrite: No such option '--a\\nb'; see amp-rewrite rewrite --help"
    assert failure("x" * 5000)


def test_a_device_that_is_not_there(model, monkeypatch):
    """One line says so, whatever this machine has."""
    monkeypatch.setattr(sessions, "best_device", lambda: Device.CPU)
    assert "CUDA does not work here" in failure("bench", model, "--provider", "cuda")


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


def test_samples_are_read_one_at_a_time(model, tmp_path, monkeypatch):
    """At most one sample is in memory while all are checked beforehand."""
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=np.ones(2, np.float32))
    arrays, read_all = [], feeds.read

    def read(*arguments):
        assert sum(array() is not None for array in arrays) <= 1
        found = read_all(*arguments)
        arrays.append(weakref.ref(found["x"]))
        return found

    monkeypatch.setattr(feeds, "read", read)
    assert run(model, "--data", tmp_path).exit_code == 0
    assert len(arrays) > 2


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


# ---- where a newcomer came to a dead end: the line now says what to do


@pytest.mark.parametrize(
    ("ok", "said"),
    [(True, "on synthetic images in 0..1 the error is"), (False, "if your images are in 0..1")],
)
def test_a_range_of_images_that_would_fail_is_no_riddle(ok, said):
    """What was not judged, and would have failed, says how to have one's own images judged."""
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    (note,) = verdict_text.notes(replace(verdict, not_judged=(NotJudged("0..1", 0.1, None, ok),)))
    assert said in note
    assert ("--data" in note) is not ok


def test_a_model_that_is_half_already_is_its_own_result(tmp_path):
    """Nothing is written; where nothing can become half, the report says why."""
    onnx.save(demo.network(), tmp_path / "m.onnx")
    half = amp_rewrite.rewrite(tmp_path / "m.onnx").model
    assert amp_rewrite.rewrite(half).model == half
    report = amp_rewrite.rewrite(onnx.load(tmp_path / "m.onnx"), Options(gate=True, device="t4")).report
    assert (report.obstacle is None) is bool(report.nodes.half)


def test_lines_on_other_inputs_and_trials_name_what_is_lost():
    """They have no `error inf`."""
    tried = Tried(("a",), None, math.inf, ok=False)
    assert verdict_text.of_tried(tried) == "tried --keep-full a: infinities or NaN, FAIL"
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    (line,) = verdict_text.warnings(
        replace(verdict, not_judged=(NotJudged("0..255", math.inf, None, ok=False),))
    )
    assert "FAIL (infinities or NaN)" in line
