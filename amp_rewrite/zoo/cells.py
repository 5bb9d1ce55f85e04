"""The columns of a zoo, in a terminal and on its page."""

from __future__ import annotations

from amp_rewrite.zoo.row import Row

HEADER = ("model", "status", "half nodes", "Casts", "error", "predicted", "MB", "was", "seconds")


def cells(row: Row) -> list[str]:
    """The cells of a row; empty where a number is not known."""
    before, after = row.sizes or (None, None)
    return [
        row.name,
        row.status.value,
        "" if row.half is None else f"{row.half:.0%}",
        "" if row.casts is None else f"{row.casts:,}",
        "" if row.error is None else f"{row.error:.1e}",
        "" if row.speedup is None else f"{row.speedup:.2f}x",
        _megabytes(after),
        _megabytes(before),
        f"{row.seconds:.1f}",
    ]


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"
