"""The values of `--range`: the range of an input as NAME=LO:HI."""

from __future__ import annotations

import math
from collections.abc import Sequence

from amp_rewrite.errors import OptionError

_EXAMPLE = "write it as in --range pixels=0:255"


def parse(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Ranges by name; OptionError for what is not NAME=LO:HI, ends that cross, NaN, and two for one input.

    The names of inputs may have an = or a colon in them, and numbers have neither.
    """
    found: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, ends = text.rpartition("=")
        low, _, high = ends.partition(":")
        if not name:
            raise OptionError(f"--range {text} is not NAME=LO:HI", remedy=_EXAMPLE)
        if name in found:
            raise OptionError(f"--range gives {name} two ranges", remedy="give it once")
        found[name] = _pair(text, low, high)
    return found


def _pair(text: str, low: str, high: str) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except ValueError:
        raise OptionError(f"--range {text} is not NAME=LO:HI", remedy=_EXAMPLE) from None
    if any(map(math.isnan, ends)):
        raise OptionError(f"--range {text} ends at NaN", remedy="give two numbers, the lower one first")
    if ends[0] > ends[1]:
        raise OptionError(f"--range {text} ends below where it begins", remedy="give the lower number first")
    return ends
