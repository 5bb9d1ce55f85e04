"""Flags of the command line, as metadata of the fields that they set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Need:
    """What a flag, or only this `word` of it, needs: that another `flag` is given, or, where that `does`
    something, that it is not, unless one of `unless` is given. Else it is refused, as it has no effect.
    """

    flag: str
    does: str = ""
    unless: tuple[str, ...] = ()
    word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag of the command line: a choice with `values`, or other texts like the `metavar` as well; words
    with `words`, which have meanings; a text with a `metavar`, which may be repeated if it `repeats`; else a
    switch.

    `about` is its help: `--help` prints the first sentence, or `short`, and `--help-all` everything. A `rare`
    flag is listed by `--help-all` alone, and `rare_values` are hidden. `kind` is the type of click that
    parses it. `sets` has the fields and arguments that messages of the library name, each with what follows
    the flag there.
    """

    name: str
    about: str
    short: str = ""
    metavar: str = ""
    values: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    rare_values: tuple[str, ...] = ()
    repeats: bool = False
    rare: bool = False
    default: Any = None
    kind: Any = None
    needs: tuple[Need, ...] = ()
    sets: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_switch(self) -> bool:
        """Return whether the flag takes no value."""
        return not (self.metavar or self.values or self.words)

    @property
    def is_multiple(self) -> bool:
        """Return whether the flag may be given several times."""
        return self.repeats or bool(self.words)

    @classmethod
    def of(cls, written: str, about: str, **settings: Any) -> Flag:
        """Return the flag that is written so: `--gate`, `--opset N`, or `--data PATH...`, which repeats."""
        name, _, metavar = written.partition(" ")
        repeats = metavar.endswith("...")
        return cls(name=name, about=about, metavar=metavar.removesuffix("..."), repeats=repeats, **settings)
