"""Commands to run next, ready to paste: with the flags of the command that runs, where those matter."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.help_sections import SECTIONS

_DECIDING = frozenset(
    name
    for title in ("What becomes half", "What is known of values", "Form of the graph")
    for name in SECTIONS[title]
)
_FED = frozenset((*SECTIONS["Inputs"], "custom_ops"))
_OF_A_RUN = frozenset(("observe", "calibrate", "executor", "no_metadata"))
"""Flags of what runs the model, which `explain` does not."""


def explain(model: Path, result: Path, *, carried: bool, observed: bool) -> str:
    """What says why nodes stay float32, as this command decided it.

    A result that carries its reasons says so itself, or the model where nothing but the defaults decided.
    Of a result that does not, the same flags decide again; what a run showed is in a plan alone.
    """
    deciding = _flags(_DECIDING - _OF_A_RUN)
    if carried:
        return f"amp-rewrite explain {as_argument(result if deciding or observed else model)}"
    if not observed:
        return " ".join(("amp-rewrite explain", as_argument(model), *deciding))
    plan = as_argument(result.with_suffix(".plan.json"))
    again = ("--observe", "always", "--dry-run", "--save-plan", plan)
    flags = _flags((_DECIDING | _FED) - {"observe", "no_metadata"})
    return " ".join(("amp-rewrite", as_argument(model), *flags, *again, "&& amp-rewrite explain", plan))


def _flags(names: Iterable[str]) -> list[str]:
    """The flags of these names that were written on the command line, quoted for a shell."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    chosen = frozenset(names)
    return [
        shlex.quote(word)
        for param in context.command.params
        if param.name in chosen and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        for word in _words(param, context.params.get(param.name))
    ]


def _words(param: click.Parameter, value: Any) -> Iterator[str]:
    flag = max(param.opts, key=len)
    if isinstance(param, click.Option) and param.is_flag:
        yield flag
        return
    for each in value if param.multiple else (value,):
        yield flag
        yield str(each)
