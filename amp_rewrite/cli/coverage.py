"""`amp-rewrite coverage MODEL`: how much of it runs in half, and is that enough?"""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli import exit_codes, many_models
from amp_rewrite.cli.coverage_flags import CoverageFlags, coverage_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import switch, written_file
from amp_rewrite.cli.many_models import models_argument
from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import rules
from amp_rewrite.coverage.counts import measure, some
from amp_rewrite.coverage.faces import MeasuredModel, commands, junit, markdown, print_checks, print_coverage
from amp_rewrite.coverage.rules import Baseline, check
from amp_rewrite.errors import OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import writing
from amp_rewrite.running.inputs import feeds


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
    found = many_models.find(model)
    if len(found) > 1 and (asked.update or asked.rules.baseline):
        raise OptionError("--baseline is for one model", remedy="leave it out, or name one model")
    measured = [_measured(each.model, asked) for each in found]
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
        rules.save_baseline(measured[0].coverage, asked.update)
    if asked.rules.baseline is not None:
        _warn_of_another(measured[0], asked.rules.baseline)
    for one in measured:
        _print(one, quiet=quiet, github=github, titled=len(measured) > 1)
    exit_codes.fail_unless(ok)


def _measured(model: Path, asked: CoverageFlags) -> MeasuredModel:
    found = measure(model, feeds.given_sizes(model, asked.sized).dims)
    return MeasuredModel(str(model), found, check(found, asked.rules))


def _warn_of_another(one: MeasuredModel, baseline: Baseline) -> None:
    """Says on standard error that a baseline seems to be of another model."""
    if lacking := rules.lacking(one.coverage, baseline):
        told = f"{baseline.where} counts operators that {one.title} lacks ({some(lacking)})"
        Console(stderr=True).print(f"warning  {told}: it may be of another model; --update writes a new one")


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
