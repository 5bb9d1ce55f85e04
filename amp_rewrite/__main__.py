"""Starts the command, as amp-rewrite or python -m amp_rewrite."""

import contextlib
import gc
import os
import sys

from amp_rewrite.process import interruptible, startup


def main() -> None:
    """Run the command of `sys.argv`, and end the process with its exit code."""
    startup.reopen_closed_streams()
    command = startup.load("amp_rewrite.cli").main
    try:
        command()
    except SystemExit as ended:
        if interruptible.is_left_behind():
            _end_at_once(ended)
        raise
    finally:
        gc.freeze()  # the process ends: skip a last collection


def _end_at_once(ended: SystemExit) -> None:
    """End the process without Python's shutdown, which would unload onnxruntime under a running thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(ended.code if isinstance(ended.code, int) else 1)


if __name__ == "__main__":
    main()
