"""Calls of onnx's checker and inference in a worker process, since an invalid model can crash them.

With onnx 1.23, a GatherND with a negative `batch_dims` and a LayerNormalization with an axis far out of
bounds crash the calling process. The worker starts with the first call and serves all further ones, one after
the other; if a call crashes it, or leaves its limits, the call has no result, and the next one starts a new
worker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from amp_rewrite.errors import RunError
from amp_rewrite.process import worker_process
from amp_rewrite.process.child_process import ChildProcess, CrashError

P = ParamSpec("P")
T = TypeVar("T")


def start() -> None:
    """Start the worker in advance, so that it is ready when needed."""
    child, lock = _worker(os.getpid())
    with lock, contextlib.suppress(RunError):
        child.start()


def fork() -> None:
    """Start the worker as a fork of a process that has no threads: it need not import onnx again."""
    if hasattr(os, "fork"):
        with contextlib.suppress(RunError):  # the first call does without a worker
            _worker(os.getpid())[0].start("fork")


def call(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T | None:
    """Call a function of `worker_process` in the worker; None if the call crashes it.

    If no worker with onnx can be started, as in an embedded interpreter, the function is called in this
    process.
    """
    child, lock = _worker(os.getpid())
    try:
        with lock:
            return child.ask((function.__name__, arguments, keywords), is_interruptible=False)
    except CrashError:
        return None
    except RunError:
        return function(*arguments, **keywords)


def infer(function: Callable[..., T], model: bytes) -> T | None:
    """Return what onnx infers, without known integers where these are too many for it; None if it crashes."""
    result = call(function, model)
    return call(function, model, propagates_data=False) if result is None else result


@functools.cache
def _worker(_process: int) -> tuple[ChildProcess, threading.Lock]:
    """Return the worker of a process. A fork has its own: a thread that it lacks may hold the lock."""
    return ChildProcess(worker_process.answer), threading.Lock()
