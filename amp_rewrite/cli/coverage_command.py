"""`amp-rewrite coverage MODEL`: measure how much of it runs in half, and check that against rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli import exit_codes, input_flags, many_models
from amp_rewrite.cli.fields_as_flags import as_argument, in_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import (
    PATH,
    WrittenFile,
    grouped,
    json_flag,
    read_path,
    repeatable,
    switch,
)
from amp_rewrite.cli.many_models import models_argument
from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import coverage_rules as coverage_rules
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import TOLERANCE, CoverageRules, check
from amp_rewrite.coverage.faces import MeasuredModel, commands, junit, markdown, print_checks, print_coverage
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import writing
from amp_rewrite.reporting.terminal import print_hints
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data

_FLAGS = (
    *input_flags.COUNTED,
    repeatable(
        "--rules",
        "FILE|RULE",
        "Rules: a YAML file, see docs/ci.md, or a rule, which overrides the file's: min-flops=SHARE, "
        "min-nodes=SHARE, min-weights=SHARE (the least shares in half, 0 to 1), require=OP=SHARE (of an "
        "operator's nodes), if-present (an operator that the model lacks is no fault), forbid-half=OP, "
        "max-casts=N.",
        type=PATH,
    ),
    read_path(
        "--baseline", "FILE", "A saved coverage that the model must not fall below; --update writes it."
    ),
    click.option(
        "--tolerance",
        metavar="SHARE",
        help=f"How far a share may fall below the baseline's.  [default: {TOLERANCE}]",
    ),
    switch("--update", "Write the baseline instead of comparing with it."),
)


@dataclass(frozen=True, slots=True)
class CoverageFlags:
    """The rules of the flags and the rule file; `update` is the baseline file to write, or None."""

    rules: CoverageRules
    sized: Data
    update: Path | None


def _parse_flags(flags: Mapping[str, Any]) -> CoverageFlags:
    """Return the rules of all flags; sizes of --dim override those of the rules."""
    tolerance = [] if flags["tolerance"] is None else [Path(f"tolerance={flags['tolerance']}")]
    rules = coverage_rules.collect((*flags["rules"], *tolerance))
    baseline: Path | None = flags["baseline"] or rules.get("baseline")
    if flags["update"] and baseline is None:
        raise OptionError("--update has nothing to write", remedy="say where with --baseline FILE")
    if tolerance and baseline is None:
        raise OptionError("--tolerance is for --baseline", remedy="add --baseline FILE, or leave it out")
    is_compared = baseline is not None and not flags["update"]
    sized = Data(tuple(flags["data"]), {**rules.get("dims", {}), **input_flags.dims(flags["dim"])})
    shares = coverage_rules.load_baseline(baseline) if baseline and is_compared else None
    return CoverageFlags(
        coverage_rules.rules_of(rules, shares),
        sized,
        baseline if flags["update"] else None,
    )


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a format, and the file to write it to; None for standard output."""

    format: str
    path: Path | None = None


_GITHUB = "github"
_RENDERED: Mapping[str, Callable[[Sequence[MeasuredModel]], bytes]] = {
    "markdown": lambda measured: "\n".join(map(markdown, measured)).encode(),
    "junit": junit,
}


class _ReportType(WrittenFile):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Report:
        """Return the report that a text asks for; raise OptionError for another text."""
        format_, _, path = str(value).partition("=")
        if value == _GITHUB:
            return Report(_GITHUB)
        if format_ not in _RENDERED or not path:
            remedy = "write markdown=FILE, junit=FILE or github"
            raise OptionError(f"--report {value} is not a report", remedy=remedy)
        return Report(format_, super().convert(path, param, ctx))


coverage_flags = grouped(_FLAGS, "asked", _parse_flags)
"""A decorator that adds these flags to a command and passes them as `CoverageFlags` in `asked`."""


@click.command(cls=WritingCommand)
@models_argument
@coverage_flags
@json_flag("coverage")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=_ReportType(),
    metavar="FORMAT=FILE",
    help="Report for a CI job: markdown=FILE, for its summary; junit=FILE, one test case a rule; github: "
    "annotations for GitHub Actions on standard output. May be repeated.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print broken rules only.")
def coverage(
    model: tuple[Path, ...],
    asked: CoverageFlags,
    json_: Path | None,
    reports: tuple[Report, ...],
    quiet: bool,
) -> None:
    """Count how much of MODEL is half: nodes, FLOPs, weights, Casts.

    Any ONNX model will do. Several models, folders of them and patterns are counted one by one; a baseline is
    for a single model. Exit code 1 when a rule is broken, and 2 when one of several models cannot be read;
    the files are still written.
    """
    entries = many_models.find(model)
    if len(entries) > 1 and (asked.update or asked.rules.baseline):
        raise OptionError("--baseline is for one model", remedy="leave it out, or name one model")
    measured = [_measured(each.model, asked, is_single=len(entries) == 1) for each in entries]
    ok = all(one.ok for one in measured)
    if json_ is not None:
        all_ = [one.to_json() for one in measured]
        writing.write_json(all_[0] if len(all_) == 1 else {"models": all_, "ok": ok}, json_)
    _write(reports, measured)
    if asked.update is not None and measured[0].coverage is not None:
        if ok:
            coverage_rules.save_baseline(measured[0].coverage, asked.update)
        outcome = "wrote the baseline" if ok else "a rule is broken: not written, the baseline"
        Console(stderr=True, quiet=quiet).print(f"{outcome} {asked.update}")
    for one in measured:
        _print(one, quiet=quiet, titled=len(measured) > 1)
        for line in commands(one) if Report(_GITHUB) in reports else ():
            Console().command(line)
    broken = (f"amp-rewrite explain {as_argument(Path(one.title))}" for one in measured if _is_explained(one))
    print_hints(Console(quiet=quiet), (f"{line}   # what decided each node" for line in islice(broken, 1)))
    exit_codes.end_many(is_complete=all(one.coverage is not None for one in measured), is_ok=ok)


def _is_explained(one: MeasuredModel) -> bool:
    """Return whether nodes break a rule, which `explain` can say more of."""
    return one.coverage is not None and any(rule.nodes for rule in one.checks)


def _write(reports: Sequence[Report], measured: Sequence[MeasuredModel]) -> None:
    """Write the reports that have a file."""
    for report in reports:
        if report.path is not None:
            staging.write(_RENDERED[report.format](measured), report.path)


def _measured(model: Path, criteria: CoverageFlags, *, is_single: bool) -> MeasuredModel:
    """Measure and check a model; raise the error of a single one that cannot be read."""
    try:
        measurement = measure(model, feeds.given_sizes(model, criteria.sized).dims)
        return MeasuredModel(str(model), measurement, check(measurement, criteria.rules))
    except AmpRewriteError as error:
        if is_single:
            raise
        return MeasuredModel.unreadable(str(model), in_flags(error))


def _print(one: MeasuredModel, *, quiet: bool, titled: bool) -> None:
    console = Console()
    if titled and not (quiet and one.ok):
        console.print(Styled(one.title, "bold"))
    if not quiet and one.coverage is not None:
        print_coverage(console, one.coverage)
        console.print()
    print_checks(console, [rule for rule in one.checks if not (quiet and rule.ok)])
