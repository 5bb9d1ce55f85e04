"""The command, under its own name or as python -m amp_rewrite: it starts here, and `cli` does the rest."""

import contextlib
import gc
import os
import sys

from amp_rewrite.process import interruptible, startup


def main() -> None:
    """Runs the command that the process was started with, and ends the process with its exit code."""
    startup.tolerate_full_stderr()
    command = startup.load("amp_rewrite.cli").main
    try:
        command()
    except SystemExit as ended:
        if interruptible.is_left_behind():
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


if __name__ == "__main__":
    main()
