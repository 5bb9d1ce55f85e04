"""The exit codes of the command, and all code that sets one.

    0          done; a rewrite that could not be compared is done too, unless --require verify is given
    1          a result is not valid, a comparison failed or proves nothing on given inputs, or a coverage
               rule is broken
    2          bad input or usage, or an internal error: one line on standard error; with many models, if any
               has it, whatever the others return
    128 + n    ended by signal n; an interrupt (Ctrl-C) is 130

`process.startup` ends a command that cannot be imported with 2; a pipe or standard stream that is closed
changes no code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator
from typing import Any

import click

from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.errors import TRACEBACK, AmpRewriteError
from amp_rewrite.process.startup import drop
from amp_rewrite.text import brief

FAILED = 1
BAD_INPUT = 2
_SIGNALLED = 128
"""The offset that shells add to the number of the signal that ended a process."""


def fail_unless(is_ok: bool) -> None:
    """End the command with FAILED unless its checks passed."""
    if not is_ok:
        raise click.exceptions.Exit(FAILED)


def end_rewrite(*, valid: bool, verdict_ok: bool | None, required: bool = False) -> None:
    """End a rewrite with FAILED where the result is not valid or its comparison failed.

    A missing comparison (None) fails only if one is `required`.
    """
    fail_unless(valid and (not required if verdict_ok is None else verdict_ok))


class OneLineError(click.ClickException):
    """An error that is printed as one line, and ends the command with BAD_INPUT."""

    exit_code = BAD_INPUT

    def show(self, file: Any = None) -> None:
        """Prints the line on standard error."""
        click.echo(f"amp-rewrite: {brief(self.message)}", err=True, file=file)


@contextlib.contextmanager
def errors_as_one_line() -> Generator[None]:
    """Convert every error to a OneLineError, whose line is escaped when it is printed.

    With the environment variable TRACEBACK, errors pass unchanged.
    """
    try:
        yield
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit, click.Abort):
        raise
    except click.UsageError as error:
        raise OneLineError(usage_line(error)) from error
    except click.ClickException:
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        raise OneLineError(_line(error)) from error


def _line(error: Exception) -> str:
    if isinstance(error, AmpRewriteError):
        return in_flags(error)
    if isinstance(error, (MemoryError, RecursionError)):
        more = "; allow this process more memory (ulimit -v)" if isinstance(error, MemoryError) else ""
        return f"the model is too large for this machine ({type(error).__name__}){more}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be used ({error.strerror}); check the path"
    if isinstance(error, OSError):  # errors of files are caught elsewhere: this is standard output
        drop(sys.stdout)
        return f"the output cannot be written ({error})"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"this is a fault of amp-rewrite's own ({what}); please report it with what {TRACEBACK}=1 prints"


@contextlib.contextmanager
def interrupt_as_exit() -> Generator[None]:
    """End the command with one line and the exit code of SIGINT where it is interrupted (Ctrl-C)."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\namp-rewrite: interrupted; no file is left half-written", err=True)
        raise click.exceptions.Exit(_SIGNALLED + signal.SIGINT) from None


@contextlib.contextmanager
def sigterm_as_exit() -> Generator[None]:
    """Make SIGTERM unwind the stack like an exception, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(_SIGNALLED + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def usage_line(error: click.UsageError) -> str:
    """Return the error of click as one line, with the likely flag, or the help to read."""
    text = " ".join(error.format_message().split())
    command = None if error.ctx is None else error.ctx.command
    of = "" if command is None or isinstance(command, click.Group) else f" {command.name}"
    return text if text.endswith("?") else f"{text.removesuffix('.')}; see amp-rewrite{of} --help"
