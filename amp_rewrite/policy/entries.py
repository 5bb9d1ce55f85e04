"""The entry of one operator, and its form in a YAML list; errors name the file and the line."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import yaml

from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.yaml_fields import KEEP_ONE, Field, fields, is_text, truth


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


def read(top: Iterable[Field], source: str, operator: Callable[[Field], Operator]) -> dict[Operator, Entry]:
    """Return the entries of a file's lists, for the operators that `operator` takes their fields for.

    Raises ListError with file and line for an invalid entry, and for an operator on two lists.
    """
    entries: dict[Operator, Entry] = {}
    fields: dict[Operator, Field] = {}
    for kind, field in _each_kind(top):
        key = operator(field)
        if key in fields:
            where = f"{entries[key].kind.value} on line {fields[key].line} and {kind.value} here"
            raise field.error(f"{field.name} is on two lists: {where}", KEEP_ONE)
        fields[key] = field
        entries[key] = _entry(field, kind, source)
    return entries


def _each_kind(top: Iterable[Field]) -> Iterator[tuple[Kind, Field]]:
    kinds = {kind.value: kind for kind in Kind}
    for section in top:
        if section.name in kinds and section.value.tag != "tag:yaml.org,2002:null":
            for field in _operators(section):
                yield kinds[section.name], field


def _operators(section: Field) -> list[Field]:
    if not isinstance(section.value, yaml.MappingNode):
        raise section.error(
            f"the list {section.name} is not a mapping", "write each operator as MatMul: the reason"
        )
    return fields(section.file, section.value)


def _entry(field: Field, kind: Kind, source: str) -> Entry:
    if not isinstance(field.value, yaml.MappingNode):
        return Entry(kind, _evidence(field, field, source))
    inner = {part.name: part for part in fields(field.file, field.value, _ENTRY_KEYS)}
    follow = "follow" in inner and _follow(inner["follow"], field.name, kind)
    return Entry(kind, _evidence(field, inner.get("reason"), source), follow)


def _evidence(field: Field, where: Field | None, source: str) -> Evidence:
    if where is None or not is_text(where.value):
        raise field.error(f"{field.name} gives no reason", f"write {field.name}: the reason")
    text = " ".join(where.value.value.split())
    return Evidence(Authority.LIST, Reason.LISTED, subject=source, text=text)


def _follow(field: Field, operator: str, kind: Kind) -> bool:
    if kind is not Kind.INFER:
        raise field.error(
            f"{operator} is on {kind.value} and says follow", "only operators on infer can follow"
        )
    return truth(field)


_ENTRY_KEYS = ("reason", "follow")


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
