"""Runs that would take centuries end when they are asked to, by a signal or by a limit, and leave nothing."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from signal import SIGINT, SIGTERM

import numpy as np
import onnx
import pytest

from amp_rewrite import observe, verify
from amp_rewrite.errors import TimeLimitError
from amp_rewrite.process import interruptible
from amp_rewrite.running import sessions
from tests import text

ROOT = Path(__file__).parents[1]
ENDLESS = """g (float[4, 4] x) => (float[4, 4] y)
<float[4, 4] w, int64 n = {4611686018427387904}, bool c = {1}> {
    h = MatMul(x, w)
    y = Loop(n, c, h) <body = b (int64 i, bool ci, float[4, 4] a) => (bool co, float[4, 4] o) {
        co = Identity(ci)  o = Mul(a, a)
    }>
}"""
"""A loop of 2^62 turns."""

ONE_KERNEL = """g (float[4, 4] x) => (float[1, 1, 5001, 5001] y, float[4, 4] h)
<float[4, 4] w, int64[4] s = {1, 1, 8000, 8000}, float[1] one> {
    h = MatMul(x, w)
    a = ConstantOfShape(s)
    m = MaxPool <kernel_shape = [3000, 3000]> (a)
    y = Mul(m, one)
}"""
"""A single kernel that takes hours, which onnxruntime runs while it opens the model, to fold it."""


@pytest.fixture
def folder(tmp_path):
    """A folder for the run, with an empty one for its temporary files."""
    (tmp_path / "temporary").mkdir()
    return tmp_path


@pytest.fixture
def endless(folder):
    """The model with the loop."""
    return saved(folder, ENDLESS)


def saved(folder, graph):
    """The path of a model."""
    onnx.save(text.model(graph), folder / "model.onnx")
    return folder / "model.onnx"


def stopped(folder, number, *arguments):
    """The exit code and standard error of a run that gets a signal when a model has run for a moment."""
    code = STOPPED.format(number=int(number))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder / "temporary")},
    )
    return done.returncode, done.stderr


def left_in(folder):
    """Temporary files that are there after a run; onnxruntime keeps a file of its own."""
    names = {path.name for path in (folder / "temporary").iterdir()}
    return {name for name in names if name != ".ses" and not name.startswith("mat-debug-")}


STOPPED = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may ignore it
from amp_rewrite.process import interruptible
from amp_rewrite.__main__ import main

def told(work, stop, call=interruptible.call):
    interruptible.call = call
    threading.Timer(1, os.kill, (os.getpid(), {number})).start()
    return call(work, stop)

interruptible.call = told
main()
"""


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(SIGTERM, 128 + SIGTERM, marks=pytest.mark.slow), (SIGINT, 128 + SIGINT)]
)
def test_a_signal_ends_a_run_between_nodes(endless, folder, number, code):
    """Who asks verify to stop in the middle of a loop of 2^62 turns is heard."""
    ended, errors = stopped(folder, number, "verify", endless, endless)
    assert (ended, "Traceback" in errors) == (code, False)
    assert ("amp-rewrite: interrupted" in errors) == (number == SIGINT)
    assert left_in(folder) == set()


RUNNING = [
    ("{model}", "-o", "{out}", "--require", "verify"),
    ("bench", "{model}"),
    ("verify", "{model}", "{model}"),
]
GRAPHS = {"loop": ENDLESS, "kernel": ONE_KERNEL}
TURNS = [
    (command, graph, (SIGTERM, SIGINT)[(i + j) % 2])
    for i, command in enumerate(RUNNING)
    for j, graph in enumerate(GRAPHS)
]
"""Every command with every graph, by one of the signals in turn: both are tested above."""


@pytest.mark.slow
@pytest.mark.parametrize(("command", "graph", "number"), TURNS)
def test_a_signal_ends_whatever_runs_a_model(folder, number, command, graph):
    """A rewrite has written its result or nothing, and temporary files are gone, also after one kernel."""
    model = saved(folder, GRAPHS[graph])
    words = (word.format(model=model, out=folder / "out.onnx") for word in command)
    ended, errors = stopped(folder, number, *words)
    assert (ended, "Traceback" in errors) == (128 + number, False)
    assert {path.name for path in folder.iterdir()} <= {"model.onnx", "out.onnx", "temporary"}
    assert left_in(folder) == set()


SAMPLES = [{"x": np.ones((4, 4), np.float32)}]


def test_python_has_limits_too(endless):
    """In Python the limit is `timeout`, from any thread."""
    said = []

    def ask():
        with pytest.raises(TimeLimitError, match="longer than timeout allows") as caught:
            verify(endless, endless, SAMPLES, timeout=0.3)
        said.append(caught.value)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    assert len(said) == 1
    with pytest.raises(TimeLimitError):
        observe(endless, SAMPLES, timeout=0.3)
    assert not interruptible.is_left_behind()


def test_a_limit_is_for_all_runs_together():
    """What one took, the next one lacks; the stricter of two limits counts."""
    limit, stop = interruptible.TimeLimit(0.2), threading.Event()
    with limit.running(), pytest.raises(TimeLimitError):
        interruptible.call(stop.wait, stop.set)
    for outer in (limit, interruptible.TimeLimit(100)):
        with outer.running(), limit.running(), pytest.raises(TimeLimitError):
            interruptible.call(lambda: pytest.fail("there is no time left"), stop.set)
    assert interruptible.call(lambda: 7, stop.set) == 7


def test_an_error_is_that_of_the_work():
    """It crosses over as it is, a TimeoutError included."""
    error = TimeoutError("of its own")

    def fail():
        raise error

    with interruptible.TimeLimit(100).running(), pytest.raises(TimeoutError) as caught:
        interruptible.call(fail, lambda: None)
    assert caught.value is error


def test_a_run_that_is_told_to_stop_is_no_bad_input(endless):
    """The limit is what is said, and not that the inputs do not fit."""
    session = sessions.open_session(endless)
    with interruptible.TimeLimit(0.2).running(), pytest.raises(TimeLimitError):
        sessions.run_session(session, SAMPLES[0])
    assert not interruptible.is_left_behind()


def test_a_call_that_does_not_stop_keeps_its_thread(monkeypatch):
    """Who waited goes on, with another thread; the process knows while it has to end without the work."""
    monkeypatch.setattr(interruptible, "GRACE", 0.0)
    end = threading.Event()
    with interruptible.TimeLimit(0.01).running(), pytest.raises(TimeLimitError):
        interruptible.call(end.wait, bool)
    assert interruptible.is_left_behind()
    assert interruptible.call(int, bool) == 0
    end.set()
    while interruptible.is_left_behind():
        pass
