"""`amp-rewrite coverage MODEL`: measure how much of it runs in half, and check that against rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli import exit_codes, many_models
from amp_rewrite.cli.fields_as_flags import as_argument, in_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, WrittenFile, json_flag, repeatable
from amp_rewrite.cli.input_flags import counted_flags
from amp_rewrite.cli.many_models import models_argument
from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import TOLERANCE, CoverageRules, check
from amp_rewrite.coverage.faces import (
    MeasuredModel,
    commands,
    junit,
    markdown,
    print_checks,
    print_coverage,
)
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import writing
from amp_rewrite.reporting.terminal import print_hints
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a format, and the file to write it to; None for standard output."""

    format: str
    path: Path | None = None


def _write_baseline(measured: Sequence[MeasuredModel], path: Path) -> None:
    for coverage in (one.coverage for one in measured):
        assert coverage is not None, "the only model was measured"
        coverage_rules.save_baseline(coverage, path)


_GITHUB, _BASELINE = "github", "baseline"
_WRITERS: Mapping[str, Callable[[Sequence[MeasuredModel], Path], None]] = {
    "markdown": lambda measured, path: staging.write(markdown(measured), path),
    "junit": lambda measured, path: staging.write(junit(measured), path),
    _BASELINE: _write_baseline,
}


class _ReportType(WrittenFile):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Report:
        """Return the report that a text asks for; raise OptionError for another text."""
        format_, _, path = str(value).partition("=")
        if value == _GITHUB:
            return Report(_GITHUB)
        if format_ not in _WRITERS or not path:
            remedy = f"write {'=FILE, '.join(_WRITERS)}=FILE or github"
            raise OptionError(f"--report {value} is not a report", remedy=remedy)
        return Report(format_, super().convert(path, param, ctx))


@click.command(cls=WritingCommand)
@models_argument
@counted_flags
@repeatable(
    "--rules",
    "FILE|RULE",
    "Rules: a YAML file, see docs/ci.md, or a rule, which overrides the file's: min-flops=SHARE, "
    "min-nodes=SHARE, min-weights=SHARE (the least shares in half, 0 to 1), require=OP=SHARE (of an "
    "operator's nodes), if-present (an operator that the model lacks is no fault), forbid-half=OP, "
    "max-casts=N, baseline=FILE (an earlier coverage, below which no share may fall), "
    f"tolerance=SHARE (by more than this; {TOLERANCE}).",
    type=PATH,
)
@json_flag("coverage")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=_ReportType(),
    metavar="FORMAT=FILE",
    help="Report for a CI job: markdown=FILE, for its summary; junit=FILE, one test case a rule; "
    "baseline=FILE, for the rule of that name; github: annotations for GitHub Actions on standard output. "
    "May be repeated.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print broken rules only.")
def coverage(
    model: tuple[Path, ...],
    data: Data,
    rules: tuple[Path, ...],
    json_: Path | None,
    reports: tuple[Report, ...],
    quiet: bool,
) -> None:
    """Count how much of MODEL is half: nodes, FLOPs, weights, Casts.

    Any ONNX model will do. Several models, folders of them and patterns are counted one by one; a baseline is
    for a single model. Exit code 1 when a rule is broken, and 2 when one of several models cannot be read;
    the files are still written.
    """
    entries, held = many_models.find(model), coverage_rules.collect(rules)
    if len(entries) > 1 and (held.baseline or any(report.format == _BASELINE for report in reports)):
        raise OptionError("a baseline is for one model", remedy="leave it out, or name one model")
    sized = replace(data, dims={**held.dims, **data.dims})
    measured = [_measured(each.model, held, sized, is_single=len(entries) == 1) for each in entries]
    ok = all(one.ok for one in measured)
    if json_ is not None:
        all_ = [one.to_json() for one in measured]
        writing.write_json(all_[0] if len(all_) == 1 else {"models": all_, "ok": ok}, json_)
    for report in reports:
        if report.path is not None:
            _WRITERS[report.format](measured, report.path)
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


def _measured(model: Path, rules: CoverageRules, data: Data, *, is_single: bool) -> MeasuredModel:
    """Measure and check a model; raise the error of a single one that cannot be read."""
    try:
        measurement = measure(model, feeds.given_sizes(model, data).dims)
        return MeasuredModel(str(model), measurement, check(measurement, rules))
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
