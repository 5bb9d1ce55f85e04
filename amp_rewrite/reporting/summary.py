"""The numbers of a report, in words: the same lines for a terminal and a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_rewrite.colouring.matching import Matched
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining.sentences import plural, size
from amp_rewrite.rewriting.report import Report


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One thing that a report says: what it is about, and the words."""

    name: str
    text: str


def lines(report: Report) -> Iterator[SummaryLine]:
    """What a rewrite did, a line for each thing that there is to say."""
    nodes = report.nodes
    mixed = f", {nodes.mixed:,} in both" if nodes.mixed else ""
    others = f", {nodes.other:,} without float32" if nodes.other else ""
    yield SummaryLine("nodes", f"{nodes.half:,} in {report.half}{mixed}, {nodes.full:,} in float32{others}")
    removed = f", {report.casts_removed:,} removed" if report.casts_removed else ""
    yield SummaryLine("Casts", f"{report.casts_added:,} added{removed}")
    yield SummaryLine("size", _sizes(report))
    if report.saturated:
        brought = f"{plural(report.saturated, 'stored value')} brought into {report.half}'s range"
        yield SummaryLine("masks", brought)
    if report.flushed:
        flushed = f"{plural(report.flushed, 'stored value')} too small for {report.half} became 0"
        yield SummaryLine("tiny", flushed)
    if report.observed:
        beyond = f"in float32 for values that a run showed to be too large for {report.half}"
        yield SummaryLine("observed", f"{plural(report.observed, 'unit')} {beyond}")
    yield from matches(report.matched)
    for warning in report.warnings:
        yield SummaryLine("warning", warning)
    for fault in report.broken:
        yield SummaryLine("BROKEN", fault)


def matches(found: Iterable[Matched]) -> Iterator[SummaryLine]:
    """How many nodes match what was asked for by name, as the command's flags have it."""
    for matched in found:
        flag = f"--{matched.by.replace('_', '-')} {matched.pattern}"
        near = f"; did you mean {' or '.join(matched.near)}?" if matched.near else ""
        if matched.nodes:
            yield SummaryLine("matched", f"{flag}: {plural(matched.nodes, 'node')}")
        else:
            yield SummaryLine("warning", f"{flag} matches no node{near}")


def of_coverage(coverage: Coverage) -> Iterator[SummaryLine]:
    """What a model is that was not rewritten just now."""
    nodes = coverage.nodes
    mixed = f", {nodes.mixed:,} in both" if nodes.mixed else ""
    others = f", {nodes.other:,} without float arithmetic" if nodes.other else ""
    yield SummaryLine("nodes", f"{nodes.half:,} in half{mixed}, {nodes.full:,} in float32{others}")
    yield SummaryLine("Casts", f"{len(coverage.casts):,} between half and float32")


def _sizes(report: Report) -> str:
    """The size before and after; a rewrite that has not been made has no second one."""
    if not report.size_after:
        return size(report.size_before)
    share = f" ({report.size_after / report.size_before:.0%})" if report.size_before else ""
    return f"{size(report.size_before)} -> {size(report.size_after)}{share}"
