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
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from amp_rewrite import apart_child
from amp_rewrite.apart_child import Question

P = ParamSpec("P")
T = TypeVar("T")


def start() -> None:
    """Has the process start now, so that it is there when it is needed."""
    _APART.start()


def ask(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """What a function of `apart_child` returns; None where the process dies of it.

    Where no process can be started, as in an interpreter that is part of another program, ours answers.
    """
    try:
        return _APART.answer((function.__name__, arguments, named))
    except _NoProcessError:
        return function(*arguments, **named)


class _NoProcessError(Exception):
    """There is no interpreter to start, or the system starts none."""


class _Apart:
    """The process, which starts when it is needed, and the pipe to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

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
                pickle.dump(question, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.end()
                return None
            except BaseException:  # an interrupt: the answer would be taken for that to the next question
                self.end()
                raise

    def _started(self) -> subprocess.Popen[bytes]:
        """The process; another one where it has ended, and after a fork, which must not share the pipe."""
        if self._process is not None and (self._owner != os.getpid() or self._process.poll() is not None):
            self.end()
        if self._process is None:
            self._process, self._owner = _start(), os.getpid()
            atexit.register(self.end)
        return self._process

    def end(self) -> None:
        """Ends the process, if there is one and it is ours."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None
        atexit.unregister(self.end)


def _start() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise _NoProcessError
    script = str(Path(apart_child.__file__))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", script],  # -P: our modules are not to be found under their short names
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _NoProcessError from error


_APART = _Apart()
