"""Records as JSON, and back: msgspec reads and checks them by their annotations; errors name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


def plain(record: object) -> Any:
    """Return a record as data for JSON: members of enumerations are their values, paths their text."""
    return msgspec.to_builtins(record, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):  # of NumPy
        return float(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def parse(text: bytes | str, kind: type[T], version: int | None = None) -> T:
    """Parse a JSON object, of a format version if it has one, as a record of `kind`; ValueError for anything
    else.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        content = json.loads(text)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()  # it can be a lone surrogate
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("the top level is not an object")
    if version is not None and "format" in content and content["format"] != version:
        other = content["format"] if isinstance(content["format"], int) else "another"
        raise ValueError(f"format {other}, and {version} is read here")
    return convert(content, kind)


def convert(content: object, kind: type[T], *, strict: bool = True) -> T:
    """Return a record of `kind` from plain data, or from texts unless `strict`; ValueError, which names the
    field.
    """
    try:
        return msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        place = path.rstrip("`").lstrip(".")
        words = problem[:1].lower() + problem[1:].replace("`", "")
        raise ValueError(f"{place}: {words}" if place else words) from None
