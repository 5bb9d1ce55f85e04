"""Flags that have no effect with another flag; they are refused, as their user expects one.

With `--dry-run` every flag of the real run is accepted, except `--require-verify`.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from amp_rewrite.cli.flag_builders import written
from amp_rewrite.errors import OptionError


@dataclass(frozen=True, slots=True)
class Ineffective:
    """`flags` have no effect with the flag `beside`, which `does` what; unless one of `unless` is given."""

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
            f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect with {self.beside}, "
            f"which {self.does}",
            remedy=f"leave out {' and '.join(idle)}, or {self.beside}{instead}",
        )


_OBSERVE = "--observe always"

INEFFECTIVE = (
    Ineffective(
        "--no-verify",
        "compares nothing",
        ("--tolerance", "--metric", "--provider", "--per-node", "--require-verify"),
    ),
    Ineffective(
        "--no-verify",
        "runs no model",
        ("--data", "--seed", "--samples"),
        (_OBSERVE, "--latency"),
    ),
    Ineffective("--no-verify", "runs no model", ("--custom-ops",), (_OBSERVE, "--calibrate", "--latency")),
    Ineffective(
        "--no-verify", "runs no model", ("--timeout",), (_OBSERVE, "--calibrate", "--latency", "--placement")
    ),
    Ineffective("--no-verify", "runs no model", ("--dim",), (_OBSERVE, "--latency", "--html", "--plots")),
    Ineffective("--dry-run", "compares nothing", ("--require-verify",)),
    Ineffective("--quiet", "prints errors only", ("--verbose",)),
    Ineffective("--data", "supplies the inputs", ("--dim", "--seed", "--samples")),
    Ineffective("--update", "compares nothing", ("--tolerance",)),
)


def refuse_ineffective_flags(context: click.Context) -> None:
    """OptionError for a flag of the command that has no effect with another one (INEFFECTIVE)."""
    flags = written(context, context.params)
    values = (f"{flag} {context.params[name]}" for name, flag in flags.items())
    given = frozenset((*flags.values(), *values))
    for rule in INEFFECTIVE:
        rule.refuse(given)
