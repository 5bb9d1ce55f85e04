"""Calls of onnx's checker and inference in a worker process, since an invalid model can crash them.

With onnx 1.23, a GatherND with a negative `batch_dims` and a LayerNormalization with an axis far out of
bounds crash the calling process. The worker starts with the first call and serves all further ones; if a call
crashes it, or leaves its limits, the call has no result, and the next one starts a new worker.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from amp_rewrite.errors import RunError
from amp_rewrite.process import worker_process
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.process.worker_process import Call

P = ParamSpec("P")
T = TypeVar("T")


def start() -> None:
    """Start the worker in advance, so that it is ready when needed."""
    own().start()


def fork() -> None:
    """Start the worker as a fork of a process that has no threads: it need not import onnx again."""
    if hasattr(os, "fork"):
        own().child.fork(worker_process.serve)


def call(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T | None:
    """Call a function of `worker_process` in the worker; None if the call crashes it.

    If no worker with onnx can be started, as in an embedded interpreter, the function is called in this
    process.
    """
    try:
        return own().call((function.__name__, arguments, keywords))
    except RunError:
        return function(*arguments, **keywords)


def infer(function: Callable[..., T], model: bytes) -> T | None:
    """Return what onnx infers, without known integers where these are too many for it; None if it crashes."""
    result = call(function, model)
    return call(function, model, propagates_data=False) if result is None else result


class Worker:
    """A process that answers the calls of all threads, one after the other, until this process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.child = ChildProcess(worker_process.__name__)
        atexit.register(self.stop)

    def start(self) -> None:
        """Start the process, if possible."""
        with self._lock, contextlib.suppress(RunError):
            self.child.start()

    def call(self, request: Call) -> Any:
        """Wait for the result of a call; None if the call crashes the process."""
        with self._lock:
            try:
                return self.child.ask(request, is_interruptible=False)
            except CrashError:
                return None

    def stop(self) -> None:
        """Stop the process, if it runs; not from a fork, which inherits the exit handler."""
        if self._owner == os.getpid() and self.child.process is not None:
            self.child.process.kill()
            self.child.end()


_WORKERS: dict[int, Worker] = {}


def own() -> Worker:
    """Return the worker of this process.

    A fork needs its own: it inherits shared pipes, and perhaps a lock held by a thread that it lacks.
    """
    if os.getpid() not in _WORKERS:
        _WORKERS.setdefault(os.getpid(), Worker())
    return _WORKERS[os.getpid()]
