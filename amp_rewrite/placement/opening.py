"""Models opened in a process of its own, with stub CUDA libraries where CUDA does not work."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Generator

from amp_rewrite.placement import stub_libraries
from amp_rewrite.placement.session_process import Answer, Request
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device

_CODE = "from amp_rewrite.placement import session_process; session_process.serve(stubs={stubs})"


class SessionProcess:
    """A process that opens sessions; it starts with the first request, and anew after a crash."""

    def __init__(self, *, stubs: bool) -> None:
        self._child = ChildProcess(_CODE.format(stubs=stubs), _with_stubs if stubs else None)

    def opened(self, request: Request) -> Answer:
        """What came of a request. Raises what `stub_libraries.folder` raises, TimeLimitError, and RunError
        where no process can be started.
        """
        try:
            return self._child.ask(request)
        except CrashError as error:
            return Answer(refused=f"onnxruntime crashes ({error})")

    def has_cuda(self) -> bool:
        """Whether a session on CUDA works in that process."""
        try:
            return self._child.ask(None) is True
        except CrashError:
            return False

    def end(self) -> None:
        """Ends the process, if there is one."""
        self._child.end()


def _with_stubs() -> dict[str, str]:
    paths = (str(stub_libraries.folder()), os.environ.get("LD_LIBRARY_PATH"))
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}


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
