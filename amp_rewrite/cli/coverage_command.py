"""`amp-rewrite coverage MODEL`: measure how much of it runs in half, and check that against rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli import exit_codes, input_flags, many_models
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import (
    Flag,
    assignments,
    grouped,
    json_flag,
    number,
    read_path,
    repeatable,
    switch,
    written_file,
)
from amp_rewrite.cli.many_models import models_argument
from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import coverage_rules as coverage_rules
from amp_rewrite.coverage.counts import measure, some
from amp_rewrite.coverage.coverage_rules import SHARE, SHARES, TOLERANCE, Baseline, CoverageRules, check
from amp_rewrite.coverage.faces import MeasuredModel, commands, junit, markdown, print_checks, print_coverage
from amp_rewrite.errors import OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import writing
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data


def _number(_: click.Context, flag: click.Parameter, text: str | None) -> float | None:
    """Parse a share from 0 to 1; raise OptionError for a percentage and for anything else."""
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
        "Rules as YAML, see docs/ci.md; a flag overrides the rule in the file.",
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
    """The rules of the flags and the rule file; `update` is the baseline file to write, or None."""

    rules: CoverageRules
    sized: Data
    update: Path | None


def _parse_flags(flags: Mapping[str, Any]) -> CoverageFlags:
    """Merge the flags with the rule file: flags take precedence, requirements and dimensions accumulate."""
    path = flags["file"]
    file_rules = coverage_rules.load(path) if path is not None else coverage_rules.RuleFile()
    baseline: Path | None = flags["baseline"] or file_rules.baseline
    if flags["update"] and baseline is None:
        raise OptionError("--update has nothing to write", remedy="say where with --baseline FILE")
    bounds = {name: _first(flags[name], getattr(file_rules, name)) for name in SHARES}
    if flags["tolerance"] is not None and baseline is None:
        raise OptionError("--tolerance is for --baseline", remedy="add --baseline FILE, or leave it out")
    requirements = assignments(
        "--require", flags["require"], "OP=SHARE", _requirement, "shares", "MatMul=0.95"
    )
    rules = CoverageRules(
        **{name: bounds[name] for name in SHARES if name != "tolerance"},
        require={**file_rules.require, **requirements},
        forbid_half=tuple(dict.fromkeys((*file_rules.forbid_half, *flags["forbid_half"]))),
        max_casts=_first(flags["max_casts"], file_rules.max_casts),
        baseline=coverage_rules.load_baseline(baseline)
        if baseline is not None and not flags["update"]
        else None,
        tolerance=_first(bounds["tolerance"], TOLERANCE),
        if_present=flags["if_present"] or file_rules.if_present,
    )
    sized = Data(tuple(flags["data"]), {**file_rules.dims, **input_flags.dims(flags["dim"])})
    return CoverageFlags(rules, sized, baseline if flags["update"] else None)


def _first(flag: Any, fallback: Any) -> Any:
    return flag if flag is not None else fallback


def _requirement(_: str, text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError
    return share


coverage_flags = grouped(_FLAGS, "asked", _parse_flags)
"""A decorator that adds these flags to a command and passes them as `CoverageFlags` in `asked`."""


@click.command(cls=WritingCommand)
@models_argument
@coverage_flags
@json_flag("coverage")
@written_file("--markdown", "Write the coverage as Markdown, for the summary of a CI job.", "markdown_")
@written_file("--junit", "Write the rules as JUnit XML, one test case each.", "junit_")
@switch("--github", "Print annotations for GitHub Actions as well.")
@click.option("-q", "--quiet", is_flag=True, help="Print broken rules only.")
def coverage(
    model: tuple[Path, ...],
    asked: CoverageFlags,
    json_: Path | None,
    markdown_: Path | None,
    junit_: Path | None,
    github: bool,
    quiet: bool,
) -> None:
    """Count how much of MODEL is half: nodes, FLOPs, weights, Casts.

    Any ONNX model will do. Several models, folders of them and patterns are counted one by one; a baseline is
    for a single model. Exit code 1 when a rule is broken; the files are still written.
    """
    entries = many_models.find(model)
    if len(entries) > 1 and (asked.update or asked.rules.baseline):
        raise OptionError("--baseline is for one model", remedy="leave it out, or name one model")
    measured = [_measured(each.model, asked) for each in entries]
    ok = all(one.ok for one in measured)
    if json_ is not None:
        all_ = [one.to_json() for one in measured]
        writing.write_json(all_[0] if len(all_) == 1 else {"models": all_, "ok": ok}, json_)
    if markdown_ is not None:
        pages = (markdown(one.coverage, one.checks, one.title) for one in measured)
        staging.write("\n".join(pages).encode(), markdown_)
    if junit_ is not None:
        staging.write(junit(measured), junit_)
    if asked.update is not None:
        coverage_rules.save_baseline(measured[0].coverage, asked.update)
    if asked.rules.baseline is not None:
        _warn_of_another(measured[0], asked.rules.baseline)
    for one in measured:
        _print(one, quiet=quiet, github=github, titled=len(measured) > 1)
    exit_codes.fail_unless(ok)


def _measured(model: Path, criteria: CoverageFlags) -> MeasuredModel:
    measurement = measure(model, feeds.given_sizes(model, criteria.sized).dims)
    return MeasuredModel(str(model), measurement, check(measurement, criteria.rules))


def _warn_of_another(one: MeasuredModel, baseline: Baseline) -> None:
    """Warn on standard error that a baseline seems to be of another model."""
    if lacking := coverage_rules.lacking(one.coverage, baseline):
        mismatch = f"{baseline.where} counts operators that {one.title} lacks ({some(lacking)})"
        Console(stderr=True).print(
            f"warning  {mismatch}: it may be of another model; --update writes a new one"
        )


def _print(one: MeasuredModel, *, quiet: bool, github: bool, titled: bool) -> None:
    console = Console()
    if titled and not (quiet and one.ok):
        console.print(Styled(one.title, "bold"))
    if not quiet:
        print_coverage(console, one.coverage)
        console.print()
    print_checks(console, [rule for rule in one.checks if not (quiet and rule.ok)])
    for line in commands(one.coverage, one.checks, one.title) if github else ():
        console.command(line)
