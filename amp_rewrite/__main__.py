"""The command, under its own name or as python -m amp_rewrite: it starts here, and `cli` does the rest."""

import gc
import importlib
import sys

from amp_rewrite import collector
from amp_rewrite.late_imports import postponed


def main() -> None:
    """Runs the command that the process was started with, and ends the process with its exit code."""
    try:
        with postponed(), collector.paused():
            command = importlib.import_module("amp_rewrite.cli").main
    except KeyboardInterrupt:
        sys.exit("Aborted!")  # as click says it
    try:
        command()
    finally:
        gc.freeze()  # nothing that is left is worth a last look


if __name__ == "__main__":
    main()
