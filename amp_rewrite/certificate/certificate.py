"""The outcome of a proof, as data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Licence(enum.Enum):
    """A permitted difference besides Casts between float types and constants rounded to half; each use is
    proved on its own. The table in docs/certificate.md says what each permits, by its value.
    """

    CLAMPED = "clamped"
    OVERFLOWED = "overflowed"
    LIFTED = "lifted"
    WIDENED = "widened"
    CONVERTED = "converted"
    RESTORED = "restored"
    TYPED = "typed"
    IO_TYPES = "io types"
    INLINED = "inlined"
    FUSED_CONV = "fused conv"
    OPSET = "opset"
    FOLDED = "folded"
    MERGED = "merged"
    MAX_AND_MIN = "max and min"
    RECIPROCAL = "reciprocal"
    SQUARE = "square"
    RANK = "rank"
    RESCALED = "rescaled"
    DEFAULT = "default"
    DECLARED = "declared types"


class DifferentError(Exception):
    """A failure to prove two values equal; `at` are the two and the output, by default the current pair."""

    def __init__(self, problem: str, at: tuple[int, int, str] | None = None) -> None:
        super().__init__(problem)
        self.problem, self.at = problem, at


@dataclass(frozen=True, slots=True)
class Place:
    """The first difference between two models: the `output` that depends on it, if any, and the producers of
    the two values.
    """

    output: str
    original: str
    rewritten: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """The outcome of proving `rewritten` equal to `original` up to precision.

    `nodes` counts the pairs of nodes that were proved equal, and `licences` the uses of each allowed
    difference. Where
    the proof failed, `problem` gives the reason, and `place` the location.

    Examples:
        >>> from amp_rewrite import certify, rewrite
        >>> from amp_rewrite.demo import network
        >>> proof = certify(network(), rewrite(network()).model)
        >>> proof.proved, proof.nodes
        (True, 49)
    """

    proved: bool
    nodes: int
    licences: Mapping[Licence, int] = field(default_factory=dict[Licence, int])
    problem: str = ""
    place: Place | None = None

    def __bool__(self) -> bool:
        """Return `proved`, so that `if certify(...)` means what it reads."""
        return self.proved

    def __str__(self) -> str:
        """Return one line, not escaped; a runtime may still reject a result that is proved."""
        return f"{self.summary}; not proved: that a runtime loads it" if self.proved else self.summary

    @property
    def summary(self) -> str:
        """The same line without the caveat on loading, for a result that is checked in other ways too."""
        if self.proved:
            used = ", ".join(f"{licence.value} {count:,}" for licence, count in self.licences.items())
            return f"proved equal but for precision{used and f', and for: {used}'}"
        place = self.place
        if place is None:
            return f"not proved equal: {self.problem}"
        prefix = f"for output '{place.output}': " if place.output else ""
        return (
            f"not proved equal: {prefix}{self.problem} (original: {place.original}; "
            f"rewritten: {place.rewritten})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as plain data.

        Examples:
            >>> from amp_rewrite import certify
            >>> from amp_rewrite.demo import network
            >>> certify(network(), network()).to_json()["proved"]
            True
        """
        place = self.place
        return {
            "proved": self.proved,
            "nodes": self.nodes,
            "licences": {licence.value: count for licence, count in self.licences.items()},
            "problem": self.problem or None,
            "place": place
            and {"output": place.output, "original": place.original, "rewritten": place.rewritten},
        }
