"""`amp-rewrite coverage MODEL`: how much of it runs in half, and is that enough?"""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli import exit_codes
from amp_rewrite.cli.coverage_flags import CoverageFlags, coverage_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, WRITTEN
from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.console import Console
from amp_rewrite.coverage import baselines
from amp_rewrite.coverage.github_annotations import commands
from amp_rewrite.coverage.junit_xml import junit
from amp_rewrite.coverage.markdown import markdown
from amp_rewrite.coverage.measuring import measure
from amp_rewrite.coverage.rule_checks import check
from amp_rewrite.coverage.terminal_table import print_checks, print_coverage
from amp_rewrite.files import staging
from amp_rewrite.model import writing


@click.command(cls=WritingCommand)
@click.argument("model", type=PATH)
@coverage_flags
@json_flag("coverage")
@click.option(
    "--markdown",
    "markdown_",
    type=WRITTEN,
    metavar="FILE",
    help="Write the coverage as Markdown, for the summary of a CI job.",
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
    asked: CoverageFlags,
    json_: Path | None,
    markdown_: Path | None,
    junit_: Path | None,
    github: bool,
    quiet: bool,
) -> None:
    """Count what of MODEL runs in half: nodes, FLOPs, weights, Casts. Any ONNX model will do.

    Exit code 1 when a rule is broken; the files are written all the same.
    """
    name, found = str(model), measure(model, asked.dims)
    checks = check(found, asked.rules)
    ok = all(rule.ok for rule in checks)
    if json_ is not None:
        rules = [rule.to_json() for rule in checks]
        writing.write_json({"model": name, **found.to_json(), "rules": rules, "ok": ok}, json_)
    if markdown_ is not None:
        staging.write(markdown(found, checks, name).encode(), markdown_)
    if junit_ is not None:
        staging.write(junit(found, checks, name), junit_)
    if asked.update is not None:
        baselines.save(found, asked.update)
    console = Console()
    if not quiet:
        print_coverage(console, found)
        console.print()
    print_checks(console, [rule for rule in checks if not (quiet and rule.ok)])
    for line in commands(found, checks, name) if github else ():
        console.command(line)
    exit_codes.fail_unless(ok)
