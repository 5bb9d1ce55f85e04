"""A process that answers requests, so that a crash of native code ends that process, and not the user's."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from amp_rewrite.errors import RunError
from amp_rewrite.process import interruptible

_FIRST = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
"""Finds the modules that this process finds, wherever that was started."""


class CrashError(Exception):
    """The process ended without an answer; the message says how."""


class ChildProcess:
    """A process that starts with the first request, and anew after a crash.

    `code` is Python that calls `serve`; `environment` gives its environment variables, this process' own
    without it.
    """

    def __init__(self, code: str, environment: Callable[[], Mapping[str, str]] | None = None) -> None:
        self._code = code
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, request: Any) -> Any:
        """The answer to a request.

        Raises CrashError, TimeLimitError, RunError where no process can be started, and what `environment`
        raises.
        """
        child = self._child or self._started()
        try:
            return interruptible.call(functools.partial(_answer, child, request), child.kill)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.end()
            raise CrashError(_how(child.returncode)) from error
        except BaseException:
            self.end()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        environment = None if self._environment is None else self._environment()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-c", _FIRST + self._code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as error:
            raise RunError(f"no process can be started ({error.strerror})") from error
        if self._child.stdin is not None:
            pickle.dump(sys.path, self._child.stdin)
        return self._child

    def end(self) -> None:
        """Ends the process, if there is one."""
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in filter(None, (child.stdin, child.stdout)):
            with contextlib.suppress(OSError):  # of what is still to be written to a process that is gone
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_CRASHING)
        child.kill()
        child.wait()


_CRASHING = 0.5
"""The seconds that a crash may take to show in the exit code."""


def _how(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _answer(child: subprocess.Popen[bytes], request: Any) -> Any:
    if child.stdin is None or child.stdout is None:
        raise EOFError
    pickle.dump(request, child.stdin)
    child.stdin.flush()
    return pickle.load(child.stdout)


def serve(answer: Callable[[Any], Any]) -> NoReturn:
    """In that process: answers requests until there are no more. Nothing that is printed is seen.

    Interrupts are for the process that asks: it ends this one, if it ends.
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
