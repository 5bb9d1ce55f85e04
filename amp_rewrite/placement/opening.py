"""Models opened in a process of its own, with stub CUDA libraries where CUDA does not work."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Generator
from typing import Any

from amp_rewrite.errors import RunError
from amp_rewrite.placement import stub_libraries
from amp_rewrite.placement.session_process import Answer, Request
from amp_rewrite.process import interruptible
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device

_CODE = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from amp_rewrite.placement import session_process; session_process.serve(stubs={stubs})"
)
"""Finds the modules that this process finds, wherever that was started."""


class SessionProcess:
    """A process that opens sessions; it starts with the first request, and anew after a crash."""

    def __init__(self, *, stubs: bool) -> None:
        self._stubs = stubs
        self._child: subprocess.Popen[bytes] | None = None

    def opened(self, request: Request) -> Answer:
        """What came of a request. Raises what `stub_libraries.folder` raises, TimeLimitError, and RunError
        where no process can be started.
        """
        answer = self._asked(request)
        return answer if isinstance(answer, Answer) else Answer(refused=f"onnxruntime crashes ({answer})")

    def has_cuda(self) -> bool:
        """Whether a session on CUDA works in that process."""
        return self._asked(None) is True

    def _asked(self, request: Request | None) -> Any:
        """The answer; text that says how the process ended where there is none."""
        child = self._child or self._started()
        try:
            return interruptible.call(functools.partial(_answer, child, request), child.kill)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.end()
            return f"exit code {child.returncode}"
        except BaseException:
            self.end()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self._stubs:
            paths = (str(stub_libraries.folder()), environment.get("LD_LIBRARY_PATH"))
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE.format(stubs=self._stubs)],
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


def _answer(child: subprocess.Popen[bytes], request: Request | None) -> Any:
    if child.stdin is None or child.stdout is None:
        raise EOFError
    pickle.dump(request, child.stdin)
    child.stdin.flush()
    return pickle.load(child.stdout)


@contextlib.contextmanager
def session_process(device: Device) -> Generator[SessionProcess]:
    """A process for sessions on a device, with stub libraries for CUDA where CUDA does not work.

    Raises MissingPackageError without onnxruntime, or for CUDA without onnxruntime-gpu.
    """
    process = SessionProcess(stubs=needs_stubs(device))
    try:
        yield process
    finally:
        process.end()


@functools.cache
def needs_stubs(device: Device) -> bool:
    """Whether a session on that device needs the stub libraries: for CUDA, where CUDA does not work.

    Raises MissingPackageError as `session_process` does.
    """
    if device is not Device.CUDA:
        sessions.onnxruntime()
        return False
    stub_libraries.installed()
    if not _has_driver():
        return True
    process = SessionProcess(stubs=False)
    try:
        return not process.has_cuda()
    finally:
        process.end()


def _has_driver() -> bool:
    """Whether CUDA's driver can be loaded; asked in a process of its own, since loading it stays."""
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    asked = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=False)
    return asked.returncode == 0
