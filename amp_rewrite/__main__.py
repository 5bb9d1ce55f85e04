"""The command, under its own name or as python -m amp_rewrite: it starts here, and `cli` does the rest."""

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

from amp_rewrite.errors import TRACEBACK
from amp_rewrite.process import collector, stoppable
from amp_rewrite.process.late_imports import postponed


def main() -> None:
    """Runs the command that the process was started with, and ends the process with its exit code."""
    with _interrupts_end_it(), postponed(), collector.paused():
        command = _command()
    try:
        command()
    except SystemExit as ended:
        if stoppable.is_left_behind():
            _end_at_once(ended)
        raise
    finally:
        gc.freeze()  # nothing that is left is worth a last look


def _command() -> Callable[[], object]:
    """The command itself; where a package keeps it from starting, the process ends with one line."""
    try:
        return importlib.import_module("amp_rewrite.cli").main
    except Exception as error:  # a package that is broken, or too old, fails in any way
        if os.environ.get(TRACEBACK):
            raise
        _refuse_to_start(error)


def _refuse_to_start(error: Exception) -> NoReturn:
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in ("", __package__):
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        problem = f"a package that it needs cannot be imported ({what})"
    else:
        problem = f"the package {_PACKAGES.get(missing, missing)} is missing"
    is_clone = (Path(__file__).parents[1] / "pyproject.toml").is_file()
    install = f"pip install '{'.' if is_clone else 'amp-rewrite'}[cpu]'"
    print(f"amp-rewrite: {problem}; install what it needs with: {install}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


_PACKAGES = {"yaml": "PyYAML", "onnx_ir": "onnx-ir", "google": "protobuf"}
"""What packages are called, where their modules go by another name."""


def _end_at_once(ended: SystemExit) -> None:
    """Ends the process without the interpreter's own way out, which would take onnxruntime down while a
    thread runs in it.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(ended.code if isinstance(ended.code, int) else 1)


@contextlib.contextmanager
def _interrupts_end_it() -> Generator[None]:
    """Has an interrupt (SIGINT) end the process at once, as nothing has been done yet.

    A KeyboardInterrupt in the middle of an import crashes protobuf's module, which is in C.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"Aborted!\n")  # as click says it
    os._exit(1)


if __name__ == "__main__":
    main()
