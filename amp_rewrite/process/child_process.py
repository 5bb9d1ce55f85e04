"""A process that answers requests, so that a crash of native code does not end the user's process."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

from amp_rewrite.errors import AmpRewriteError, RunError
from amp_rewrite.process import interruptible


class CrashError(Exception):
    """The process ended without an answer; the message says how."""


class ChildProcess:
    """A process that starts with the first request, and again after its end; it ends with this one.

    `answer` is a function of a module. `process` is None while it does not run.
    """

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.process: Any = None
        self._answer = answer
        self._connection: Connection | None = None
        self._is_ready = False

    def ask(self, request: Any, *, is_interruptible: bool = True) -> Any:
        """Return the answer to a request; with `is_interruptible` in a thread, within the time limit.

        Raises an AmpRewriteError of the other process, CrashError, TimeLimitError, and RunError if no process
        can be started.
        """
        self.start()
        process, exchange = self.process, functools.partial(self._exchange, request)
        try:
            reply = interruptible.call(exchange, process.kill) if is_interruptible else exchange()
        except (OSError, EOFError) as error:
            process.join(_CRASHING)
            self.close()
            if not self._is_ready:
                raise RunError(f"no process can be started by {sys.executable}") from error
            raise CrashError(_how(process.exitcode)) from error
        except BaseException:  # an interrupt: the next request would read this answer
            self.close()
            raise
        if isinstance(reply, AmpRewriteError):
            raise reply
        return reply

    def start(self, method: Literal["spawn", "fork"] = "spawn") -> None:
        """Start the process, unless it runs; raises RunError. Only one without threads may be forked."""
        if self.process is not None and self.process.is_alive():
            return
        self.close()
        if not sys.executable or getattr(sys, "frozen", False):
            raise RunError("no process can be started: no Python interpreter is known")
        context: Any = multiprocessing.get_context(method)
        self._connection, theirs = context.Pipe()
        inherited = self._connection if method == "fork" else None
        process = context.Process(target=_serve, args=(self._answer, theirs, inherited), daemon=True)
        try:
            with _without_main():
                process.start()
        except (OSError, AssertionError) as error:  # a daemon of multiprocessing starts no other process
            raise RunError(f"no process can be started ({error})") from error
        finally:
            theirs.close()
        self.process, self._is_ready = process, False

    def _exchange(self, request: Any) -> Any:
        assert self._connection is not None, "it has been started"
        if not self._is_ready:
            self._connection.recv()
            self._is_ready = True
        self._connection.send(request)
        return self._connection.recv()

    def close(self) -> None:
        """End the process, if it runs."""
        process, self.process = self.process, None
        if process is not None and self._connection is not None:
            process.kill()
            process.join()
            self._connection.close()


_CRASHING = 0.5
"""The seconds to wait for the exit code of a crash."""


@contextlib.contextmanager
def _without_main() -> Generator[None]:
    """Hide the user's script, which a process of multiprocessing would otherwise run again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _how(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _serve(
    answer: Callable[[Any], Any], connection: Connection, inherited: Connection | None = None
) -> NoReturn:
    """Answer requests until there are no more, discarding printed output.

    Interrupts are left to the calling process, which ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if inherited is not None:
        inherited.close()
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    connection.send("ready")
    while True:
        try:
            request = connection.recv()
        except EOFError:
            os._exit(0)  # native libraries need no orderly end
        try:
            reply = answer(request)
        except AmpRewriteError as error:
            reply = error
        connection.send(reply)
