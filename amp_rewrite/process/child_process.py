"""A process that answers requests, so that a crash of native code does not end the user's process."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from amp_rewrite.errors import RunError
from amp_rewrite.process import interruptible

_GREETING = b"amp-rewrite answers"
"""What comes before all answers: only a Python that has imported the module sends it."""

_CODE = """import importlib, pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
importlib.import_module({!r}).serve()
"""
"""The child's code: it adopts our module search path."""


class CrashError(Exception):
    """The process ended without an answer; the message says how."""


class _Fork:
    """A fork of this process that calls a function, with what is used here of a Popen."""

    def __init__(self, serve: Callable[[], NoReturn]) -> None:
        (requests, to_child), (from_child, answers) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(to_child)
                os.close(from_child)
                os.dup2(requests, 0)
                os.dup2(answers, 1)
                serve()
            finally:
                os._exit(1)
        os.close(requests)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(to_child, "wb"), os.fdopen(from_child, "rb")

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.wait(flags=os.WNOHANG)

    def wait(self, timeout: float | None = None, flags: int = 0) -> int | None:
        """Wait for the end, which comes soon once the pipes are closed."""
        del timeout
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, flags)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def kill(self) -> None:
        """End it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ChildProcess:
    """A process that starts with the first request, and again after its end.

    `module` has a function `serve`, which calls that of this module. `process` is None while it does not run.
    """

    def __init__(self, module: str) -> None:
        self._code = _CODE.format(module)
        self._has_greeted = False
        self.process: subprocess.Popen[bytes] | _Fork | None = None

    def ask(self, request: Any, *, is_interruptible: bool = True) -> Any:
        """Return the answer to a request; with `is_interruptible` in a thread, within the time limit.

        Raises CrashError, TimeLimitError, and RunError if no process can be started.
        """
        child = self.start()
        exchange = functools.partial(self._exchange, child, request)
        try:
            return interruptible.call(exchange, child.kill) if is_interruptible else exchange()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.end()
            raise CrashError(_how(child.returncode)) from error
        except BaseException:  # an interrupt: the next request would read this answer
            child.kill()
            self.end()
            raise

    def fork(self, serve: Callable[[], NoReturn]) -> None:
        """Start the process as a copy of this one, which has imported the module; it must have no threads."""
        self.process, self._has_greeted = _Fork(serve), False

    def start(self) -> subprocess.Popen[bytes] | _Fork:
        """Start the process, unless it runs; raises RunError."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.end()
        if not sys.executable or getattr(sys, "frozen", False):
            raise RunError("no process can be started: no Python interpreter is known")
        command = [sys.executable, "-P", "-c", self._code]
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise RunError(f"no process can be started ({error.strerror})") from error
        self.process, self._has_greeted = child, False
        with contextlib.suppress(OSError):  # it ended: reading the first answer fails
            _send(child.stdin, sys.path)
        return child

    def _exchange(self, child: subprocess.Popen[bytes] | _Fork, request: Any) -> Any:
        assert child.stdout is not None, "it has a pipe"
        if not self._has_greeted:
            if child.stdout.read(len(_GREETING)) != _GREETING:
                raise RunError(
                    f"no process can be started: {sys.executable} is not Python, or lacks packages"
                )
            self._has_greeted = True
        _send(child.stdin, request)
        return pickle.load(child.stdout)

    def end(self) -> None:
        """End the process, if it runs."""
        child, self.process = self.process, None
        if child is None:
            return
        for pipe in filter(None, (child.stdin, child.stdout)):
            with contextlib.suppress(OSError):  # from buffered data for a process that has ended
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_CRASHING)
        child.kill()
        child.wait()


_CRASHING = 0.5
"""The seconds to wait for the exit code of a crash."""


def _how(code: int | None) -> str:
    with contextlib.suppress(ValueError, TypeError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _send(pipe: Any, request: Any) -> None:
    pickle.dump(request, pipe)
    pipe.flush()


def serve(answer: Callable[[Any], Any]) -> NoReturn:
    """Answer requests in that process until there are no more, discarding printed output.

    Interrupts are left to the calling process, which ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    answers.write(_GREETING)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    answers.flush()
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            os._exit(0)  # native libraries need no orderly end
        _send(answers, answer(request))
