"""The start of the command: what it needs is imported, and what keeps it from that is said in one line."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from amp_rewrite.errors import TRACEBACK
from amp_rewrite.process import collector
from amp_rewrite.process.late_imports import postponed


def load(name: str) -> ModuleType:
    """A module of the command; where a package keeps it from starting, the process ends with one line."""
    try:
        with _interrupts_end_it(), postponed(), collector.paused():
            return importlib.import_module(name)
    except Exception as error:  # a package that is broken, or too old, fails in any way
        if os.environ.get(TRACEBACK):
            raise
        _refuse_to_start(error)


def tolerate_full_stderr() -> None:
    """Drops what cannot be written to standard error, such as on a full disk: it changes no exit code."""
    if sys.stderr is not None and sys.stderr is sys.__stderr__:
        raw = io.BufferedWriter(_Lossy(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class _Lossy(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Writes what the system accepts, and claims to have written all of it."""
        with contextlib.suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def _refuse_to_start(error: Exception) -> NoReturn:
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in ("", "amp_rewrite"):
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        problem = f"a package that it needs cannot be imported ({what})"
    else:
        problem = f"the package {_PACKAGES.get(missing, missing)} is missing"
    is_clone = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    install = f"pip install '{'.' if is_clone else 'amp-rewrite'}[cpu]'"
    print(f"amp-rewrite: {problem}; install what it needs with: {install}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


_PACKAGES = {"yaml": "PyYAML", "onnx_ir": "onnx-ir", "google": "protobuf"}
"""What packages are called, where their modules go by another name."""


@contextlib.contextmanager
def _interrupts_end_it() -> Generator[None]:
    """Has an interrupt (SIGINT) end the process as the system does it, as nothing has been done yet.

    A KeyboardInterrupt in the middle of an import is a traceback, and crashes protobuf's module in C.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
