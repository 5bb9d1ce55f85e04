"""The flags that say what a coverage has to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli import feed_flags
from amp_rewrite.cli.grouping import Flag, grouped
from amp_rewrite.coverage import baselines, rule_files
from amp_rewrite.coverage.rules import SHARE, SHARES, TOLERANCE, Rules
from amp_rewrite.errors import OptionError
from amp_rewrite.flops.opened import Dims


def _share(name: str, help_: str) -> Flag:
    return click.option(name, type=float, metavar="SHARE", help=help_)


_FLAGS = (
    feed_flags.counted_dim_flag,
    click.option(
        "--rules",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Rules as YAML, see docs/coverage-rules.md; a flag beside it counts before the file.",
    ),
    _share("--min-flops", "The least share of FLOPs in half, 0 to 1."),
    _share("--min-nodes", "The least share of nodes in half, 0 to 1."),
    _share("--min-weights", "The least share of weight bytes in half, 0 to 1."),
    click.option(
        "--require", multiple=True, metavar="OP=SHARE", help="The least share of an operator's nodes in half."
    ),
    click.option("--forbid-half", multiple=True, metavar="OP", help="An operator that must not be in half."),
    click.option(
        "--max-casts",
        type=click.IntRange(min=0),
        metavar="N",
        help="The most Casts between half and float32.",
    ),
    click.option(
        "--baseline",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Numbers that the model's must not fall below; --update writes them.",
    ),
    _share("--tolerance", f"How far a share may fall below the baseline's.  [default: {TOLERANCE}]"),
    click.option("--update", is_flag=True, help="Write the baseline instead of comparing with it."),
)
_NAMES = (
    "dim file min_flops min_nodes min_weights require forbid_half max_casts baseline tolerance update"
).split()


@dataclass(frozen=True, slots=True)
class AskedRules:
    """What the flags and the file ask for; `update` is where to write a baseline, or None."""

    rules: Rules
    dims: Dims
    update: Path | None


def _asked(flags: Mapping[str, Any]) -> AskedRules:
    """Flags before the file; requirements and dimensions of both."""
    path = flags["file"]
    held = rule_files.load(path) if path is not None else rule_files.Asked()
    baseline: Path | None = flags["baseline"] or held.baseline
    if flags["update"] and baseline is None:
        raise OptionError("--update has nothing to write", remedy="say where with --baseline FILE")
    bounds = {name: _first(_checked(name, flags[name]), getattr(held, name)) for name in SHARES}
    if flags["tolerance"] is not None and baseline is None:
        raise OptionError("--tolerance is for --baseline", remedy="add --baseline FILE, or leave it out")
    rules = Rules(
        **{name: bounds[name] for name in SHARES if name != "tolerance"},
        require={**held.require, **_requirements(flags["require"])},
        forbid_half=tuple(dict.fromkeys((*held.forbid_half, *flags["forbid_half"]))),
        max_casts=_first(flags["max_casts"], held.max_casts),
        baseline=baselines.load(baseline) if baseline is not None and not flags["update"] else None,
        tolerance=_first(bounds["tolerance"], TOLERANCE),
    )
    dims = {**held.dims, **feed_flags.dims(flags["dim"])}
    return AskedRules(rules, dims, baseline if flags["update"] else None)


def _first(flag: Any, held: Any) -> Any:
    return flag if flag is not None else held


def _checked(name: str, share: float | None) -> float | None:
    if share is not None and not 0 <= share <= 1:
        raise OptionError(f"--{name.replace('_', '-')} {share:g} is not a share", remedy=SHARE)
    return share


def _requirements(asked: Sequence[str]) -> dict[str, float]:
    made: dict[str, float] = {}
    for name, share in map(_requirement, asked):
        if made.setdefault(name, share) != share:
            raise OptionError(f"--require gives {name} two shares", remedy="give it once")
    return made


def _requirement(text: str) -> tuple[str, float]:
    name, _, bound = text.rpartition("=")
    try:
        share = float(bound)
    except ValueError:
        share = -1.0
    if not name.strip() or not 0 <= share <= 1:
        raise OptionError(f"--require {text} is not OP=SHARE", remedy="write it as in --require MatMul=0.95")
    return name.strip(), share


rule_flags = grouped(_FLAGS, _NAMES, "asked", _asked)
"""Adds the flags of this module to a command; it gets them as `AskedRules` in `asked`."""
