"""What is known of values, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_rewrite.bounds.given import InputRange, Source
from amp_rewrite.bounds.unit_ranges import Knowledge, RangeCounts, UnitRange
from amp_rewrite.explaining.sentences import plural


def counts(found: RangeCounts, half: str) -> str:
    """How many half units are known to fit, and how."""
    parts = ((found.proven, "proven"), (found.observed, "observed"), (found.unknown, "unknown"))
    told = ", ".join(f"{number:,} {word}" for number, word in parts)
    return f"{plural(found.half_units, 'half unit')}: {told} to stay inside the range of {half}"


def inputs(found: RangeCounts) -> Iterator[str]:
    """The ranges of inputs that all bounds follow from, a line each."""
    return (_input(each) for each in found.inputs)


def assumed(found: RangeCounts) -> Iterator[str]:
    """The same for those ranges that nobody declared, and that need not hold."""
    return (_input(each) for each in found.inputs if each.source in (Source.IMAGE, Source.MASK))


def _input(found: InputRange) -> str:
    return f"input '{found.name}' is between {found.low:g} and {found.high:g} ({_SOURCES[found.source]})"


_SOURCES = {
    Source.DECLARED: "declared",
    Source.IMAGE: "assumed for images",
    Source.MASK: "assumed for masks",
    Source.IDS: "the entries of its table",
}


def of_unit(found: UnitRange) -> str:
    """What is known of the value of a unit of which least is known."""
    value = f"'{found.value}'" if found.value else "every value"
    if found.knowledge is Knowledge.OBSERVED:
        return f"{value} was at most {found.bound:.3g}"
    if math.isinf(found.bound):
        return f"nothing bounds {value}"
    return f"{value} is at most {found.bound:.3g}"
