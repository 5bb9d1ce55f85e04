"""The command `amp-rewrite`: its subcommands, each imported only when it is called.

A first argument that is not a subcommand means `rewrite`.
"""

from __future__ import annotations

import glob
import io
import logging
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from amp_rewrite import version
from amp_rewrite.cli.exit_codes import (
    OneLineError,
    errors_as_one_line,
    interrupt_as_exit,
    sigterm_as_exit,
)
from amp_rewrite.process import startup
from amp_rewrite.text import nearest

_DEFAULT = "rewrite"
_GROUP_FLAGS = ("--help", "-h", "--version")


class _DefaultGroup(click.Group):
    """`amp-rewrite model.onnx` is `amp-rewrite rewrite model.onnx`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default subcommand where none is named."""
        _refuse_empty(args)
        if args and args[0] not in self.commands and args[0] not in _GROUP_FLAGS:
            near = nearest(args[0], self.commands)
            if near and not Path(args[0]).exists():
                raise OneLineError(f"no command or file '{args[0]}'; did you mean {near}?")
            args = [_DEFAULT, *args]
        with errors_as_one_line():  # --help is printed here
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in declaration order, the most common first."""
        del ctx  # the name must match click's
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands that most users need, and then the others."""
        del ctx  # as above
        rows = [(name, str(command.help)) for name, command in self.commands.items()]
        for title, section in (("Commands", rows[:_FIRST]), ("Advanced", rows[_FIRST:])):
            with formatter.section(title):
                formatter.write_dl(section)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands and flags, and models, which the first argument may be."""
        completions = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return completions
        models = sorted(Path().glob(f"{glob.escape(incomplete)}*.onnx"))
        return [*completions, *(CompletionItem(str(path)) for path in models)] or [
            CompletionItem(incomplete, "file")
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import and return the subcommand."""
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub and loaded(stub), rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, without third-party warnings and logs, which messages of ours cover."""
        logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # for names that its encoding cannot represent
        quiet = warnings.catch_warnings(action="ignore")
        with sigterm_as_exit(), interrupt_as_exit(), quiet, errors_as_one_line():
            return super().invoke(ctx)


def _refuse_empty(args: Sequence[str]) -> None:
    """Raise OneLineError for an empty argument, such as an unset shell variable: as a path it is `.`."""
    for before, arg in zip(("", *args), args, strict=False):
        empty = before if arg == "" else arg[:-1] if arg.startswith("--") and arg.endswith("=") else None
        if empty is not None:
            what = empty if empty.startswith("-") else "an argument"
            raise OneLineError(f"{what} is empty; give it a value, or leave it out")


def loaded(stub: click.Command) -> click.Command:
    """Import the implementation of a listed subcommand: NAME in the module `amp_rewrite.cli.NAME_command`.

    A process that has just begun forks the worker for onnx's checker as soon as onnx is there.
    """
    if "onnx" not in sys.modules and threading.active_count() == 1:
        startup.load("amp_rewrite.process.worker").fork()
    return getattr(startup.load(f"amp_rewrite.cli.{stub.name}_command"), str(stub.name))


def _print_version(context: click.Context, _: click.Parameter, requests_version: bool) -> None:
    if requests_version and not context.resilient_parsing:
        click.echo(f"amp-rewrite, version {version.installed()}")
        context.exit()


@click.group(
    cls=_DefaultGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Rewrite ONNX models from float32 to mixed precision.

    A first argument that is not a command means rewrite: amp-rewrite model.onnx writes model_fp16.onnx beside
    it. Without a model: amp-rewrite demo.

    Common options of a command: amp-rewrite COMMAND --help; all: --help-all.
    """


_SUMMARIES = {
    "rewrite": "Rewrite MODEL to mixed precision, and compare the two.",
    "explain": "Say what keeps MODEL, or one NODE of it, in float32.",
    "verify": "Compare REWRITTEN with ORIGINAL on given or synthetic inputs.",
    "coverage": "Count how much of MODEL is half: nodes, FLOPs, weights, Casts.",
    "tune": "Find the fastest plan for MODEL that stays within an error.",
    "certify": "Prove that REWRITTEN and ORIGINAL differ only in precision.",
    "bench": "Time models on the same inputs, each against the first.",
    "placement": "Show what onnxruntime or TensorRT makes of each MODEL.",
    "train": "Rewrite a train step, MODEL, to half with a loss scale.",
    "restore": "Turn a half MODEL, made by any tool, back into float32.",
    "demo": "Rewrite a small built-in network, and compare the two.",
}
"""The line on each command in the command list: the first sentence of its own help."""
_FIRST = 4
"""The number of commands that most users need."""

for name, summary in _SUMMARIES.items():
    main.add_command(click.Command(name, help=summary))
