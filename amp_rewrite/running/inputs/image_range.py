"""The range of the values of an image."""

from __future__ import annotations

import enum


class ImageRange(enum.Enum):
    """The range of an image's values."""

    UNIT = "0..1"
    BYTES = "0..255"

    @property
    def most(self) -> float:
        """The largest value; the smallest is 0."""
        return 1.0 if self is ImageRange.UNIT else 255.0
