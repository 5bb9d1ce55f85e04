"""The command, under its own name or as python -m amp_rewrite: it starts here, and `cli` does the rest."""

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Generator

from amp_rewrite import collector, stoppable
from amp_rewrite.late_imports import postponed


def main() -> None:
    """Runs the command that the process was started with, and ends the process with its exit code."""
    with _interrupts_end_it(), postponed(), collector.paused():
        command = importlib.import_module("amp_rewrite.cli").main
    try:
        command()
    except SystemExit as ended:
        if stoppable.is_left_behind():
            _end_at_once(ended)
        raise
    finally:
        gc.freeze()  # nothing that is left is worth a last look


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
