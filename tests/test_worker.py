"""onnx in a process of its own."""

import importlib.util
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


@pytest.fixture
def fresh():
    """The worker of another interpreter, as far as it can tell: nothing has started yet."""
    spec = importlib.util.find_spec(worker.__name__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def started(monkeypatch):
    """The processes that start from now on, in order; they end with the test."""
    processes = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@deadly
def test_a_question_that_kills_has_no_answer_and_the_next_one_has(body):
    """The process dies alone, and another one takes its place."""
    assert worker.ask(worker_process.complaint, model(body).SerializeToString(), full=True) is None
    assert worker.ask(worker_process.complaint, VALID, full=True) == ""


@deadly
def test_a_model_that_kills_the_checker_is_rewritten_with_a_warning(body):
    """The checker dies of the original as well: a word about it, and the result is there."""
    result = rewrite(model(body))
    assert result.report.changed
    assert result.report.warnings == ("onnx's checker refuses this model: onnx's checker crashed",)
    assert not result.report.broken


def test_what_the_checker_says_arrives():
    """A complaint crosses over as text, and a path does as a path."""
    unknown = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relue (x) }}")
    assert "Relue" in worker.ask(worker_process.complaint, unknown.SerializeToString(), full=True)
    assert "/no/such/file" in worker.ask(worker_process.complaint, "/no/such/file", full=True)


def test_one_process_answers_all(fresh, started):
    """It starts once, ahead of the first question where that is asked for."""
    fresh.start()
    assert len(started) == 1
    for _ in range(3):
        assert fresh.ask(worker_process.complaint, VALID, full=True) == ""
    fresh.start()
    assert len(started) == 1
    assert started[0].poll() is None
    assert started[0].pid != os.getpid()


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_where_no_process_starts_ours_answers(executable, fresh, started, monkeypatch):
    """An interpreter inside another program has no file that could be started."""
    monkeypatch.setattr(sys, "executable", executable)
    fresh.start()
    assert fresh.ask(worker_process.complaint, VALID, full=True) == ""
    assert started == []


def test_an_interrupt_leaves_no_answer_behind(monkeypatch):
    """Who is interrupted while waiting does not get that answer to the next question."""

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(worker.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.ask(worker_process.complaint, b"no model", full=True)
    assert worker.ask(worker_process.complaint, VALID, full=True) == ""


def test_one_that_died_since_is_replaced(fresh, started):
    """The system may end an idle process: that is no answer to the question that comes next."""
    fresh.start()
    (idle,) = started
    idle.kill()
    idle.wait()
    assert fresh.ask(worker_process.complaint, VALID, full=True) == ""
    assert len(started) == 2


def test_an_interrupt_for_all_does_not_end_it(fresh, started):
    """Ctrl-C reaches every process of a terminal; who survives it finds the other one still there."""
    assert fresh.ask(worker_process.complaint, VALID, full=True) == ""
    (idle,) = started
    idle.send_signal(signal.SIGINT)
    assert fresh.ask(worker_process.complaint, VALID, full=True) == ""
    assert started == [idle]


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1", "#!/bin/sh\necho Hello, and a long welcome to you"])
def test_where_another_program_starts_ours_answers(program, tmp_path, fresh, monkeypatch):
    """The interpreter's file may be that of a host program, or the new process may lack onnx."""
    host = tmp_path / "host"
    host.write_text(program)
    host.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(host))
    monkeypatch.setattr(worker, "ask", fresh.ask)
    assert fresh.ask(worker_process.complaint, VALID, full=True) == ""
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
import os, pickle, signal, subprocess, sys, threading
sys.path.insert(0, {root!r})
from amp_rewrite.onnx_types import worker, worker_process
started, sent = [], threading.Event()
class Recorded(subprocess.Popen):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        started.append(self)
subprocess.Popen = Recorded
dump = pickle.dump
def announced(*arguments):
    dump(*arguments)
    sent.set()
pickle.dump = announced
ask = lambda: worker.ask(worker_process.complaint, {valid!r}, full=True)
ask()
(process,) = started
process.send_signal(signal.SIGSTOP)
sent.clear()
asking = threading.Thread(target=ask)
asking.start()
sent.wait()
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
