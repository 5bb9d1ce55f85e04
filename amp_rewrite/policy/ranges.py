"""Declared ranges of inputs: by name, the least and the greatest number that an element has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from amp_rewrite import arguments

Ranges = Mapping[str, tuple[float, float]]
"""The range of each input that is declared."""

_EXAMPLE = '{"pixels": (0, 255)}'


def checked(name: str, given: object) -> Ranges:
    """The ranges of an argument; none for None. Raises OptionError for no pairs, NaN, and ends that cross."""
    found = arguments.mapping(name, {} if given is None else given, _EXAMPLE)
    return {key: _pair(f'{name}["{key}"]', ends) for key, ends in found.items()}


def _pair(name: str, given: Any) -> tuple[float, float]:
    ends = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(ends) != 2 or not all(map(arguments.is_number, ends)):
        raise arguments.refused(
            name, f"{arguments.shown(given)} is not two numbers", f"write it as in {_EXAMPLE}"
        )
    low, high = map(float, ends)
    if math.isnan(low) or math.isnan(high):
        raise arguments.refused(name, "NaN is no end of a range", "give two numbers, the lower one first")
    if low > high:
        raise arguments.refused(name, f"{low:g} is above {high:g}", "give the lower number first")
    return low, high
