"""The flags that decisions were made with, as far as these show them."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.explaining.causes import Change
from amp_rewrite.policy.evidence import Authority, Reason
from amp_rewrite.policy.options import Level
from amp_rewrite.rewriting.decisions import Decision, Decisions


def of(decisions: Decisions) -> tuple[Change, ...]:
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
