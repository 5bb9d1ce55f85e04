"""Broken rules as GitHub's workflow commands, which a pull request shows as annotations.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, and the escapes that
`actions/toolkit` uses (packages/core/src/command.ts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_rewrite.coverage import wording
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.rules import Check
from amp_rewrite.coverage.table import nodes
from amp_rewrite.escaping import brief


def commands(coverage: Coverage, checks: Sequence[Check], path: str) -> Iterator[str]:
    """A line for each broken rule, one for what was assumed, and one with the totals."""
    for check in checks:
        if not check.ok:
            yield _command("error", path, f"coverage: {check.rule}", check.found, *nodes(check))
    if coverage.assumptions:
        yield _command("warning", path, "coverage: assumed", *coverage.assumptions)
    shares = ", ".join(f"{share} of {name}" for name, share, *_ in wording.totals(coverage))
    yield _command("notice", path, "coverage", f"in half: {shares}; Casts: {wording.casts(coverage)}")


def _command(level: str, path: str, title: str, *lines: str) -> str:
    return f"::{level} file={_property(path)},title={_property(title)}::{'%0A'.join(map(_data, lines))}"


def _data(line: str) -> str:
    """A line behind the second pair of colons: a line break would end the command, and is written out."""
    return brief(line).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
