"""onnx in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from amp_rewrite import rewrite
from amp_rewrite.onnx_types import worker, worker_process

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
VALID = onnx.parser.parse_model(
    f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu (x) }}"
).SerializeToString()
DEADLY = [
    """g (float[2,2,2] x, int64[2,1] i) => (float[2,2] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> () h = MatMul (x, w)
      y = GatherND <batch_dims = -100> (h, i)
    }""",
    """g (float[2,2] x, float[2] s) => (float[2,2] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> () h = MatMul (x, w)
      y, m, d = LayerNormalization <axis = 2147483648> (h, s)
    }""",
]
deadly = pytest.mark.parametrize("body", DEADLY, ids=["GatherND", "LayerNormalization"])


def model(body):
    """A model that kills whoever infers its shapes."""
    return onnx.parser.parse_model(f"{HEADER} {body}")


def test_a_question_that_kills_has_no_answer_and_the_next_one_has(own):
    """The process dies alone, and another one takes its place."""
    assert own.answer(COMPLAINT) == ""
    first = own.process
    assert own.answer(("no such function, which ends the process", (), {})) is None
    assert first.wait() != 0
    assert own.answer(COMPLAINT) == ""
    assert own.process is not first


@deadly
def test_what_reads_memory_that_is_not_its_own_has_no_answer_or_a_complaint(body):
    """Whether onnx crashes of these depends on what lies in its memory; the next one is answered."""
    assert worker.ask(worker_process.complaint, model(body).SerializeToString(), full=True) != ""
    assert worker.ask(worker_process.complaint, VALID, full=True) == ""


@deadly
def test_a_model_that_kills_the_checker_is_rewritten_with_a_warning(body):
    """The checker dies of the original as well: a word about it, and the result is there."""
    result = rewrite(model(body))
    assert result.report.changed
    (warning,) = result.report.warnings
    assert warning.startswith("onnx's checker rejects this model: ")
    assert not result.report.broken


def test_what_the_checker_says_arrives():
    """A complaint crosses over as text, and a path does as a path."""
    unknown = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relue (x) }}")
    assert "Relue" in worker.ask(worker_process.complaint, unknown.SerializeToString(), full=True)
    assert "/no/such/file" in worker.ask(worker_process.complaint, "/no/such/file", full=True)


COMPLAINT = ("complaint", (VALID,), {"full": True})
"""Asks what the checker has against a valid model: nothing."""


@pytest.fixture
def own():
    """A process of the test's own, which is not there yet."""
    one = worker.Worker()
    yield one
    one.end()


def test_one_process_answers_all(own):
    """It starts once, ahead of the first question where that is asked for."""
    own.start()
    first = own.process.pid
    assert [own.answer(COMPLAINT) for _ in range(3)] == ["", "", ""]
    own.start()
    assert own.process.pid == first != os.getpid()


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_where_no_process_starts_ours_answers(executable, own, monkeypatch):
    """An interpreter inside another program has no file that could be started."""
    monkeypatch.setattr(worker, "own", lambda: own)
    monkeypatch.setattr(sys, "executable", executable)
    worker.start()
    assert worker.ask(worker_process.complaint, VALID, full=True) == ""
    assert own.process is None


def test_an_interrupt_leaves_no_answer_behind(monkeypatch):
    """Who is interrupted while waiting does not get that answer to the next question."""

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(worker.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.ask(worker_process.complaint, b"no model", full=True)
    assert worker.ask(worker_process.complaint, VALID, full=True) == ""


def test_one_that_died_since_is_replaced(own):
    """The system may end an idle process: that is no answer to the question that comes next."""
    own.start()
    own.process.kill()
    own.process.wait()
    assert own.answer(COMPLAINT) == ""


def test_an_interrupt_for_all_does_not_end_it(own):
    """Ctrl-C reaches every process of a terminal; who survives it finds the other one still there."""
    assert own.answer(COMPLAINT) == ""
    idle = own.process
    idle.send_signal(signal.SIGINT)
    assert own.answer(COMPLAINT) == ""
    assert own.process is idle


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1", "#!/bin/sh\necho Hello, and a long welcome to you"])
def test_where_another_program_starts_ours_answers(program, own, tmp_path, monkeypatch):
    """The interpreter's file may be that of a host program, or the new process may lack onnx."""
    host = tmp_path / "host"
    host.write_text(program)
    host.chmod(0o755)
    monkeypatch.setattr(worker, "own", lambda: own)
    monkeypatch.setattr(sys, "executable", str(host))
    assert worker.ask(worker_process.complaint, VALID, full=True) == ""
    assert rewrite(onnx.ModelProto.FromString(VALID)).report.ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_another_thread_asks():
    """Its child asks a process of its own, and finds no lock that nobody opens."""
    code = FORKS.format(root=str(Path(__file__).parents[1]), valid=VALID)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "in the child: ''\nin the parent: ''\n", "")


FORKS = """
import os, pickle, signal, sys, threading
sys.path.insert(0, {root!r})
from amp_rewrite.onnx_types import worker, worker_process
ask = lambda: worker.ask(worker_process.complaint, {valid!r}, full=True)
ask()
process = worker.own().process
waiting, load = threading.Event(), pickle.load
pickle.load = lambda file: (waiting.set(), load(file))[1]
process.send_signal(signal.SIGSTOP)
asking = threading.Thread(target=ask)
asking.start()
waiting.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    print("in the child:", repr(ask()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
process.send_signal(signal.SIGCONT)
asking.join()
print("in the parent:", repr(ask()))
"""
"""Forks while another thread waits for an answer."""
