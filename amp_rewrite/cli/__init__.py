"""The command line: arguments -> pipeline -> exit code."""

from amp_rewrite.cli.main import main

__all__ = ["main"]
