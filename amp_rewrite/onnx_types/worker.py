"""onnx in a process of its own: its checker and its inference can crash on a model that is not valid.

With onnx 1.23, a GatherND with a negative `batch_dims` and a LayerNormalization whose axis is out of all
bounds end the process that asks. This one starts with the first question and serves for all that follow;
where it dies of one, that has no answer, and the next question starts another.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, ParamSpec, TypeVar

from amp_rewrite.onnx_types import worker_process
from amp_rewrite.onnx_types.worker_process import Question

P = ParamSpec("P")
T = TypeVar("T")


def start() -> None:
    """Has the process start now, so that it is there when it is needed."""
    own().start()


def ask(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """What a function of `worker_process` returns; None where the process dies of it.

    Where none can be started that has onnx, as in an interpreter that is part of another program, ours
    answers.
    """
    try:
        return own().answer((function.__name__, arguments, named))
    except _NoProcessError:
        return function(*arguments, **named)


class _NoProcessError(Exception):
    """There is no interpreter to start, the system starts none, or what starts does not answer as ours."""


class Worker:
    """A process that starts when it is needed, and the pipe to it; `process` is None while there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._has_greeted = False

    def start(self) -> None:
        """Starts the process, if it can be."""
        with self._lock:
            try:
                self._started()
            except _NoProcessError:
                return

    def answer(self, question: Question) -> Any:
        """Asks, and waits; None where the process dies of it."""
        with self._lock:
            process = self._started()
            if process.stdin is None or process.stdout is None:
                return None
            try:
                self._await_greeting(process.stdout)
                pickle.dump(question, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.end()
                return None
            except BaseException:  # an interrupt: the answer would be taken for that to the next question
                self.end()
                raise

    def _await_greeting(self, answers: IO[bytes]) -> None:
        """Whatever else was started, or lacks onnx, does not greet: then there is no process to ask."""
        if self._has_greeted:
            return
        if answers.read(len(worker_process.GREETING)) != worker_process.GREETING:
            raise _NoProcessError
        self._has_greeted = True

    def _started(self) -> subprocess.Popen[bytes]:
        """The process; another one where it has died since."""
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.process, self._has_greeted = _start(), False
            atexit.register(self.end)
        return self.process

    def end(self) -> None:
        """Ends the process, if there is one; a fork inherits what runs at its end, and has no say here."""
        if self._owner != os.getpid():
            return
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None
        atexit.unregister(self.end)


def _start() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise _NoProcessError
    try:
        return subprocess.Popen(
            # -P: our modules are not to be found under their short names
            [sys.executable, "-P", worker_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _NoProcessError from error


_WORKERS: dict[int, Worker] = {}


def own() -> Worker:
    """That of this process: what a fork inherits has a pipe that is not its own, and perhaps a lock that
    another thread held and nobody opens.
    """
    return _WORKERS.setdefault(os.getpid(), Worker())
