"""Calls onnx's checker and inference in a worker process, since an invalid model can crash them.

With onnx 1.23, a GatherND with a negative `batch_dims` and a LayerNormalization with an axis far out of
bounds crash the calling process. The worker starts with the first call and serves all further ones; if a call
crashes it, the call has no result, and the next one starts a new worker.
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

from amp_rewrite.process import worker_process
from amp_rewrite.process.worker_process import Call

P = ParamSpec("P")
T = TypeVar("T")


def start() -> None:
    """Starts the worker in advance, so that it is ready when it is needed."""
    own().start()


def call(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """Calls a function of `worker_process` in the worker; None if the call crashes it.

    If no worker with onnx can be started, as in an interpreter that is embedded in another program, the
    function is called in this process.
    """
    try:
        return own().call((function.__name__, arguments, named))
    except _NoProcessError:
        return function(*arguments, **named)


class _NoProcessError(Exception):
    """No interpreter is known, the system cannot start one, or the program that started is not our worker."""


class Worker:
    """A process that starts when it is needed, with pipes to it; `process` is None while there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._has_greeted = False

    def start(self) -> None:
        """Starts the process, if that is possible."""
        with self._lock:
            try:
                self._started()
            except _NoProcessError:
                return

    def call(self, asked: Call) -> Any:
        """The result of a call, after waiting for it; None if the call crashes the process."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None, "it has a pipe"
            assert process.stdout is not None, "it has a pipe"
            try:
                self._await_greeting(process.stdout)
                pickle.dump(asked, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.stop()
                return None
            except BaseException:  # an interrupt: the result would be read as that of the next call
                self.stop()
                raise

    def _await_greeting(self, answers: IO[bytes]) -> None:
        """Raises _NoProcessError if the process is not our worker: others do not send the greeting."""
        if self._has_greeted:
            return
        if answers.read(len(worker_process.GREETING)) != worker_process.GREETING:
            raise _NoProcessError
        self._has_greeted = True

    def _started(self) -> subprocess.Popen[bytes]:
        """The process; a new one if it has died."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self.process, self._has_greeted = _spawned(), False
            atexit.register(self.stop)
        return self.process

    def stop(self) -> None:
        """Stops the process, if there is one; not from a fork, which inherits the exit handler."""
        if self._owner != os.getpid():
            return
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None
        atexit.unregister(self.stop)


def _spawned() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise _NoProcessError
    try:
        return subprocess.Popen(
            # -P: the worker must not import our modules by their short names
            [sys.executable, "-P", worker_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _NoProcessError from error


_WORKERS: dict[int, Worker] = {}


def own() -> Worker:
    """The worker of this process. A fork needs its own: it inherits shared pipes, and perhaps a lock held by
    a thread that it does not have.
    """
    return _WORKERS.setdefault(os.getpid(), Worker())
