"""Click's usage errors as one line: what is wrong, then what would help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import click
from click.exceptions import NoSuchOption

from amp_rewrite.arguments import closest_word
from amp_rewrite.process import startup

_FLOAT16 = "float16 is what amp-rewrite MODEL gives; --to bfloat16 asks for the other half type"
_BFLOAT16 = "write --to bfloat16"
_TYPES = "write --to float16 or --to bfloat16"

_MEANT = {
    **dict.fromkeys(("fp16", "f16", "float16", "half"), _FLOAT16),
    **dict.fromkeys(("bf16", "bfloat16"), _BFLOAT16),
    **dict.fromkeys(("precision", "dtype", "type", "fp", "half-type", "amp"), _TYPES),
}
"""What helps with flags that other tools have, by their names."""


def line(error: click.UsageError) -> str:
    """The error as one line, which ends in what would help: what was meant, or where the flags are listed."""
    if isinstance(error, NoSuchOption):
        return _unknown_flag(error.option_name, error.ctx)
    message = _plain(error.format_message())
    near = _near_choice(error)
    return f"{message}; did you mean {near}?" if near else f"{message}; {_see_help(error.ctx)}"


def _unknown_flag(flag: str, context: click.Context | None) -> str:
    name, others = flag.lstrip("-"), list(_commands_with(flag, context))
    remedy = _MEANT.get(name.lower()) if "--to" in _flags(context) else None
    if near := _nearest(flag, _flags(context)):
        remedy = f"did you mean {near}?"
    elif "rewrite" in others and _passes_flags_on(context):
        remedy = f"flags of amp-rewrite MODEL go after two dashes: -- {flag}"
    elif others:
        remedy = f"it is a flag of {', '.join(others)}"
    return f"there is no flag {flag}{_of(context)}; {remedy or _see_help(context)}"


def _of(context: click.Context | None) -> str:
    """The command, unless it is the main job, whose name nobody writes."""
    name = context.command.name if context is not None else None
    return "" if name in (None, "rewrite", "main") else f" of {name}"


def _passes_flags_on(context: click.Context | None) -> bool:
    return context is not None and any(p.name == "flags" for p in context.command.params)


def _flags(context: click.Context | None) -> list[str]:
    return [] if context is None else _flags_of(context.command)


def _flags_of(command: click.Command) -> list[str]:
    options = (param for param in command.params if isinstance(param, click.Option))
    return [flag for option in options for flag in (*option.opts, *option.secondary_opts)]


def _nearest(flag: str, known: Iterable[str]) -> str | None:
    names = {each.lstrip("-"): each for each in known if each.startswith("--")}
    found = closest_word(flag.lstrip("-"), names)
    return names[found] if found else None


def _commands_with(flag: str, context: click.Context | None) -> Iterator[str]:
    """The other commands that have this flag."""
    group = context.find_root().command if context is not None else None
    if not isinstance(group, click.Group):
        return
    for name in group.commands:
        if flag in _flags_of(getattr(startup.load(f"amp_rewrite.cli.{name}"), name)):
            yield name


def _near_choice(error: click.UsageError) -> str | None:
    """The value that stands for another name of a half type, where the flag knows it."""
    kind = getattr(getattr(error, "param", None), "type", None)
    given = _QUOTED.search(getattr(error, "message", ""))
    if not isinstance(kind, click.Choice) or given is None:
        return None
    return closest_word(given[1].lower(), map(str, kind.choices))


_QUOTED = re.compile("^'([^']*)'")


def _plain(message: str) -> str:
    """A message of click's as ours are: with the flag in front, in lower case, and without a full stop."""
    text = " ".join(message.split()).removesuffix(".")
    text = re.sub(r"^Invalid value for (?:'-\w' / )?'([^']+)': ", r"\1 ", text)
    return text if text.startswith("-") else text[:1].lower() + text[1:]


def _see_help(context: click.Context | None) -> str:
    if context is None or isinstance(context.command, click.Group):
        return "see amp-rewrite --help"
    return f"see amp-rewrite {context.command.name} --help"
