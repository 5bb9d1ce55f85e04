"""What a word that is not known was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_HALVES = {"fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16", "bfp16": "bfloat16"}
"""Other names of the half types."""

_NEAR = 0.8
"""How alike two words are (difflib's ratio) that one may be a slip for."""


def near(word: str, known: Iterable[str]) -> str | None:
    """The one of these that a word stands for, is near, or else is the beginning of; None where none is."""
    names = list(known)
    other = _HALVES.get(word)
    return other if other in names else _alike(word, names)


def _alike(word: str, known: list[str]) -> str | None:
    alike = difflib.get_close_matches(word, known, n=1, cutoff=_NEAR)
    begun = [each for each in known if word and each.startswith(word)]
    return alike[0] if alike else begun[0] if len(begun) == 1 else None
