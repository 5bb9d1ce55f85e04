"""Output of a coverage and rule results: terminal, Markdown, JUnit XML, and GitHub annotations."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree as ET

from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage.counts import Counts, Coverage, OperatorCoverage
from amp_rewrite.coverage.coverage_rules import RuleResult, percent
from amp_rewrite.rewriting import records
from amp_rewrite.text import brief, plural, size, visible


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

SHOWN = 10
"""The most nodes listed for a broken rule; JSON and JUnit list all."""


def flops(count: int) -> str:
    """Return a number of FLOPs in powers of 1000: 512, 1.2 k, 3.4 M, 5.6 G."""
    return size(count).removesuffix("B").rstrip()


_AMOUNTS: dict[str, Callable[[int], str]] = {"nodes": "{:,}".format, "FLOPs": flops, "weights": size}


def _totals(coverage: Coverage) -> Iterator[tuple[str, ...]]:
    for (name, write), counts in zip(_AMOUNTS.items(), _counted(coverage).values(), strict=True):
        yield (name, percent(counts.share), *map(write, asdict(counts).values()))


def _counted(coverage: Coverage) -> dict[str, Counts]:
    return {"nodes": coverage.nodes, "flops": coverage.flops, "weights": coverage.weights}


def _rows(coverage: Coverage) -> Iterator[tuple[str, ...]]:
    """Yield a row for each operator with floats, and one for all others."""
    aside = [row for row in coverage.rows if not (row.nodes.floats or row.flops.total or row.unknown)]
    yield from (_row(row) for row in coverage.rows if row not in aside)
    if aside:
        count = f"{sum(row.nodes.total for row in aside):,}"
        yield (f"({plural(len(aside), 'operator')} without floats)", count, "0", "0", "0", count, "0", "")


def _row(row: OperatorCoverage) -> tuple[str, ...]:
    amounts = map("{:,}".format, (row.nodes.total, *asdict(row.nodes).values()))
    flop_text = flops(row.flops.total) + (f" and {row.unknown:,} unknown" if row.unknown else "")
    return (row.operator, *amounts, flop_text, percent(row.flops.share) if row.flops.floats else "")


def _casts(coverage: Coverage) -> str:
    unknown = sum(cast.moved is None for cast in coverage.casts)
    more = f" and those of {unknown:,} of unknown shape" if unknown else ""
    return f"{len(coverage.casts):,} between half and float32, {size(coverage.cast_bytes)} a run{more}"


def print_coverage(console: Console, coverage: Coverage) -> None:
    """Print totals, one line for each operator, Casts and assumptions."""
    console.numbers(("", "in half", "half", "float32", "mixed", "other"), _totals(coverage))
    console.print()
    header = ("operator", "nodes", "in half", "float32", "mixed", "other", "FLOPs", "FLOPs in half")
    console.numbers(header, _rows(coverage))
    console.print()
    console.print(Styled("Casts    ", "dim"), _casts(coverage))
    for assumption in coverage.assumptions:
        console.print(Styled("assumed  ", "dim"), assumption)


def print_checks(console: Console, checks: Sequence[RuleResult]) -> None:
    """Print one line for each rule, and below a broken one the nodes that break it."""
    for check in checks:
        mark = Styled("kept    ", "green") if check.ok else Styled("BROKEN  ", "red")
        console.print(mark, f" {check.rule}: {check.found}")
        for line in nodes(check):
            console.print(f"           {line}")


def nodes(check: RuleResult) -> list[str]:
    """Return the first nodes that break a rule, escaped for printing, and the number of the others."""
    more = len(check.nodes) - SHOWN
    labels = [brief(name) or "(unnamed)" for name in check.nodes[:SHOWN]]
    return [*labels, f"and {more:,} more"] if more > 0 else labels


def markdown(models: Sequence[MeasuredModel]) -> bytes:
    """Return what the terminal shows of each model, as a block of code, which no name can end."""
    printed = io.StringIO()
    console = Console(file=printed, width=_WIDTH)
    for model in models:
        console.print(f"Precision coverage of {model.title}")
        print_checks(console, model.checks)
        if model.coverage is not None:
            print_coverage(console, model.coverage)
    return f"```text\n{printed.getvalue().replace('`', chr(39))}```\n".encode()


_WIDTH = 120

# The format of JUnit XML is that of Jenkins' xunit plug-in (junit-10.xsd): a suite for each model, with a
# test case for each rule.


def junit(models: Sequence[MeasuredModel]) -> bytes:
    """Return the file's bytes: a suite for each model, a test case for each rule, numbers as properties."""
    top = ET.Element("testsuites", _tally([check for model in models for check in model.checks]))
    for model in models:
        suite = ET.SubElement(top, "testsuite", {"name": "amp-rewrite coverage", **_tally(model.checks)})
        properties = ET.SubElement(suite, "properties")
        for name, value in _numbers(model.coverage) if model.coverage is not None else ():
            ET.SubElement(properties, "property", {"name": name, "value": str(value)})
        for check in model.checks:
            _case(suite, check, visible(model.title))
    ET.indent(top)
    return ET.tostring(top, encoding="utf-8", xml_declaration=True)


def _tally(checks: Sequence[RuleResult]) -> dict[str, str]:
    errors = sum(check.rule == _READABLE for check in checks)
    broken = sum(not check.ok for check in checks) - errors
    return {"tests": str(len(checks)), "failures": str(broken), "errors": str(errors)}


def _case(suite: ET.Element, check: RuleResult, title: str) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": title, "name": visible(check.rule)})
    if not check.ok:
        kind = "error" if check.rule == _READABLE else "failure"
        failure = ET.SubElement(case, kind, {"message": visible(check.found), "type": "coverage"})
        failure.text = "\n".join(map(visible, (check.found, *check.nodes)))


def _numbers(coverage: Coverage) -> Iterator[tuple[str, float]]:
    for what, counts in _counted(coverage).items():
        yield from ((f"{what}.{kind}", each) for kind, each in counts.to_json().items() if each is not None)
    yield "casts.count", len(coverage.casts)
    yield "casts.bytes", coverage.cast_bytes


# https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, and the escapes that
# `actions/toolkit` uses (packages/core/src/command.ts).


def commands(model: MeasuredModel) -> Iterator[str]:
    """Yield a line for each broken rule, one for the assumptions, and one with the totals."""
    for check in model.checks:
        if not check.ok:
            yield _command("error", model, f": {check.rule}", check.found, *nodes(check))
    if (coverage := model.coverage) is None:
        return
    if coverage.assumptions:
        yield _command("warning", model, ": assumed", *coverage.assumptions)
    shares = ", ".join(f"{share} of {name}" for name, share, *_ in _totals(coverage))
    yield _command("notice", model, "", f"in half: {shares}; Casts: {_casts(coverage)}")


def _command(level: str, model: MeasuredModel, title: str, *lines: str) -> str:
    place = f"file={_property(model.title)},title=coverage{_property(title)}"
    return f"::{level} {place}::{'%0A'.join(map(_data, lines))}"


def _data(line: str) -> str:
    """Return the message of a command with line breaks, which would end the command, escaped."""
    return brief(line).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
