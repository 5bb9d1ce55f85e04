"""Broken rules as GitHub's workflow commands, which a pull request shows as annotations.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, and the escapes that
`actions/toolkit` uses (packages/core/src/command.ts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_rewrite.reporting.coverage import wording
from amp_rewrite.reporting.coverage.counts import Coverage
from amp_rewrite.reporting.coverage.rules import Check
from amp_rewrite.reporting.coverage.table import nodes


def commands(coverage: Coverage, checks: Sequence[Check], path: str) -> Iterator[str]:
    """A line for each broken rule, one for what was assumed, and one with the totals."""
    for check in checks:
        if not check.ok:
            text = "\n".join((check.found, *nodes(check)))
            yield _command("error", path, f"coverage: {check.rule}", text)
    if coverage.assumptions:
        yield _command("warning", path, "coverage: assumed", "\n".join(coverage.assumptions))
    shares = ", ".join(f"{share} of {name}" for name, share, *_ in wording.totals(coverage))
    yield _command("notice", path, "coverage", f"in half: {shares}; Casts: {wording.casts(coverage)}")


def _command(level: str, path: str, title: str, text: str) -> str:
    return f"::{level} file={_property(path)},title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    """What stands behind the second pair of colons: a line break ends a command, so it is written out."""
    lines = (wording.printable(line) for line in text.split("\n"))
    return "%0A".join(line.replace("%", "%25") for line in lines)


def _property(text: str) -> str:
    escaped = wording.printable(text).replace("%", "%25")
    return escaped.replace(":", "%3A").replace(",", "%2C")
