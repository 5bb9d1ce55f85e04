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
"""The greeting before all answers, sent only by a Python that has imported the needed modules."""

_FIRST = f"""import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
{{}}
sys.stdout.buffer.write({_GREETING!r})
sys.stdout.flush()
"""
"""The start of the child's code: it adopts our module search path, runs the needed imports, and greets."""


class CrashError(Exception):
    """The process ended without an answer; the message says how."""


class ChildProcess:
    """A process that starts with the first request, and again after its end.

    `code` is Python that calls `serve`, after imports that it `needs`. `process` is None while it does not
    run.
    """

    def __init__(self, code: str, needs: str = "") -> None:
        self._code = _FIRST.format(needs) + code
        self._has_greeted = False
        self.process: subprocess.Popen[bytes] | None = None

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

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, unless it runs; raises RunError."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.end()
        if not sys.executable or getattr(sys, "frozen", False):
            raise RunError("no process can be started: no Python interpreter is known")
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", self._code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise RunError(f"no process can be started ({error.strerror})") from error
        self.process, self._has_greeted = child, False
        with contextlib.suppress(OSError):  # it ended: reading the first answer fails
            _send(child, sys.path)
        return child

    def _exchange(self, child: subprocess.Popen[bytes], request: Any) -> Any:
        assert child.stdout is not None, "it has a pipe"
        if not self._has_greeted:
            if child.stdout.read(len(_GREETING)) != _GREETING:
                raise RunError(
                    f"no process can be started: {sys.executable} is not Python, or lacks packages"
                )
            self._has_greeted = True
        _send(child, request)
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


def _how(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _send(child: subprocess.Popen[bytes], request: Any) -> None:
    assert child.stdin is not None, "it has a pipe"
    pickle.dump(request, child.stdin)
    child.stdin.flush()


def serve(answer: Callable[[Any], Any]) -> NoReturn:
    """Answer requests in that process until there are no more, discarding printed output.

    Interrupts are left to the calling process, which ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # native libraries need no orderly end
        answers.write(pickle.dumps(answer(request)))
        answers.flush()
