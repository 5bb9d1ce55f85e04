"""Advice on Tensor Cores as text."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.advice.advice import Advice
from amp_rewrite.advice.padding import Padding
from amp_rewrite.coverage.assumptions import some
from amp_rewrite.explaining.sentences import plural, share


def lines(advice: Advice) -> Iterator[str]:
    """Why the device gains no speed; else the products that padding would speed up, two lines each."""
    if advice.shortfall:
        yield advice.shortfall
        return
    if advice.paddings:
        yield _WHY
    for padding in advice.paddings:
        yield _title(padding)
        yield f"  {_dimensions(padding)}; padded: {_cost(padding)}"
    if not advice.paddings:
        yield f"all known dimensions of products in {advice.half} are multiples of 8"
    if advice.open_dims:
        names = some(advice.open_dims)
        yield f"open dimensions were not examined ({names}); --dim NAME=SIZE sets them"


_WHY = (
    "Tensor Cores take any size since cuBLAS 11 and cuDNN 7.6.3, and are fastest with multiples of 8; "
    "these products have other dimensions:"
)


def _title(padding: Padding) -> str:
    part = "" if padding.flop_share is None else f", {share(padding.flop_share)} of FLOPs"
    more = len(padding.nodes) - 1
    others = f" and {more:,} more" if more else ""
    return f"{plural(len(padding.nodes), 'node')}{part}: {padding.operator} '{padding.nodes[0]}'{others}"


def _dimensions(padding: Padding) -> str:
    return ", ".join(f"{found.name} {found.size:,} -> {found.padded:,}" for found in padding.dimensions)


def _cost(padding: Padding) -> str:
    weights = f"{share(padding.extra_bytes)} more bytes in their second operand"
    return f"{share(padding.extra_flops)} more FLOPs, {weights}"
