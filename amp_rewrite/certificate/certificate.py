"""The outcome of a proof, as data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Licence(enum.Enum):
    """What a result may differ in besides Casts between float types and stored values rounded to half; each
    use is proved on its own.

    CLAMPED: finite stored values beyond the range of half are its fill value of their sign, and masks of a
    softmax. OVERFLOWED: they are infinite, as rounding makes them. LIFTED: stored values that float16 has
    no number for, but 0, have one of its two least. WIDENED: values stored in half are stored in float32.
    CONVERTED: values stored in bfloat16 are stored in float16, or the reverse, rounded. RESTORED: all
    elements of a float32 value are as rounding to half and widening makes them. TYPED: an attribute gives
    an output another float type. IO_TYPES: an input or output of the model has another float type. INLINED:
    nodes of a function stand in place of its call. FUSED_CONV: a FusedConv is its parts. OPSET: an operator
    is of another version, which means the same. FOLDED: a value that depends on stored values alone is
    stored. MERGED: a BatchNormalization is in the weights of the product before it. MAX_AND_MIN: a Clip is
    a Max and a Min. RECIPROCAL: a Reciprocal is a division. SQUARE: a value times itself is its power of 2.
    RANK: a stored factor of a matrix product has more axes, of size 1. IDENTITY: an Identity is left out.
    UNUSED_OUTPUT: a node leaves out outputs that nothing reads. LOSS_SCALE: a value is multiplied by a loss
    scale, or by its reciprocal, and no output depends on the scale. SKIPPED: an output is the old state
    where gradients are not finite.
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
    IDENTITY = "identity"
    UNUSED_OUTPUT = "unused output"
    LOSS_SCALE = "loss scale"
    SKIPPED = "skipped"


class DifferentError(Exception):
    """Two values that are not proved equal; `at` are the two and the output, where not those in hand."""

    def __init__(self, problem: str, at: tuple[int, int, str] | None = None) -> None:
        super().__init__(problem)
        self.problem, self.at = problem, at


@dataclass(frozen=True, slots=True)
class Place:
    """The first place where two models differ: the `output` that it is read for, empty where it is none's,
    and what makes the two values.
    """

    output: str
    original: str
    rewritten: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether `rewritten` is proved equal to `original` but for precision.

    `nodes` counts the pairs of nodes that were proved equal, and `licences` the uses of each licence. Where
    nothing was proved, `problem` says why, and `place` where.

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

    def __str__(self) -> str:
        """One line, not escaped; a result that is proved may still be one that no runtime loads."""
        return f"{self.summary}; the proof says nothing of loading" if self.proved else self.summary

    @property
    def summary(self) -> str:
        """The same for a result that is checked besides."""
        if self.proved:
            used = ", ".join(f"{licence.value} {count:,}" for licence, count in self.licences.items())
            noun = "node" if self.nodes == 1 else "nodes"
            return f"proved equal but for precision: {self.nodes:,} {noun}, licences used: {used or 'none'}"
        place = self.place
        if place is None:
            return f"not proved equal: {self.problem}"
        read = f"for output '{place.output}': " if place.output else ""
        return (
            f"not proved equal: {read}{self.problem} (original: {place.original}; "
            f"rewritten: {place.rewritten})"
        )

    def to_json(self) -> dict[str, Any]:
        """The same as plain data.

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
