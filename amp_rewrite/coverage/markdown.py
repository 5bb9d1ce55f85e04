"""A coverage as Markdown, for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_rewrite.coverage import table_cells
from amp_rewrite.coverage.ci_rules import RuleResult
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.terminal_table import nodes
from amp_rewrite.escaping import visible


def markdown(coverage: Coverage, checks: Sequence[RuleResult], title: str) -> str:
    """The page: rules, totals, operators, Casts and assumptions."""
    return "\n".join(_lines(coverage, checks, title)) + "\n"


def _lines(coverage: Coverage, checks: Sequence[RuleResult], title: str) -> Iterator[str]:
    yield f"## Precision coverage of {_text(title)}"
    yield ""
    for check in checks:
        yield f"- {'✅' if check.ok else '❌'} **{_text(check.rule)}**: {_text(check.found)}"
        yield from (f"  - {_text(name)}" for name in nodes(check))
    yield from [""] if checks else []
    yield from _table(table_cells.HEADER, table_cells.totals(coverage))
    yield ""
    yield f"Casts: {table_cells.casts(coverage)}."
    yield ""
    yield "<details><summary>By operator</summary>"
    yield ""
    yield from _table(table_cells.ROW_HEADER, table_cells.rows(coverage))
    yield ""
    yield "</details>"
    for assumption in coverage.assumptions:
        yield ""
        yield f"Assumed: {_text(assumption)}."


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield _row(header)
    yield "|".join(["", "---", *["--:"] * (len(header) - 1), ""])
    for row in rows:
        yield _row(list(map(_text, row)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Text from a model with all markup escaped."""
    return "".join(_ESCAPES.get(c, c) for c in visible(text))


_ESCAPES = {c: f"\\{c}" for c in "\\`*_[]"} | {c: f"&#{ord(c)};" for c in "<>|&#~@!$"}
"""Characters with a meaning in Markdown, HTML or GitHub."""
