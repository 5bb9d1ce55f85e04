"""The entry of one operator, and its form in a YAML list; errors name the file and the line."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_rewrite.errors import OptionError
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.yaml_fields import KEEP_ONE, Document


class Kind(enum.Enum):
    """The class of a unit by lists, schema, target and ranges.

    ALLOW: faster in half, and safe. INFER: safe in half unless it is fed by something dangerous.
    CLEAR: no significant arithmetic; follows its neighbours. DENY: dangerous in half, and its
    consumers are suspect too. FIXED: stays float32 for a reason of its own; half does not
    spread through it, and its consumers are not suspect. An operator on no list is FIXED.
    """

    ALLOW = "allow"
    INFER = "infer"
    CLEAR = "clear"
    DENY = "deny"
    FIXED = "fixed"


Operator = tuple[str, str]
"""Domain and name; ONNX's default domain is the empty text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The kind of an operator or a unit, and the evidence for it.

    `follow` (INFER only): continues in half behind a half unit, so that the runtime can fuse the two.
    `unheld` is its kind without the pin or finding that fixes it to float32. `stands_as` is set for a FIXED
    unit that computes the result of an operator of that kind; the rules treat it as one.
    """

    kind: Kind
    evidence: Evidence
    follow: bool = False
    unheld: Kind | None = None
    stands_as: Kind | None = None

    @property
    def taken_as(self) -> Kind:
        """The kind by which the rules paint its neighbours."""
        return self.stands_as or self.kind

    @property
    def authority(self) -> Authority:
        """The authority of the evidence."""
        return self.evidence.authority


def read(document: Document, source: str, operator: Callable[[Path, str], Operator]) -> dict[Operator, Entry]:
    """Return the entries of a file's lists, for the operators that `operator` takes their names for.

    Raises ListError with file and line for an invalid entry, and for an operator on two lists.
    """
    entries: dict[Operator, Entry] = {}
    where: dict[Operator, tuple[str, str]] = {}
    for kind, name, value in _each_kind(document):
        keys = (kind.value, name)
        try:
            key = operator(document.file, name)
        except OptionError as error:
            raise document.error(error.problem, *keys, remedy=error.remedy) from error
        if key in entries:
            other, line = entries[key].kind.value, document.lines[where[key]]
            problem = f"{name} is on two lists: {other} on line {line} and {kind.value} here"
            raise document.error(problem, *keys, remedy=KEEP_ONE)
        where[key] = keys
        entries[key] = _entry(document, kind, name, value, source)
    return entries


def _each_kind(document: Document) -> Iterator[tuple[Kind, str, Any]]:
    kinds = {kind.value: kind for kind in Kind}
    for section, listed in document.content.items():
        if section in kinds and listed:
            if not isinstance(listed, dict):
                remedy = "write each operator as MatMul: the reason"
                raise document.error(f"the list {section} is not a mapping", section, remedy=remedy)
            for name, value in listed.items():
                yield kinds[section], name, value


def _entry(document: Document, kind: Kind, name: str, value: Any, source: str) -> Entry:
    keys, settings = (kind.value, name), value if isinstance(value, dict) else {"reason": value}
    for key in settings if settings is value else ():
        document.refuse_unknown(("reason", "follow"), *keys, key)
    reason = settings.get("reason")
    if not isinstance(reason, str) or not reason:
        raise document.error(f"{name} gives no reason", *keys, remedy=f"write {name}: the reason")
    if "follow" in settings and kind is not Kind.INFER:
        problem = f"{name} is on {kind.value} and says follow"
        raise document.error(problem, *keys, "follow", remedy="only operators on infer can follow")
    follow = document.truth(settings.get("follow", "false"), *keys, "follow")
    return Entry(kind, Evidence(Authority.LIST, Reason.LISTED, subject=source, text=reason), follow)


def flag_of(option: str, subject: str = "") -> str:
    """Return the flag for a subject: of a pin by its field, or of a kind by its value."""
    is_listed = option in (Kind.INFER.value, Kind.CLEAR.value)
    name, separator = (f"list {option}", "=") if is_listed else (option.replace("_", "-"), " ")
    return f"--{name}{separator}{subject}" if subject else f"--{name}"


def authority_in_words(evidence: Evidence, kind: Kind) -> str:
    """Return the name of the list, the flag of the override that gave a kind, else the authority."""
    if evidence.authority is Authority.LIST:
        return evidence.subject
    is_listed = evidence.authority is Authority.OVERRIDE and evidence.reason is Reason.ASKED
    return flag_of(kind.value) if is_listed else evidence.authority.value
