"""Decisions as JSON records: the one form that saved plans and the metadata of results share.

msgspec reads and checks them by their annotations; errors name the path of the field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import onnx_ir as ir

from amp_rewrite.colouring.painting import Colour, Paint, Rule
from amp_rewrite.policy.evidence import Evidence
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.rewriting.cast_sites import CastSite, Origin

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


def plain(record: object) -> Any:
    """Return a record as data for JSON: members of enumerations are their values, paths their text."""
    return msgspec.to_builtins(record, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def parse(text: bytes | str, kind: type[T], version: int | None = None) -> T:
    """Parse a JSON object, of a format version if it has one, as a record of `kind`; ValueError for anything
    else.
    """
    try:
        content = json.loads(text if isinstance(text, str) else text.decode())
        json.dumps(content, ensure_ascii=False).encode()  # JSON can hold a lone surrogate
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("the top level is not an object")
    if version is not None and "format" in content and content["format"] != version:
        other = content["format"] if isinstance(content["format"], int) else "another"
        raise ValueError(f"format {other}, and {version} is read here")
    return convert(content, kind)


def convert(content: object, kind: type[T], where: str = "", *, strict: bool = True) -> T:
    """Return a record of `kind` from plain data, or from texts unless `strict`; ValueError, which names the
    field below `where`.
    """
    try:
        return msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        place = f"{where}{path.rstrip('`')}".lstrip(".")
        words = problem[:1].lower() + problem[1:].replace("`", "")
        raise ValueError(f"{place}: {words}" if place else words) from None


def refuse_dangling(positions: Iterable[int | None], count: int, where: str) -> None:
    """Raise ValueError for a position that is not one of `count` units."""
    for position in positions:
        if position is not None and position >= count:
            raise ValueError(f"{where}: there is no unit {position}")


@dataclass(frozen=True, kw_only=True)
class PaintRecord:
    """A paint; `cause` is the position of a unit, or null."""

    colour: Colour
    rule: Rule
    cause: Count | None

    @property
    def paint(self) -> Paint:
        """The paint of the record."""
        return Paint(self.colour, self.rule, self.cause)


@dataclass(frozen=True, kw_only=True)
class EntryRecord(Evidence):
    """An entry: its evidence, and the kinds that follow from it."""

    kind: Kind
    follow: bool

    @property
    def entry(self) -> Entry:
        """The entry of the record."""
        return Entry(self.kind, Evidence(**{name: getattr(self, name) for name in _EVIDENCE}), self.follow)


_EVIDENCE = tuple(field.name for field in dataclasses.fields(Evidence))


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return the fields of an EntryRecord, without those that the evidence does not have."""
    details = {name: getattr(entry.evidence, name) for name in _EVIDENCE}
    details |= {"authority": entry.authority.value, "reason": entry.evidence.reason.value}
    present = {name: value for name, value in details.items() if value not in ("", None)}
    return {"kind": entry.kind.value, "follow": entry.follow, **present}


@dataclass(frozen=True, kw_only=True)
class CastSiteRecord:
    """The reason for a Cast, with units by position."""

    origin: Origin
    producer: Count | None
    consumers: tuple[Count, ...]
    is_output: bool

    def site(self, node: ir.Node | None, names: tuple[str, ...], dtype: str, *, is_new: bool) -> CastSite:
        """Return the site of the Cast `node` to `dtype`, known by `names`."""
        return CastSite(
            node, names, dtype, self.origin, self.producer, self.consumers, self.is_output, is_new
        )
