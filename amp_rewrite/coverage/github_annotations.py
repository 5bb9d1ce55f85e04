"""Broken rules as workflow commands of GitHub Actions, which pull requests show as annotations.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, and the escapes that
`actions/toolkit` uses (packages/core/src/command.ts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_rewrite.coverage import table_cells
from amp_rewrite.coverage.ci_rules import RuleResult
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.terminal_table import nodes
from amp_rewrite.escaping import brief


def commands(coverage: Coverage, checks: Sequence[RuleResult], path: str) -> Iterator[str]:
    """One line for each broken rule, one for the assumptions, and one with the totals."""
    for check in checks:
        if not check.ok:
            yield _command("error", path, f"coverage: {check.rule}", check.found, *nodes(check))
    if coverage.assumptions:
        yield _command("warning", path, "coverage: assumed", *coverage.assumptions)
    shares = ", ".join(f"{share} of {name}" for name, share, *_ in table_cells.totals(coverage))
    yield _command("notice", path, "coverage", f"in half: {shares}; Casts: {table_cells.casts(coverage)}")


def _command(level: str, path: str, title: str, *lines: str) -> str:
    return f"::{level} file={_property(path)},title={_property(title)}::{'%0A'.join(map(_data, lines))}"


def _data(line: str) -> str:
    """Text of a command's message; line breaks, which would end the command, are escaped."""
    return brief(line).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
