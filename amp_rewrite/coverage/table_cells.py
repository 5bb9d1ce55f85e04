"""The headers and cells of the coverage tables in a terminal, Markdown and annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from amp_rewrite.coverage.ci_rules import percent
from amp_rewrite.coverage.counts import Counts, Coverage, OperatorCoverage
from amp_rewrite.explaining.sentences import plural, size

Writer = Callable[[int], str]

HEADER = ("", "in half", "half", "float32", "mixed", "other")
"""The columns of the totals."""

ROW_HEADER = ("operator", "nodes", "in half", "float32", "mixed", "other", "FLOPs", "FLOPs in half")
"""The columns of the table by operator."""


def flops(count: int) -> str:
    """A number of FLOPs in powers of 1000: 512, 1.2 k, 3.4 M, 5.6 G."""
    for unit, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count}"


def totals(coverage: Coverage) -> Iterator[tuple[str, ...]]:
    """One row each for nodes, FLOPs and weights, in the columns of HEADER."""
    yield _totals("nodes", coverage.nodes, lambda count: f"{count:,}")
    yield _totals("FLOPs", coverage.flops, flops)
    yield _totals("weights", coverage.weights, size)


def _totals(name: str, counts: Counts, write: Writer) -> tuple[str, ...]:
    amounts = (counts.half, counts.full, counts.mixed, counts.other)
    return (name, percent(counts.share), *map(write, amounts))


def rows(coverage: Coverage) -> Iterator[tuple[str, ...]]:
    """One row for each operator with floats, in the columns of ROW_HEADER, and one for all others."""
    aside = [row for row in coverage.rows if not (row.nodes.floats or row.flops.total or row.unknown)]
    yield from (_row(row) for row in coverage.rows if row not in aside)
    if aside:
        count = f"{sum(row.nodes.total for row in aside):,}"
        yield (f"({plural(len(aside), 'operator')} without floats)", count, "0", "0", "0", count, "0", "")


def _row(row: OperatorCoverage) -> tuple[str, ...]:
    counts = (row.nodes.half, row.nodes.full, row.nodes.mixed, row.nodes.other)
    known = flops(row.flops.total) + (f" and {row.unknown:,} unknown" if row.unknown else "")
    share = percent(row.flops.share) if row.flops.floats else ""
    return (row.operator, f"{row.nodes.total:,}", *(f"{c:,}" for c in counts), known, share)


def casts(coverage: Coverage) -> str:
    """The number of Casts, and the bytes that they move."""
    unknown = sum(cast.moved is None for cast in coverage.casts)
    more = f" and those of {unknown:,} of unknown shape" if unknown else ""
    return f"{len(coverage.casts):,} between half and float32, {size(coverage.cast_bytes)} a run{more}"
