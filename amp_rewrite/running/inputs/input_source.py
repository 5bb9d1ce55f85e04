"""Where the inputs of a comparison come from."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class ImageRange(enum.Enum):
    """The range of an image's values."""

    UNIT = "0..1"
    BYTES = "0..255"

    @property
    def most(self) -> float:
        """The largest value; the smallest is 0."""
        return 1.0 if self is ImageRange.UNIT else 255.0


@dataclass(frozen=True, slots=True)
class InputSource:
    """Synthesised with `seed`, or read from `paths`, or else passed by the caller.

    `files` has the file or folder of each sample that was read, in order; `images` is the range of synthetic
    images, None if there are none, or several ranges.
    """

    seed: int | None = None
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    images: ImageRange | None = None

    @property
    def is_synthetic(self) -> bool:
        """Whether the inputs are synthetic."""
        return self.seed is not None

    def sample(self, index: int) -> str:
        """The display name of a sample, counted from 0; empty for synthetic ones, which are all alike.

        The caller's are named as in Python: `samples[0]`.
        """
        if self.is_synthetic:
            return ""
        return self.files[index] if index < len(self.files) else f"samples[{index}]"

    def to_json(self) -> dict[str, Any]:
        """This as JSON data, without the names of single samples."""
        return {
            "synthetic": self.is_synthetic,
            "seed": self.seed,
            "paths": list(self.paths),
            "images": self.images.value if self.images else None,
        }


FROM_CALLER = InputSource()
