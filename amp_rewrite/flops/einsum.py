"""FLOPs of an Einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from amp_rewrite.flops.protos import Shape

_DOTS = "..."


def flops(equation: str, shapes: Sequence[Shape]) -> int:
    """For each setting of all indices, a product of the operands and its sum: one FLOP an operand.

    That is twice M N K for a matrix product. Raises ValueError when equation and shapes do not fit.
    """
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str | int, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)  # one broadcasts
    return len(terms) * math.prod(sizes.values())


def _labels(term: str, rank: int) -> list[str | int]:
    """A label for each dimension; those under an ellipsis are numbered from the last, as they broadcast."""
    if _DOTS not in term:
        return list(term)
    before, _, after = term.partition(_DOTS)
    hidden = rank - len(before) - len(after)
    return [*before, *range(-hidden, 0), *after]
