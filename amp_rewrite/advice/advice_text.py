"""Advice on Tensor Cores as text."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.advice.advice import Advice
from amp_rewrite.advice.padding import Padding
from amp_rewrite.coverage.counts import some
from amp_rewrite.explaining.sentences import plural, share


def lines(advice: Advice) -> Iterator[str]:
    """Why the device gains no speed; else the products that padding would speed up, two lines each."""
    if advice.shortfall:
        yield advice.shortfall
        return
    if advice.paddings:
        yield _WHY
    for padding in advice.paddings:
        yield from _padding(padding)
    if not advice.paddings:
        yield f"all known dimensions of products in {advice.half} are multiples of 8"
    if advice.open_dims:
        names = some(advice.open_dims)
        yield f"open dimensions were not examined ({names}); --dim NAME=SIZE sets them"


_WHY = (
    "Tensor Cores take any size since cuBLAS 11 and cuDNN 7.6.3, and are fastest with multiples of 8; "
    "these products have other dimensions:"
)


def _padding(padding: Padding) -> Iterator[str]:
    part = "" if padding.flop_share is None else f", {share(padding.flop_share)} of FLOPs"
    more = len(padding.nodes) - 1
    others = f" and {more:,} more" if more else ""
    yield f"{plural(len(padding.nodes), 'node')}{part}: {padding.operator} '{padding.nodes[0]}'{others}"
    sizes = ", ".join(f"{found.name} {found.size:,} -> {found.padded:,}" for found in padding.dimensions)
    extra_bytes = f"{share(padding.extra_bytes)} more bytes in their second operand"
    yield f"  {sizes}; padded: {share(padding.extra_flops)} more FLOPs, {extra_bytes}"
