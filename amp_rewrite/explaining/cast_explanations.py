"""Why a Cast stands where it stands: what made the value, and what reads it in the other type."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass
from typing import Any

from amp_rewrite.explaining.sentences import Step, chain
from amp_rewrite.rewriting.cast_sites import CastSite, Origin
from amp_rewrite.rewriting.decisions import Decisions


@dataclass(frozen=True, slots=True)
class CastExplanation:
    """A Cast of `value` to `dtype`; `added` says that the model did not have it.

    `origin` says where the value comes from, `maker` why that has its colour (nothing when no unit makes
    it), and each of `readers` why one that reads the result has its own. `leaves` holds when the result is
    an output of the model; `again` is the name of the result where that is cast once more, else nothing.
    """

    value: str
    dtype: str
    added: bool
    origin: Origin
    producer: tuple[Step, ...]
    consumers: tuple[tuple[Step, ...], ...]
    is_output: bool
    again: str

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        consumers = [[step.to_json() for step in steps] for steps in self.consumers]
        producer = [step.to_json() for step in self.producer]
        return {**asdict(self), "origin": self.origin.value, "producer": producer, "consumers": consumers}


def about(decisions: Decisions, name: str) -> tuple[CastExplanation, ...]:
    """The Casts of a value of that name, or that are called so, or that make it; none where none stands."""
    found = [crossing for crossing in decisions.cast_sites if name in crossing.names]
    cast = {next(iter(crossing.names), "") for crossing in decisions.cast_sites} if found else set[str]()
    return tuple(_story(decisions, crossing, cast) for crossing in found)


def _story(decisions: Decisions, crossing: CastSite, cast: Container[str]) -> CastExplanation:
    """The story of one Cast; `cast` are the names of all values that are cast."""
    _, *others = crossing.names or ("",)
    again = others[-1] if others and not crossing.added and others[-1] in cast else ""
    return CastExplanation(
        value=next(iter(crossing.names), ""),
        dtype=crossing.dtype,
        added=crossing.added,
        origin=crossing.origin,
        producer=chain(decisions, crossing.producer) if crossing.producer is not None else (),
        consumers=tuple(chain(decisions, reader) for reader in crossing.consumers),
        is_output=crossing.is_output,
        again=again,
    )
