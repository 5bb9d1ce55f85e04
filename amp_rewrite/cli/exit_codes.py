"""The exit codes of the command, and all code that sets one.

    0          done; a rewrite that could not be compared is done too, unless --require-verify is given
    1          a result is not valid, a comparison failed or proves nothing, or a coverage rule is broken
    2          bad input or usage, and faults of amp-rewrite itself: one line on standard error; with many
               models, where any has that, whatever the others came to
    128 + n    ended by signal n; an interrupt (Ctrl-C) is 130

`process.startup` ends a command that cannot be imported with 2; a full standard error changes no code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Generator
from typing import Any

import click

from amp_rewrite.cli import usage_errors
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.errors import TRACEBACK, AmpRewriteError
from amp_rewrite.escaping import brief

FAILED = 1
BAD_INPUT = 2
_SIGNALLED = 128
"""What shells add to the number of the signal that ended a process."""


def fail_unless(passed: bool) -> None:
    """Ends the command with FAILED, unless its checks passed."""
    if not passed:
        raise click.exceptions.Exit(FAILED)


def end_many(*, done: bool, passed: bool) -> None:
    """Ends a command on many models with BAD_INPUT unless all were `done`, or FAILED unless all `passed`."""
    if not done:
        raise click.exceptions.Exit(BAD_INPUT)
    fail_unless(passed)


def end_rewrite(*, valid: bool, passed: bool | None, required: bool = False) -> None:
    """Ends a rewrite with FAILED where the result is not valid or its comparison failed.

    `passed` is None where there was no comparison, which is a failure only if one is `required`.
    """
    fail_unless(valid and (not required if passed is None else passed))


class OneLineError(click.ClickException):
    """An error that is printed as one line, and ends the command with BAD_INPUT."""

    exit_code = BAD_INPUT

    def show(self, file: Any = None) -> None:
        """Prints the line on standard error."""
        click.echo(f"amp-rewrite: {brief(self.message)}", err=True, file=file)


@contextlib.contextmanager
def errors_as_one_line() -> Generator[None]:
    """Turns every error into a OneLineError, whose line is escaped when it is printed.

    With the environment variable TRACEBACK, errors pass unchanged.
    """
    try:
        yield
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit, click.Abort):
        raise
    except click.UsageError as error:
        raise OneLineError(usage_errors.line(error)) from error
    except click.ClickException:
        raise
    except Exception as error:
        has_no_reader = isinstance(error, OSError) and error.errno == errno.EPIPE  # click ends quietly
        if os.environ.get(TRACEBACK) or has_no_reader:
            raise
        raise OneLineError(_line(error)) from error


def _line(error: Exception) -> str:
    if isinstance(error, AmpRewriteError):
        return in_flags(error)
    if isinstance(error, (MemoryError, RecursionError)):
        return f"the model is too large for this machine ({type(error).__name__})"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be used ({error.strerror}); check the path"
    if isinstance(error, OSError):  # files are handled where they are used: this is standard output
        _drop_output()
        return f"the output cannot be written ({error})"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"this is a fault of amp-rewrite's own ({what}); please report it with what {TRACEBACK}=1 prints"


def _drop_output() -> None:
    """Sends what is still buffered for standard output nowhere: written at exit, it would fail once more."""
    with contextlib.suppress(OSError):  # what stands in for standard output may have no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def interrupt_as_exit() -> Generator[None]:
    """Ends the command with one line and the exit code of SIGINT where it is interrupted (Ctrl-C)."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\namp-rewrite: interrupted; no file is left half-written", err=True)
        raise click.exceptions.Exit(_SIGNALLED + signal.SIGINT) from None


@contextlib.contextmanager
def sigterm_as_exit() -> Generator[None]:
    """Makes SIGTERM unwind the stack like an exception, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(_SIGNALLED + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
