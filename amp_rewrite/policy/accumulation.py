"""In which type kernels of a half operator add up."""

from __future__ import annotations

import enum


class Accumulation(enum.Enum):
    """FLOAT: in float32, as tensor cores do; HALF: every product and every partial sum is rounded."""

    FLOAT = "float"
    HALF = "half"
