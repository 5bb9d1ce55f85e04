"""Translation of library messages for the command line: `Options.keep_io` in backticks becomes its flag.

The library itself does not depend on the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_rewrite.running.verdict import Verdict

_OTHERS = {
    "verify": "--skip verify",
    "loss": "--loss",
    "output": "-o",
    "Data.paths": "--data FILE.npz",
    "DynamicLossScale.initial_scale": "--loss-scale initial=",
    "DynamicLossScale.increment_period": "--loss-scale period=",
    "DynamicLossScale.multiplier": "--loss-scale multiplier=",
    "skip_nonfinite": "--loss-scale skip-nonfinite",
    "training.insert_loss_scale": "`amp-rewrite train ORIGINAL --to float32 --loss-scale ...`",
}


@cache
def flags() -> Mapping[str, str]:
    """Return the flag for each field or argument of the library, from the records of the commands."""
    from amp_rewrite.cli import decisions, output_files, records  # noqa: PLC0415 - the list of commands imports no library

    texts = {**_OTHERS, **{field: f"--skip {step}" for field, step in decisions.STEPS.items()}}
    for record in (
        *(output_files.RewriteFiles, output_files.CoverageFiles, records.Inputs, records.ComparisonFlags),
        decisions.RewriteDecisions,
    ):
        for argument, flag in record.flags().items():
            texts.setdefault(argument, flag.flag)
            texts |= {name: f"{flag.flag} {what}".strip() for name, what in flag.sets.items()}
    return texts


_IN_BACKTICKS = re.compile(r"`([^`]+)`|^((?:Options|Data|DynamicLossScale)\.\w+(?:\[\"[^\"]*\"\])?)(?=: )")


def in_flags(message: object) -> str:
    """Replace the fields in a message or error by flags; other backticks stay."""
    return _IN_BACKTICKS.sub(lambda match: _flag(match[1] or match[2]) or match[0], str(message))


def _flag(field: str) -> str | None:
    """Return the flag of a field, perhaps with a value (`Options.io=HALF`) or an item (`Data.dims["n"]`)."""
    name, _, value = field.partition("=")
    if item := re.fullmatch(r'([\w.]+)\["(.*)"\]', field):
        flag = flags().get(item[1])
        size = "=SIZE" if item[1] == "Data.dims" else ""
        return f"{flag} {shlex.quote(item[2])}{size}" if flag else None
    flag = flags().get(name)
    return f"{flag} {value.lower()}" if flag and value not in ("", "True", "False") else flag


def in_flags_of(verdict: Verdict) -> Verdict:
    """Translate the fields named in a verdict to flags."""
    signature, unproven = (tuple(map(in_flags, texts)) for texts in (verdict.signature, verdict.unproven))
    return replace(verdict, signature=signature, unproven=unproven)


def as_argument(path: Path) -> str:
    """Quote a path for a shell so that it is not mistaken for a flag."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
