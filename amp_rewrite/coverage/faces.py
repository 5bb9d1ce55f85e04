"""Output of a coverage and rule results: terminal, Markdown, JUnit XML, and GitHub annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage.counts import Counts, Coverage, OperatorCoverage
from amp_rewrite.coverage.coverage_rules import RuleResult, percent
from amp_rewrite.explaining.sentences import size
from amp_rewrite.rewriting import records
from amp_rewrite.text import brief, plural, visible

# A model whose coverage was measured and checked.


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The `title` of a model, its coverage, and the result of every rule; without a coverage, why it cannot
    be read.
    """

    title: str
    coverage: Coverage | None
    checks: Sequence[RuleResult]

    @classmethod
    def unreadable(cls, title: str, why: str) -> MeasuredModel:
        """Return a model that cannot be read."""
        return cls(title, None, [RuleResult(_READABLE, False, why)])

    @property
    def ok(self) -> bool:
        """Return whether every rule holds."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        numbers = {} if self.coverage is None else self.coverage.to_json()
        return {"model": self.title, **numbers, "rules": records.plain(self.checks), "ok": self.ok}


_READABLE = "readable"
"""The rule that a model breaks which cannot be read."""

Writer = Callable[[int], str]

HEADER = ("", "in half", "half", "float32", "mixed", "other")
"""The columns of the totals."""

ROW_HEADER = ("operator", "nodes", "in half", "float32", "mixed", "other", "FLOPs", "FLOPs in half")
"""The columns of the table by operator."""


def flops(count: int) -> str:
    """Return a number of FLOPs in powers of 1000: 512, 1.2 k, 3.4 M, 5.6 G."""
    for unit, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count}"


def totals(coverage: Coverage) -> Iterator[tuple[str, ...]]:
    """Return a row each for nodes, FLOPs and weights, in the columns of HEADER."""
    yield _totals("nodes", coverage.nodes, lambda count: f"{count:,}")
    yield _totals("FLOPs", coverage.flops, flops)
    yield _totals("weights", coverage.weights, size)


def _totals(name: str, counts: Counts, write: Writer) -> tuple[str, ...]:
    amounts = (counts.half, counts.full, counts.mixed, counts.other)
    return (name, percent(counts.share), *map(write, amounts))


def rows(coverage: Coverage) -> Iterator[tuple[str, ...]]:
    """Return a row for each operator with floats, in the columns of ROW_HEADER, and one for all others."""
    aside = [row for row in coverage.rows if not (row.nodes.floats or row.flops.total or row.unknown)]
    yield from (_row(row) for row in coverage.rows if row not in aside)
    if aside:
        count = f"{sum(row.nodes.total for row in aside):,}"
        yield (f"({plural(len(aside), 'operator')} without floats)", count, "0", "0", "0", count, "0", "")


def _row(row: OperatorCoverage) -> tuple[str, ...]:
    counts = (row.nodes.half, row.nodes.full, row.nodes.mixed, row.nodes.other)
    flop_text = flops(row.flops.total) + (f" and {row.unknown:,} unknown" if row.unknown else "")
    share = percent(row.flops.share) if row.flops.floats else ""
    return (row.operator, f"{row.nodes.total:,}", *(f"{c:,}" for c in counts), flop_text, share)


def casts(coverage: Coverage) -> str:
    """Return the number of Casts, and the bytes that they move."""
    unknown = sum(cast.moved is None for cast in coverage.casts)
    more = f" and those of {unknown:,} of unknown shape" if unknown else ""
    return f"{len(coverage.casts):,} between half and float32, {size(coverage.cast_bytes)} a run{more}"


SHOWN = 10
"""The most nodes listed for a broken rule; JSON and JUnit list all."""


def print_coverage(console: Console, coverage: Coverage) -> None:
    """Print totals, one line for each operator, Casts and assumptions."""
    console.numbers(HEADER, totals(coverage))
    console.print()
    console.numbers(ROW_HEADER, rows(coverage))
    console.print()
    console.print(Styled("Casts    ", "dim"), casts(coverage))
    for assumption in coverage.assumptions:
        console.print(Styled("assumed  ", "dim"), assumption)


def print_checks(console: Console, checks: Sequence[RuleResult]) -> None:
    """Print one line for each rule, and below a broken one the nodes that break it."""
    for check in checks:
        mark = Styled("kept    ", "green") if check.ok else Styled("BROKEN  ", "red")
        console.print(mark, f" {check.rule}: {check.found}")
        for line in nodes(check):
            console.print(f"           {line}")


def nodes(check: RuleResult, limit: int = SHOWN) -> list[str]:
    """Return the first nodes that break a rule, escaped for printing, and the number of the others."""
    more = len(check.nodes) - limit
    labels = [brief(name) or "(unnamed)" for name in check.nodes[:limit]]
    return [*labels, f"and {more:,} more"] if more > 0 else labels


def markdown(model: MeasuredModel) -> str:
    """Return the page: rules, totals, operators, Casts and assumptions."""
    return "\n".join(_lines(model)) + "\n"


def _lines(model: MeasuredModel) -> Iterator[str]:
    yield f"## Precision coverage of {_text(model.title)}"
    yield ""
    for check in model.checks:
        yield f"- {'✅' if check.ok else '❌'} **{_text(check.rule)}**: {_text(check.found)}"
        yield from (f"  - {_text(name)}" for name in nodes(check))
    yield from [""] if model.checks else []
    if (coverage := model.coverage) is None:
        return
    yield from _table(HEADER, totals(coverage))
    yield ""
    yield f"Casts: {casts(coverage)}."
    yield ""
    yield "<details><summary>By operator</summary>"
    yield ""
    yield from _table(ROW_HEADER, rows(coverage))
    yield ""
    yield "</details>"
    for assumption in coverage.assumptions:
        yield ""
        yield f"Assumed: {_text(assumption)}."


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield _operator_row(header)
    yield "|".join(["", "---", *["--:"] * (len(header) - 1), ""])
    for row in rows:
        yield _operator_row(list(map(_text, row)))


def _operator_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Return text from a model with all markup escaped."""
    return "".join(_ESCAPES.get(c, c) for c in visible(text))


_ESCAPES = {c: f"\\{c}" for c in "\\`*_[]"} | {c: f"&#{ord(c)};" for c in "<>|&#~@!$"}
"""Characters with a meaning in Markdown, HTML or GitHub."""


# The format of JUnit XML is that of Jenkins' xunit plug-in (junit-10.xsd): a suite for each model, with a
# test case for each rule.


def junit(models: Sequence[MeasuredModel]) -> bytes:
    """Return the file's bytes: a suite for each model, a test case for each rule, numbers as properties."""
    top = ET.Element("testsuites", _counts([check for model in models for check in model.checks]))
    for model in models:
        _suite(top, model)
    ET.indent(top)
    return ET.tostring(top, encoding="utf-8", xml_declaration=True)


def _counts(checks: Sequence[RuleResult]) -> dict[str, str]:
    errors = sum(check.rule == _READABLE for check in checks)
    broken = sum(not check.ok for check in checks) - errors
    return {"tests": str(len(checks)), "failures": str(broken), "errors": str(errors)}


def _suite(top: ET.Element, model: MeasuredModel) -> None:
    suite = ET.SubElement(top, "testsuite", {"name": "amp-rewrite coverage", **_counts(model.checks)})
    properties = ET.SubElement(suite, "properties")
    for name, value in _numbers(model.coverage).items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for check in model.checks:
        _case(suite, check, visible(model.title))


def _case(suite: ET.Element, check: RuleResult, title: str) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": title, "name": visible(check.rule)})
    if not check.ok:
        message, kind = visible(check.found), "error" if check.rule == _READABLE else "failure"
        failure = ET.SubElement(case, kind, {"message": message, "type": "coverage"})
        failure.text = "\n".join(map(visible, (check.found, *check.nodes)))


def _numbers(coverage: Coverage | None) -> dict[str, str]:
    if coverage is None:
        return {}
    totals_by_kind = {"nodes": coverage.nodes, "flops": coverage.flops, "weights": coverage.weights}
    metrics = {
        f"{what}.{kind}": str(amount)
        for what, counts in totals_by_kind.items()
        for kind, amount in counts.to_json().items()
        if amount is not None
    }
    return {**metrics, "casts.count": str(len(coverage.casts)), "casts.bytes": str(coverage.cast_bytes)}


# https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, and the escapes that
# `actions/toolkit` uses (packages/core/src/command.ts).


def commands(model: MeasuredModel) -> Iterator[str]:
    """Yield a line for each broken rule, one for the assumptions, and one with the totals."""
    path = model.title
    for check in model.checks:
        if not check.ok:
            yield _command("error", path, f"coverage: {check.rule}", check.found, *nodes(check))
    if (coverage := model.coverage) is None:
        return
    if coverage.assumptions:
        yield _command("warning", path, "coverage: assumed", *coverage.assumptions)
    shares = ", ".join(f"{share} of {name}" for name, share, *_ in totals(coverage))
    yield _command("notice", path, "coverage", f"in half: {shares}; Casts: {casts(coverage)}")


def _command(level: str, path: str, title: str, *lines: str) -> str:
    return f"::{level} file={_property(path)},title={_property(title)}::{'%0A'.join(map(_data, lines))}"


def _data(line: str) -> str:
    """Return the message of a command with line breaks, which would end the command, escaped."""
    return brief(line).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
