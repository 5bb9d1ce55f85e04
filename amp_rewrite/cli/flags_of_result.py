"""The flags that a result was made with, by the decisions that it carries, for making another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.explaining.causes import Change
from amp_rewrite.model import loading
from amp_rewrite.policy.evidence import Authority, Reason
from amp_rewrite.policy.node_patterns import matcher
from amp_rewrite.policy.options import Level
from amp_rewrite.rewriting import annotations
from amp_rewrite.rewriting.decisions import Decision, Decisions
from amp_rewrite.running.blame import Blame


def beside(rewritten: Path, blame: Blame | None) -> tuple[Change, ...]:
    """The flags that go with pins of what is blamed, without any that says the same or the opposite.

    None of a model that carries no decisions that can be read, or more than MOST.
    """
    pins = blame.keep_full if blame is not None else ()
    kept = _matched(pins, {error.node for error in blame.nodes} if blame is not None else set())
    found = _all(rewritten)
    return tuple(change for change in found if len(found) <= MOST and not _clashes(change, pins, kept))


MOST = 50
"""The flags of a command that somebody may have typed; metadata can hold any number."""


def _all(rewritten: Path) -> tuple[Change, ...]:
    try:
        found = annotations.read(loading.load(rewritten).model)
    except ModelError:
        return ()
    return () if found is None else _decided(found)


def _clashes(change: Change, pins: Iterable[str], kept: set[str]) -> bool:
    if change.option == "keep_full":
        return change.subject in pins
    return change.option == "force_half" and bool(_matched([change.subject], kept))


def _matched(patterns: Iterable[str], names: set[str]) -> set[str]:
    """The names that patterns match; what is no pattern matches none."""
    found: set[str] = set()
    for pattern in patterns:
        with contextlib.suppress(OptionError):
            found.update(filter(matcher(pattern, "", names), names))
    return found


def _decided(decisions: Decisions) -> tuple[Change, ...]:
    """The level, pins, and operators on other lists, each once.

    A pin or an operator that decided nothing, a list of the user's own and what runs showed are not in it.
    """
    found = dict.fromkeys(change for decision in decisions.all for change in _of_unit(decision))
    return tuple(sorted(found, key=lambda change: change.option != _LEVEL))


_LEVEL = "level"
_PINS = {Reason.KEPT: "keep_full", Reason.FORCED: "force_half"}
_LEVELS = {
    Reason.ALLOW_LIST_ONLY: Level.TENSOR_CORES_ONLY,
    Reason.INFER_AS_DENY: Level.TREAT_INFER_AS_DENY,
    Reason.EVERYTHING_FORCED: Level.UNSAFE_FORCE_ALL,
}


def _of_unit(decision: Decision) -> Iterator[Change]:
    entry, reason = decision.entry, decision.entry.evidence.reason
    if reason in _LEVELS:
        yield Change(_LEVEL, _LEVELS[reason].value)
    elif reason in _PINS:
        yield Change(_PINS[reason], entry.evidence.subject)
    elif entry.authority is Authority.OVERRIDE:
        yield Change(entry.kind.value, decision.operator)
