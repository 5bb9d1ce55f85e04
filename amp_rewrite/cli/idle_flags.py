"""Flags that do nothing beside another one: refused, since who writes one expects something of it.

`--dry-run` asks what the rest of a line would do, and goes with all of it but what asks for proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from amp_rewrite.cli.grouping import written
from amp_rewrite.errors import OptionError


@dataclass(frozen=True, slots=True)
class Idle:
    """Which `flags` do nothing `beside` another, and why: it `does` so. With one of `unless` they do."""

    beside: str
    does: str
    flags: tuple[str, ...]
    unless: tuple[str, ...] = ()

    def refuse(self, given: frozenset[str]) -> None:
        """OptionError where one of the flags is among those that are given."""
        idle = [flag for flag in self.flags if flag in given]
        if not idle or self.beside not in given or not given.isdisjoint(self.unless):
            return
        instead = f", or add {' or '.join(self.unless)}" if self.unless else ""
        raise OptionError(
            f"{' and '.join(idle)} {'does' if len(idle) == 1 else 'do'} nothing beside {self.beside}, "
            f"which {self.does}",
            remedy=f"leave out {' and '.join(idle)}, or {self.beside}{instead}",
        )


_PROOF = ("--require-verify",)
_COMPARISON = ("--tolerance", "--per-node", *_PROOF)
_INPUTS = ("--data", "--seed", "--samples", "--timeout")
_SIZES = ("--dim",)
_LOOKS = "--observe always"
_COUNTS = ("--html", "--plots")

IDLE = (
    Idle("--no-verify", "compares nothing", _COMPARISON),
    Idle("--no-verify", "runs nothing", _INPUTS, (_LOOKS, "--latency")),
    Idle("--no-verify", "runs nothing", _SIZES, (_LOOKS, "--latency", *_COUNTS)),
    Idle("--dry-run", "compares nothing", _PROOF),
    Idle("--data", "brings inputs of its own", ("--dim", "--seed", "--samples")),
    Idle("--update", "compares nothing", ("--tolerance",)),
)


def refuse_idle_flags(context: click.Context) -> None:
    """OptionError for a flag of the command that does nothing beside another (IDLE)."""
    flags = written(context, context.params)
    values = (f"{flag} {context.params[name]}" for name, flag in flags.items())
    given = frozenset((*flags.values(), *values))
    for rule in IDLE:
        rule.refuse(given)
