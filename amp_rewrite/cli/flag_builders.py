"""Builders of flags: types of paths, repeatable flags, `--executor`, and groups passed as one value."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from amp_rewrite.errors import OptionError
from amp_rewrite.process import executors

Command = Callable[..., Any]
Flag = Callable[[Command], Command]


class _ReadPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; raises OptionError for a text that can be none."""
        if "\0" in str(value):
            raise OptionError(f"{value} is not a path: it has a null character", remedy="check the path")
        return super().convert(value, param, ctx)


PATH = _ReadPath(path_type=Path)
"""The type of arguments and flags that name a file or folder to read."""


class _WrittenFile(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; raises OptionError for what names standard output, a folder, or nothing."""
        problem = _NOT_A_FILE.get(str(value)) or ("is a folder's name" if str(value).endswith("/") else "")
        if problem:
            by = max(param.opts, key=len) if param is not None else "the output"
            raise OptionError(f"{by} {value}".strip() + f" {problem}", remedy="name a file")
        return super().convert(value, param, ctx)


_NOT_A_FILE = {"": "is empty", "-": "is not a file: nothing is written to standard output"}

WRITTEN = _WrittenFile(path_type=Path)
"""The type of flags that name a file to write."""


def repeatable(name: str, metavar: str, help_: str, **settings: Any) -> Flag:
    """A flag that may be given several times, as its help then says."""
    return click.option(name, multiple=True, metavar=metavar, help=f"{help_} May be repeated.", **settings)


def switch(name: str, help_: str, *argument: str) -> Flag:
    """A flag without a value; `argument` is what a command gets it as, where that is not its name."""
    return click.option(name, *argument, is_flag=True, help=help_)


def choice(name: str, values: Iterable[str], help_: str, default: str | None = None) -> Flag:
    """A flag that takes one of these values, in any case."""
    kind = click.Choice(list(values), case_sensitive=False)
    return click.option(name, type=kind, default=default, show_default=True, help=help_)


def number(name: str, kind: Any, help_: str, default: float | None = None, *, metavar: str = "N") -> Flag:
    """A flag that takes a number of this kind."""
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=True, help=help_)


def read_path(name: str, metavar: str, help_: str, *argument: str) -> Flag:
    """A flag that names a file or folder."""
    return click.option(name, *argument, type=PATH, metavar=metavar, help=help_)


def written_file(name: str, help_: str, *argument: str) -> Flag:
    """A flag that names a file to write."""
    return click.option(name, *argument, type=WRITTEN, metavar="FILE", help=help_)


def grouped(flags: Sequence[Flag], argument: str, build: Callable[[Mapping[str, Any]], Any]) -> Flag:
    """A decorator that adds flags to a command, which gets what `build` makes of them as `argument`."""

    def decorate(command: Command) -> Command:
        def collected(**arguments: Any) -> Any:
            own = {name: arguments.pop(name) for name in names}
            return command(**{argument: build(own)}, **arguments)

        collected.__name__, collected.__doc__ = command.__name__, command.__doc__
        earlier: list[click.Parameter] = vars(command).get("__click_params__", [])
        parameters = vars(collected)["__click_params__"] = list(earlier)
        for flag in reversed(flags):
            flag(collected)
        names = [str(parameter.name) for parameter in reversed(parameters[len(earlier) :])]
        vars(collected)[_GROUPS] = [*vars(command).get(_GROUPS, ()), (names, build)]
        return collected

    return decorate


_GROUPS = "flag_groups"


def check_groups(context: click.Context) -> None:
    """Raises what a command would for the flags of its groups, before it is carried out for many models."""
    with context.scope(cleanup=False):
        for names, build in vars(context.command.callback).get(_GROUPS, ()):
            build({name: context.params[name] for name in names})


def given_flags() -> str:
    """The flags of the command that is carried out, as they were given; empty outside of a command."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    flags = written(context, (str(p.name) for p in context.command.params if isinstance(p, click.Option)))
    return " ".join(_flag(flag, context.params.get(name)) for name, flag in flags.items())


def _flag(flag: str, value: object) -> str:
    if value is True:
        return flag
    values: tuple[object, ...] = value if isinstance(value, tuple) else (value,)
    shown = [each for each in values if isinstance(each, _PLAIN)]
    return " ".join(f"{flag} {_text(each)}" for each in shown) or flag


def _text(value: object) -> str:
    if isinstance(value, Path):
        return value.name
    return f"{value:.12g}" if isinstance(value, float) else str(value)


_PLAIN = (str, int, float, Path)
"""What a value is if it is shown; a folder that it lies in may be private."""


def written(context: click.Context, names: Iterable[str]) -> dict[str, str]:
    """The flags that were written on the command line, even with their default values, by argument name."""
    return {
        name: f"--{name.rstrip('_').replace('_', '-')}"
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def executor_flag(what: str) -> Flag:
    """The flag, whose help says what the workers do."""
    return click.option(
        "--executor",
        metavar="WHERE",
        help=f"{what}: processes:N of this machine, or the workers of a Dask scheduler, dask://HOST:PORT.",
    )


@contextlib.contextmanager
def opened(where: str | None) -> Generator[Executor | None]:
    """The executor of that name; None without one. Raises as `executors.named` and `ExecutorName.opened`."""
    if where is None:
        yield None
        return
    with executors.named(where, "--executor").opened() as executor:
        yield executor
