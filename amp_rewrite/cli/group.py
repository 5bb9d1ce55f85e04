"""A command group in which a first argument that is no subcommand means `rewrite`, a command is imported when
it is called, and every error of ours is one line and exit code 2.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.flag_words import in_flags
from amp_rewrite.errors import TRACEBACK, AmpRewriteError
from amp_rewrite.escaping import brief
from amp_rewrite.process import starting

DEFAULT = "rewrite"
OWN_FLAGS = ("--help", "-h", "--version")
BAD_INPUT = 2
"""The exit code for bad input or usage; 1 is a verdict that failed, 0 is done."""


class DefaultGroup(click.Group):
    """`amp-rewrite model.onnx` is `amp-rewrite rewrite model.onnx`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default command in front where none is named."""
        _refuse_empty(args)
        if args and args[0] not in self.commands and args[0] not in OWN_FLAGS:
            self._refuse_a_slip(args[0])
            args = [DEFAULT, *args]
        try:
            with _visible():
                return super().parse_args(ctx, args)
        except OSError as error:  # of --help, which is printed here
            raise _unprintable(error) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Imports the command that was named: the others' imports, and those for the list of commands, are
        not waited for.
        """
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and loaded(listed), rest

    def _refuse_a_slip(self, word: str) -> None:
        """A bare word that is no file, and nearly a command, was meant as the command."""
        if word.startswith("-") or Path(word).suffix:
            return
        near = difflib.get_close_matches(word, self.commands, n=1)
        if near and not Path(word).exists():  # a word that is no name of a file is near no command
            raise _OneLine(f"no command or file '{word}'; did you mean {near[0]}?")

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; what goes wrong becomes one line on standard error."""
        logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
        _let_any_name_be_printed()
        try:
            # the warnings of others say in many lines what we say in one
            with _stopping_in_order(), warnings.catch_warnings(action="ignore"), _visible():
                return super().invoke(ctx)
        except AmpRewriteError as error:
            _reraise_if_asked()
            raise _OneLine(in_flags(error)) from error
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (MemoryError, RecursionError) as error:
            _reraise_if_asked()
            raise _OneLine(f"the model is too large for this machine ({type(error).__name__})") from error
        except (
            OSError
        ) as error:  # most files are looked after where they are used: what is left is the terminal
            raise _unprintable(error) from error
        except Exception as error:
            _reraise_if_asked()
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise _OneLine(
                f"this is a fault of amp-rewrite's own ({what}); please report it with what "
                f"{TRACEBACK}=1 prints"
            ) from error


def _refuse_empty(args: Sequence[str]) -> None:
    """An argument without a character is a variable of the shell that was not set: as a path, the folder."""
    for before, arg in zip(("", *args), args, strict=False):
        empty = before if arg == "" else arg[:-1] if arg.startswith("--") and arg.endswith("=") else None
        if empty is not None:
            what = empty if empty.startswith("-") else "an argument"
            raise _OneLine(f"{what} is empty; give it a value, or leave it out")


def loaded(listed: click.Command) -> click.Command:
    """The command itself for one that is in a group's list: `amp_rewrite.cli.NAME` has it as NAME."""
    return getattr(starting.load(f"amp_rewrite.cli.{listed.name}"), str(listed.name))


@contextlib.contextmanager
def _visible() -> Generator[None]:
    """Has what click says of arguments escaped, as what we say is."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise click.UsageError(brief(error.format_message()), error.ctx) from error


def _let_any_name_be_printed() -> None:
    """A name may have characters that the terminal's encoding has not: they are printed as \\u2603."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _stopping_in_order() -> Generator[None]:
    """Has a request to end (SIGTERM) unwind what is under way, so that nothing half done is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(_BY_SIGNAL + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_BY_SIGNAL = 128
"""What shells add to the number of the signal that ended a process."""


def _unprintable(error: OSError) -> click.ClickException:
    """The one line for what could not be printed, or a path that could not be followed.

    Called from the except clause of the error.
    """
    _reraise_if_asked()
    if error.errno == errno.EPIPE:
        raise error  # who reads has enough: click ends quietly
    if error.filename is not None:
        return _OneLine(f"{error.filename}: cannot be used ({error.strerror}); check the path")
    return _OneLine(f"the output cannot be written ({error})")


def _reraise_if_asked() -> None:
    if os.environ.get(TRACEBACK):
        raise  # noqa: PLE0704 - called from an except clause, whose error it lets through


class _OneLine(click.ClickException):
    exit_code = BAD_INPUT

    def show(self, file: Any = None) -> None:
        """Prints the line on standard error."""
        click.echo(f"amp-rewrite: {brief(self.message)}", err=True, file=file)
