"""Wrong inputs of the command line, found by trying: each ends with one line that says what would help."""

import errno
import itertools
import os
import threading

import numpy as np
import onnx
import pytest

from amp_rewrite.errors import ResourceError
from amp_rewrite.files import staging
from amp_rewrite.model import constants
from amp_rewrite.process import interruptible
from amp_rewrite.running import comparison, sessions
from tests import text
from tests.commands import failure, run

_ONES = ", ".join("1" * 16)
MODEL = text.model(f"g (float[4,4] x) => (float[4,4] y) <float[4,4] w = {{{_ONES}}}> {{ y = MatMul(x, w) }}")
RAW = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model in the current folder, which holds nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(MODEL.SerializeToString())
    return tmp_path / "m.onnx"


def test_a_path_that_cannot_be_followed(model):
    """The path is at fault, not the output."""
    assert "output cannot be written" not in failure(model, "--list", "x/" * 3000)


def test_a_name_that_is_no_text(model, tmp_path):
    """onnxruntime cannot take it: that is said of the name, not of its constructor's arguments."""
    odd = tmp_path / os.fsdecode(b"a\xff.onnx")
    try:
        model.rename(odd)
    except OSError:
        pytest.skip("a file system of UTF-8 names only")
    done = run(odd, "-o", "out.onnx")
    assert done.exit_code == 0
    assert "rename it" in done.stdout


def test_no_further_thread(monkeypatch):
    """A process at its limit of threads or memory: an error that a user can mend."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(interruptible, "_LEFT", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ResourceError, match="ulimit"):
        interruptible.call(int, int)
    assert not interruptible.is_left_behind()  # what never began is not waited for


@pytest.mark.parametrize("started", [0, 3, 4])
def test_no_further_thread_is_not_a_failed_comparison(model, monkeypatch, started):
    """`verify` ends with 2 whichever run gets no thread; a rewrite stands, and says it was not compared."""
    assert run("-o", "out.onnx", model).exit_code == 0
    start, left = threading.Thread.start, [started]

    def refuse(thread):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    verified = run("verify", model, "out.onnx")
    if started < 4:  # two sessions are opened, and both are run
        assert (verified.exit_code, "ulimit" in verified.stderr) == (2, True)
    left[0] = started
    done = run("-o", "out.onnx", model)
    assert done.exit_code == 0
    assert ("not compared" in done.output) == (started < 4)


ARENA = """[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Name:'c'
Status Message: /onnxruntime_src/onnxruntime/core/bfc_arena.cc:360 void* onnxruntime::BFCArena::\
AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for buffer of size 9"""
SCARCE = [RuntimeError(ARENA), MemoryError("std::bad_alloc"), RuntimeError("CUDA failure 2: out of memory")]


@pytest.mark.parametrize(("error", "number"), [*itertools.product(SCARCE, (0, 1)), (SCARCE[1], 2)])
def test_a_run_without_memory_is_not_a_failed_comparison(model, monkeypatch, error, number):
    """Whichever of two runs gets no memory, or NumPy behind them, a rewrite stands and is not compared;
    `verify` ends with 2.
    """
    assert run("-o", "out.onnx", model).exit_code == 0
    session = pytest.importorskip("onnxruntime").InferenceSession
    work, done = session.run, []

    def refuse(*arguments, **_):
        done.append(0)
        if len(done) > number or number == 2:
            raise error
        return work(*arguments)

    monkeypatch.setattr(*((comparison, "compare") if number == 2 else (session, "run")), refuse)
    assert "ulimit" in failure("verify", model, "out.onnx")
    done.clear()
    result = run("-o", "out.onnx", model)
    assert (result.exit_code, "not compared with" in result.stdout) == (0, True), result.output


def test_a_session_without_memory_is_no_fault_of_the_model(model, monkeypatch):
    """A result that cannot be opened for lack of memory has no verdict either."""
    assert run("-o", "out.onnx", model).exit_code == 0

    def refuse(*_, **__):
        raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : initialization: std::bad_alloc")

    monkeypatch.setattr(pytest.importorskip("onnxruntime"), "InferenceSession", refuse)
    line = failure("verify", model, "out.onnx")
    assert "onnxruntime does not open the model (initialization: std::bad_alloc)" in line
    assert "ulimit" in line


def test_a_reason_is_one_line_without_places_in_c():
    """What is wrong comes behind codes, and behind the file and signature of onnxruntime's own source."""
    assert sessions.reason(SCARCE[0]).endswith(" Failed to allocate memory for buffer of size 9")
    enforced = """[ONNXRuntimeError] : 1 : FAIL : Exception during initialization:
    /onnxruntime_src/onnxruntime/core/x.cc:467 bool X::Y(const Z<T>&) a && b was false. No kernel"""
    assert sessions.reason(RuntimeError(enforced)) == "Exception during initialization: No kernel"
    long = sessions.reason(RuntimeError(f"Node {'(x, y), ' * 999} is of an unknown operator"))
    assert (len(long) < 500, long.endswith("is of an unknown operator")) == (True, True)


def test_a_disk_that_takes_only_a_part(tmp_path):
    """NumPy tells of a full disk in numbers of items; that is put into words."""
    told = str(staging.unwritable(tmp_path, OSError("4096 requested and 0 written")))
    assert "requested" not in told
    assert "disk" in told


def test_data_that_may_not_be_read(model, monkeypatch):
    """What helps is leave to read it."""
    place = model.with_name("e.onnx")
    raw = onnx.load(model)
    raw.graph.initializer[0].CopyFrom(RAW)  # what is not raw is not saved outside
    onnx.save(raw, place, save_as_external_data=True, location="e.data", size_threshold=0)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(constants.reading, "open_regular", refuse)
    assert "that you may read" in failure(place)


def test_another_folder_between_two_rewrites(tmp_path, monkeypatch):
    """What checks the result is a process of its own: it finds the file all the same."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        (tmp_path / name / f"{name}.onnx").write_bytes(MODEL.SerializeToString())
        assert run(f"{name}.onnx", "--skip=verify").exit_code == 0
