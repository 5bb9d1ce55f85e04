"""What mends a failed comparison: options that are tried before they are suggested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.rewriting.report import NodeCounts
from amp_rewrite.running.verdict import Tried, Verdict


@dataclass(frozen=True, slots=True)
class Attempted:
    """The verdict on another result, and how many of its nodes are half."""

    verdict: Verdict
    nodes: NodeCounts | None = None


Attempt = Callable[[Options], Attempted | None]
"""Rewrites with other options, and compares with blame; None where that cannot be done."""

SECONDS = 30.0
"""No attempt begins later than this."""

ROUNDS = 3
"""The most rounds of pins, each with those of the round before."""

NEARER = 0.9
"""The share of the error that pins must leave at most, for more of them to be tried."""

_LEVELS = {
    Level.DEFAULT: (Level.TREAT_INFER_AS_DENY, Level.TENSOR_CORES_ONLY),
    Level.UNSAFE_FORCE_ALL: (Level.DEFAULT,),
}
"""The levels that are tried after one."""


def tried(failed: Verdict, options: Options, attempt: Attempt) -> tuple[Tried, ...]:
    """What was tried after a failed verdict, up to the first that mends it.

    Float32 for inputs and outputs that cannot be half, where there are such. Else pins of what is blamed,
    then levels that keep more in float32.
    """
    found: list[Tried] = []
    until = time.monotonic() + SECONDS
    for one in _attempts(failed, options, attempt):
        found.append(one)
        if one.ok or time.monotonic() > until:
            break
    return tuple(found)


def _attempts(failed: Verdict, options: Options, attempt: Attempt) -> Iterator[Tried]:
    if failed.misfits:
        yield from _with_io(failed, options, attempt)
        return
    yield from _with_pins(failed, options, attempt)
    for level in _LEVELS.get(options.level, ()):
        found = attempt(replace(options, level=level))
        if found is not None:
            yield Tried((), level.value, found.verdict.error, found.verdict.ok, found.nodes)


def _with_io(failed: Verdict, options: Options, attempt: Attempt) -> Iterator[Tried]:
    names = tuple(port.name for port in failed.misfits)
    found = attempt(replace(options, keep_io=(*options.keep_io, *names)))
    if found is not None:
        yield Tried((), None, found.verdict.error, found.verdict.ok, found.nodes, names)


def _with_pins(failed: Verdict, options: Options, attempt: Attempt) -> Iterator[Tried]:
    kept: tuple[str, ...] = ()
    for _ in range(ROUNDS):
        more = failed.blame.keep_full if failed.blame is not None else ()
        if not set(more) - set(kept):
            return
        kept = tuple(dict.fromkeys((*kept, *more)))
        pins = Pins((*options.pins.keep_full, *kept), options.pins.force_half)
        found = attempt(replace(options, pins=pins))
        if found is None:
            return
        yield Tried(kept, None, found.verdict.error, found.verdict.ok, found.nodes)
        if not _is_nearer(failed, found.verdict):
            return
        failed = found.verdict


def _is_nearer(before: Verdict, after: Verdict) -> bool:
    """Whether the error fell, or another node than before is the first to lose a value."""
    lost = before.blame is not None and before.blame.first_lost is not None
    return lost or after.error <= NEARER * before.error
