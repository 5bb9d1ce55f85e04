"""The command line: arguments -> pipeline -> exit code."""

from amp_rewrite.cli.commands import main

__all__ = ["main"]
