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
from amp_rewrite.policy.options import ExternalData, Level

_DECIDING = frozenset(
    name
    for title in ("What becomes half", "Value ranges", "Changes to the graph")
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


def tune(model: Path, output: Path | None, *instead: str, without: Iterable[str] = ()) -> str:
    """What searches for a plan for the same job: with its flags, but those `without` which, and `instead` of
    their like.

    What --calibrate saw is saved for it.
    """
    context = click.get_current_context(silent=True)
    given = frozenset(param.name or "" for param in context.command.params) if context else frozenset[str]()
    forced = context is not None and context.params.get("level") == Level.UNSAFE_FORCE_ALL.value
    idle = {word.lstrip("-") for word in instead} | ({"level"} if forced else set()) | set(without)
    names = given - NOT_TUNED - idle - ({"json_"} if "rewritten" in given else set())
    to = ("-o", as_argument(output)) if output is not None else ()
    words = (as_argument(model), *to, *_flags(names), *_calibrated(model), *instead)
    line = " ".join(("amp-rewrite tune", *words))
    first = _calibration(model)
    return f"{first} && {line}" if first else line


NOT_TUNED = frozenset(
    "model output out_dir in_place dry_run no_check no_certify observe no_metadata no_verify require_verify "
    "require_half verbose latency calibrate save_observed plan help original rewritten accumulate".split()
)
"""Flags of the main job and of `verify` that `tune` lacks, or that are said in another way."""


def rewrite(model: Path, flags: str, *more: str) -> str:
    """What makes another result with flags, under those of a comparison; `flags` are quoted."""
    names = _FED | {"tolerance", "metric", "provider", "timeout", "io"}
    return " ".join(("amp-rewrite", as_argument(model), flags, *_flags(names), *more))


def _calibrated(model: Path) -> tuple[str, ...]:
    """The flag for what --calibrate saw."""
    written = _flags(("calibrate", "save_observed"))
    if "--calibrate" not in written:
        return ()
    return ("--observed", written[written.index("--save-observed") + 1] if _saves(written) else _seen(model))


def _calibration(model: Path) -> str:
    """What saves that, where the command did not."""
    written = _flags(("calibrate", "save_observed", "observed", "executor", "custom_ops"))
    if "--calibrate" not in written or _saves(written):
        return ""
    words = ("amp-rewrite", as_argument(model), *written, "--save-observed", _seen(model), "--dry-run")
    return " ".join(words)


def _saves(written: Iterable[str]) -> bool:
    return "--save-observed" in written


def _seen(model: Path) -> str:
    return as_argument(model.with_suffix(".observed.json"))


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
        yield _text(each)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    if not isinstance(value, ExternalData):
        return str(value)
    return value.beside.value if value.largest is None else f"{value.largest / 1000:.12g}kB"
