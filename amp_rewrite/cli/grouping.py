"""Flags that several commands share, given to each as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., Any]
Flag = Callable[[Command], Command]


def grouped(
    flags: Sequence[Flag], names: Sequence[str], argument: str, build: Callable[[Mapping[str, Any]], Any]
) -> Flag:
    """A decorator that adds flags to a command, which gets what `build` makes of them as one argument."""

    def decorate(command: Command) -> Command:
        def collected(**arguments: Any) -> Any:
            own = {name: arguments.pop(name) for name in names}
            return command(**{argument: build(own)}, **arguments)

        collected.__name__, collected.__doc__ = command.__name__, command.__doc__
        vars(collected)["__click_params__"] = list(vars(command).get("__click_params__", ()))
        for flag in reversed(flags):
            flag(collected)
        return collected

    return decorate


def written(context: click.Context, names: Iterable[str]) -> dict[str, str]:
    """The flags that were written, those included that ask for what is the default, by their arguments."""
    return {
        name: f"--{name.rstrip('_').replace('_', '-')}"
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
