"""Why a Cast stands where it stands: what made the value, and what reads it in the other type."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from amp_rewrite.crossings import Crossing, Origin
from amp_rewrite.decisions import Decisions
from amp_rewrite.reporting.sentences import Step, chain


@dataclass(frozen=True, slots=True)
class CastStory:
    """A Cast of `value` to `dtype`; `added` says that the model did not have it.

    `origin` says where the value comes from, `maker` why that has its colour (nothing when no unit makes
    it), and each of `readers` why one that reads the result has its own. `leaves` holds when the result is
    an output of the model.
    """

    value: str
    dtype: str
    added: bool
    origin: Origin
    maker: tuple[Step, ...]
    readers: tuple[tuple[Step, ...], ...]
    leaves: bool

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        readers = [[step.to_json() for step in steps] for steps in self.readers]
        maker = [step.to_json() for step in self.maker]
        return {**asdict(self), "origin": self.origin.value, "maker": maker, "readers": readers}


def about(decisions: Decisions, name: str) -> tuple[CastStory, ...]:
    """The Casts of a value of that name, or that are called so, or that make it; none where none stands."""
    return tuple(_story(decisions, crossing) for crossing in decisions.crossings if name in crossing.names)


def _story(decisions: Decisions, crossing: Crossing) -> CastStory:
    return CastStory(
        value=next(iter(crossing.names), ""),
        dtype=crossing.dtype,
        added=crossing.added,
        origin=crossing.origin,
        maker=chain(decisions, crossing.maker) if crossing.maker is not None else (),
        readers=tuple(chain(decisions, reader) for reader in crossing.readers),
        leaves=crossing.leaves,
    )
