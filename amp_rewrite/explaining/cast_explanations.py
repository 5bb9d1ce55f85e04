"""Why a Cast stands where it stands: what made the value, and what reads it in the other type."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass
from typing import Any

from amp_rewrite.explaining.sentences import Step, chain
from amp_rewrite.rewriting.cast_sites import Crossing, Origin
from amp_rewrite.rewriting.decisions import Decisions


@dataclass(frozen=True, slots=True)
class CastStory:
    """A Cast of `value` to `dtype`; `added` says that the model did not have it.

    `origin` says where the value comes from, `maker` why that has its colour (nothing when no unit makes
    it), and each of `readers` why one that reads the result has its own. `leaves` holds when the result is
    an output of the model; `again` is the name of the result where that is cast once more, else nothing.
    """

    value: str
    dtype: str
    added: bool
    origin: Origin
    maker: tuple[Step, ...]
    readers: tuple[tuple[Step, ...], ...]
    leaves: bool
    again: str

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        readers = [[step.to_json() for step in steps] for steps in self.readers]
        maker = [step.to_json() for step in self.maker]
        return {**asdict(self), "origin": self.origin.value, "maker": maker, "readers": readers}


def about(decisions: Decisions, name: str) -> tuple[CastStory, ...]:
    """The Casts of a value of that name, or that are called so, or that make it; none where none stands."""
    found = [crossing for crossing in decisions.crossings if name in crossing.names]
    cast = {next(iter(crossing.names), "") for crossing in decisions.crossings} if found else set[str]()
    return tuple(_story(decisions, crossing, cast) for crossing in found)


def _story(decisions: Decisions, crossing: Crossing, cast: Container[str]) -> CastStory:
    """The story of one Cast; `cast` are the names of all values that are cast."""
    _, *others = crossing.names or ("",)
    again = others[-1] if others and not crossing.added and others[-1] in cast else ""
    return CastStory(
        value=next(iter(crossing.names), ""),
        dtype=crossing.dtype,
        added=crossing.added,
        origin=crossing.origin,
        maker=chain(decisions, crossing.maker) if crossing.maker is not None else (),
        readers=tuple(chain(decisions, reader) for reader in crossing.readers),
        leaves=crossing.leaves,
        again=again,
    )
