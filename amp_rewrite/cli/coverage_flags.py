"""The flags of `coverage` that set rules; they count before those of a rule file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli import input_flags
from amp_rewrite.cli.flag_builders import Flag, grouped, number, read_path, repeatable, switch
from amp_rewrite.coverage import rules as coverage_rules
from amp_rewrite.coverage.rules import SHARE, SHARES, TOLERANCE, CoverageRules
from amp_rewrite.errors import OptionError
from amp_rewrite.running.inputs.feeds import Data


def _number(_: click.Context, flag: click.Parameter, text: str | None) -> float | None:
    """A share from 0 to 1; OptionError for a percentage, and for what is none."""
    if text is None:
        return None
    name, percentage = max(flag.opts, key=len), text.strip().endswith("%")
    try:
        share = float(text.strip().removesuffix("%"))
    except ValueError:
        share = math.nan
    if percentage and 0 <= share <= 100:
        raise OptionError(f"{name} {text} is a percentage", remedy=f"write {name} {share / 100:.12g}")
    if percentage or not 0 <= share <= 1:
        raise OptionError(f"{name} {text} is not a share", remedy=SHARE)
    return share


def _share(name: str, help_: str) -> Flag:
    return click.option(name, callback=_number, metavar="SHARE", help=help_)


_FLAGS = (
    *input_flags.COUNTED,
    read_path(
        "--rules",
        "FILE",
        "Rules as YAML, see docs/coverage-rules.md; a flag overrides the rule in the file.",
        "file",
    ),
    _share("--min-flops", "The least share of FLOPs in half, 0 to 1."),
    _share("--min-nodes", "The least share of nodes in half, 0 to 1."),
    _share("--min-weights", "The least share of weight bytes in half, 0 to 1."),
    repeatable("--require", "OP=SHARE", "The least share of an operator's nodes in half."),
    switch("--if-present", "A required operator that the model lacks is no fault."),
    repeatable("--forbid-half", "OP", "An operator that must not be in half."),
    number("--max-casts", click.IntRange(min=0), "The most Casts between half and float32."),
    read_path(
        "--baseline", "FILE", "A saved coverage that the model must not fall below; --update writes it."
    ),
    _share("--tolerance", f"How far a share may fall below the baseline's.  [default: {TOLERANCE}]"),
    switch("--update", "Write the baseline instead of comparing with it."),
)


@dataclass(frozen=True, slots=True)
class CoverageFlags:
    """What the flags and the file ask for; `update` is where to write a baseline, or None."""

    rules: CoverageRules
    sized: Data
    update: Path | None


def _read(flags: Mapping[str, Any]) -> CoverageFlags:
    """Flags before the file; requirements and dimensions of both."""
    path = flags["file"]
    held = coverage_rules.load(path) if path is not None else coverage_rules.RuleFile()
    baseline: Path | None = flags["baseline"] or held.baseline
    if flags["update"] and baseline is None:
        raise OptionError("--update has nothing to write", remedy="say where with --baseline FILE")
    bounds = {name: _first(flags[name], getattr(held, name)) for name in SHARES}
    if flags["tolerance"] is not None and baseline is None:
        raise OptionError("--tolerance is for --baseline", remedy="add --baseline FILE, or leave it out")
    rules = CoverageRules(
        **{name: bounds[name] for name in SHARES if name != "tolerance"},
        require={**held.require, **_requirements(flags["require"])},
        forbid_half=tuple(dict.fromkeys((*held.forbid_half, *flags["forbid_half"]))),
        max_casts=_first(flags["max_casts"], held.max_casts),
        baseline=coverage_rules.load_baseline(baseline)
        if baseline is not None and not flags["update"]
        else None,
        tolerance=_first(bounds["tolerance"], TOLERANCE),
        if_present=flags["if_present"] or held.if_present,
    )
    sized = Data(tuple(flags["data"]), {**held.dims, **input_flags.dims(flags["dim"])})
    return CoverageFlags(rules, sized, baseline if flags["update"] else None)


def _first(flag: Any, held: Any) -> Any:
    return flag if flag is not None else held


def _requirements(texts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, share in map(_requirement, texts):
        if found.setdefault(name, share) != share:
            raise OptionError(f"--require gives {name} two shares", remedy="give it once")
    return found


def _requirement(text: str) -> tuple[str, float]:
    name, _, bound = text.rpartition("=")
    try:
        share = float(bound)
    except ValueError:
        share = -1.0
    if not name.strip() or not 0 <= share <= 1:
        raise OptionError(f"--require {text} is not OP=SHARE", remedy="write it as in --require MatMul=0.95")
    return name.strip(), share


coverage_flags = grouped(_FLAGS, "asked", _read)
"""Adds these flags to a command, which gets them as `CoverageFlags` in `asked`."""
