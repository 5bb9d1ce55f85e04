"""`amp-rewrite coverage MODEL`: how much of it runs in half, and is that enough?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.cli.rule_flags import AskedRules, rule_flags
from amp_rewrite.cli.touched_files import WRITTEN
from amp_rewrite.cli.written_files import WritingCommand
from amp_rewrite.console import Console
from amp_rewrite.coverage import baselines, rule_checks
from amp_rewrite.coverage.ci_rules import RuleResult
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.github_annotations import commands
from amp_rewrite.coverage.junit_xml import junit
from amp_rewrite.coverage.markdown import markdown
from amp_rewrite.coverage.measuring import measure
from amp_rewrite.coverage.terminal_table import print_checks, print_coverage
from amp_rewrite.files import staging
from amp_rewrite.model import writing


@click.command(cls=WritingCommand)
@click.argument("model", type=click.Path(path_type=Path))
@rule_flags
@json_flag("coverage")
@click.option(
    "--markdown",
    "markdown_",
    type=WRITTEN,
    metavar="FILE",
    help="Write the coverage as Markdown, for the summary of a job.",
)
@click.option(
    "--junit",
    "junit_",
    type=WRITTEN,
    metavar="FILE",
    help="Write the rules as JUnit XML, a test case each.",
)
@click.option("--github", is_flag=True, help="Print annotations for GitHub Actions as well.")
@click.option("-q", "--quiet", is_flag=True, help="Print broken rules only.")
def coverage(
    model: Path,
    asked: AskedRules,
    json_: Path | None,
    markdown_: Path | None,
    junit_: Path | None,
    github: bool,
    quiet: bool,
) -> None:
    """Count what of MODEL runs in half: nodes, FLOPs, weights, Casts. Any ONNX model will do.

    Exit code 1 when a rule is broken; the files are written all the same.
    """
    found = measure(model, asked.dims)
    checked = Checked(model, found, rule_checks.check(found, asked.rules))
    if json_ is not None:
        writing.write_json(checked.to_json(), json_)
    if markdown_ is not None:
        staging.write(markdown(found, checked.checks, str(model)).encode(), markdown_)
    if junit_ is not None:
        staging.write(junit(found, checked.checks, str(model)), junit_)
    if asked.update is not None:
        baselines.save(found, asked.update)
    checked.print(quiet=quiet, github=github)
    if not checked.ok:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class Checked:
    """A coverage, and the rules that it was held against."""

    model: Path
    coverage: Coverage
    checks: Sequence[RuleResult]

    @property
    def ok(self) -> bool:
        """Whether every rule is kept."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, object]:
        """The numbers and the verdicts as plain data."""
        rules_ = [check.to_json() for check in self.checks]
        return {"model": str(self.model), **self.coverage.to_json(), "rules": rules_, "ok": self.ok}

    def print(self, *, quiet: bool, github: bool) -> None:
        """Table and verdicts; what is broken also when all else is quiet."""
        console = Console()
        if not quiet:
            print_coverage(console, self.coverage)
            console.print()
        print_checks(console, [check for check in self.checks if not (quiet and check.ok)])
        for line in commands(self.coverage, self.checks, str(self.model)) if github else ():
            console.command(line)
