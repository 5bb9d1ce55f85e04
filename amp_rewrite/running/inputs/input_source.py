"""Where the inputs of a comparison come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InputSource:
    """Made up from `seed`, or read from `paths`, or else handed over by the caller.

    `files` names the file or folder of each sample that was read, in their order.
    """

    seed: int | None = None
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def is_synthetic(self) -> bool:
        """Whether the inputs were made up."""
        return self.seed is not None

    def sample(self, index: int) -> str:
        """What to call a sample, counted from 0; nothing where it was made up, like all others."""
        if self.is_synthetic:
            return ""
        return self.files[index] if index < len(self.files) else f"sample {index + 1}"

    def to_json(self) -> dict[str, Any]:
        """The same as plain data, but for the names of single samples."""
        return {"synthetic": self.is_synthetic, "seed": self.seed, "paths": list(self.paths)}


FROM_CALLER = InputSource()
"""Handed over by the caller, who knows more about them."""
