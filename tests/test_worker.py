"""onnx in a worker process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import onnx
import pytest

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.errors import RunError
from amp_rewrite.process import worker
from amp_rewrite.process.child_process import ChildProcess, CrashError
from tests import text

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
VALID = onnx.parser.parse_model(
    f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu (x) }}"
).SerializeToString()
CRASHING = [
    """g (float[2,2,2] x, int64[2,1] i) => (float[2,2] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> () h = MatMul (x, w)
      y = GatherND <batch_dims = -100> (h, i)
    }""",
    """g (float[2,2] x, float[2] s) => (float[2,2] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> () h = MatMul (x, w)
      y, m, d = LayerNormalization <axis = 2147483648> (h, s)
    }""",
]
crashing = pytest.mark.parametrize("body", CRASHING, ids=["GatherND", "LayerNormalization"])


def model(body):
    """A model that crashes shape inference."""
    return onnx.parser.parse_model(f"{HEADER} {body}")


def test_a_call_that_crashes_the_worker_has_no_result(own):
    """Only the worker dies, and the next call starts another."""
    assert own.ask(COMPLAINT) == ""
    first = own.process
    with pytest.raises(CrashError, match="exit code 1"):
        own.ask(("no such function, which ends the process", (), {}))
    assert own.ask(COMPLAINT) == ""
    assert own.process is not first


@crashing
def test_an_out_of_bounds_read_has_no_result_or_a_complaint(body):
    """Whether onnx crashes depends on the content of its memory; the next call works."""
    assert worker.call(worker.complaint, model(body).SerializeToString(), full=True) != ""
    assert worker.call(worker.complaint, VALID, full=True) == ""


@pytest.mark.parametrize(
    "body",
    [CRASHING[0], pytest.param(CRASHING[1], marks=pytest.mark.slow)],
    ids=["GatherND", "LayerNormalization"],
)
def test_a_model_that_crashes_the_checker_is_rewritten_with_a_warning(body):
    """The original crashes the checker as well: there is a warning, and a result."""
    result = rewrite(model(body))
    assert result.report.changed
    (warning,) = text.complaints(result)
    assert warning.startswith("onnx's checker rejects this model: ")
    assert not result.report.broken


LONG = (
    "n = Constant <value_int = 16777216> () a = Constant <value_int = 0> () b = Constant <value_int = 1> ()"
)
LONGS = {
    "Range": f"{LONG} v = Range (a, n, b)",
    "Concat": "c0 = Shape (x)"
    + "".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(24))
    + "v = Identity (c24)",
    "ConstantOfShape": "n = Constant <value_ints = [16777216]> () v = ConstantOfShape (n)",
}
"""Values of 16 million elements, of which onnx's inference makes a message each: 2 GB."""


LIMITED = """
import resource, sys
import onnx
from amp_rewrite.process import worker
for path in sys.argv[1:]:
    assert worker.infer(onnx.load(path)), path
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not limit memory")
def test_inference_takes_a_limited_amount_of_memory(tmp_path):
    """Types are inferred all the same, without the elements.

    Another process asks: one that is started from a large process counts that one's pages too.
    """
    paths = [tmp_path / long for long in LONGS]
    for path in paths:
        body = f"g (float[2] x) => (float[2] y) {{ {LONGS[path.name]} f = Cast <to = 1> (v) y = Relu (x) }}"
        onnx.save(model(body), path)
    done = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, check=True)
    assert 100_000 < int(done.stdout) < 1 << 20  # kB


ENDLESS = f"""g (float[2,2] x) => (float[2,2] y) {{ {LONGS["Range"].replace("16777216", str(1 << 40))}
    f = Cast <to = 1> (v) r = ReduceSum <keepdims = 0> (f) h = MatMul (x, x) y = Add (h, r) }}"""
"""Sums up Range(0, 2^40, 1), which no machine holds."""


def test_an_endless_constant_is_rewritten():
    """Nothing computes it."""
    assert rewrite(model(ENDLESS), Options(certify=False)).report.ok


@pytest.mark.slow
def test_an_endless_constant_is_not_computed_for_a_proof():
    """A result that stores the sum is not proved."""
    stored = model(ENDLESS)
    del stored.graph.node[3:6]
    stored.graph.initializer.add(name="r", data_type=1, float_data=[1])
    assert "too large" in certify(model(ENDLESS), stored).problem


def test_the_checkers_error_is_returned():
    """The error is text, and a path is checked as a path."""
    unknown = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relue (x) }}")
    assert "Relue" in worker.call(worker.complaint, unknown.SerializeToString(), full=True)
    assert "/no/such/file" in worker.call(worker.complaint, "/no/such/file", full=True)


COMPLAINT = ("complaint", (VALID,), {"full": True})
"""A call of the checker on a valid model: no complaint."""


@pytest.fixture
def own():
    """A worker of the test's own, not started yet."""
    one = ChildProcess(worker.answer)
    yield one
    one.close()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_one_process_serves_all_calls(own, method):
    """It starts once, before the first call if requested."""
    own.start(method)
    first = own.process.pid
    assert [own.ask(COMPLAINT) for _ in range(3)] == ["", "", ""]
    own.start()
    assert own.process.pid == first != os.getpid()


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_without_an_interpreter_this_process_calls(executable, own, monkeypatch):
    """An interpreter embedded in another program has no executable."""
    monkeypatch.setattr(worker, "_worker", lambda _: (own, threading.Lock()))
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(executable))
    worker.start()
    assert worker.call(worker.complaint, VALID, full=True) == ""
    assert own.process is None


def test_a_script_is_not_run_again(tmp_path):
    """A script that calls at its top, as few guard theirs, is what multiprocessing would import once more."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(valid=VALID))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("once ''\n", "")


SCRIPT = """
from amp_rewrite.errors import RunError
from amp_rewrite.process import worker
print("once", end=" ")
print(repr(worker.call(worker.complaint, {valid!r}, full=True)))
"""


def test_an_interrupt_leaves_no_result_behind(monkeypatch):
    """After an interrupt while waiting, the next call does not return the old result."""

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.call(worker.complaint, b"no model", full=True)
    assert worker.call(worker.complaint, VALID, full=True) == ""


def test_a_dead_worker_is_replaced(own):
    """The system may kill an idle process: the next call starts another."""
    own.start()
    own.process.kill()
    own.process.join()
    assert own.ask(COMPLAINT) == ""


def test_an_interrupt_of_the_process_group_does_not_stop_the_worker(own):
    """Ctrl-C reaches every process of a terminal; if the parent survives it, so does the worker."""
    assert own.ask(COMPLAINT) == ""
    idle = own.process
    os.kill(idle.pid, signal.SIGINT)
    assert own.ask(COMPLAINT) == ""
    assert own.process is idle


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1", "#!/bin/sh\necho Hello, and a long welcome to you"])
def test_with_another_program_as_interpreter_this_process_calls(program, own, tmp_path, monkeypatch):
    """The executable may be a host program, or the new process may lack onnx."""
    host = tmp_path / "host"
    host.write_text(program)
    host.chmod(0o755)
    monkeypatch.setattr(worker, "_worker", lambda _: (own, threading.Lock()))
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(host))
    assert worker.call(worker.complaint, VALID, full=True) == ""
    assert rewrite(onnx.ModelProto.FromString(VALID)).report.ok


def test_a_fork_that_fails_is_no_error(monkeypatch):
    """The first call does without a worker, or starts one."""

    def fail(*_):
        raise RunError("no process can be started")

    monkeypatch.setattr(ChildProcess, "start", fail)
    worker.fork()
    assert worker.call(worker.complaint, b"", full=False) != ""
