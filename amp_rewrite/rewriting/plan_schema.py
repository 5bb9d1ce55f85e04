"""What a saved plan consists of, field by field; whatever is otherwise is named by its path."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from amp_rewrite.colouring.rules import Colour, Rule
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.rewriting.cast_sites import Origin
from amp_rewrite.rewriting.plan import Storage

FORMAT = 2
"""The version of the file format; a file of another version is refused."""


def check(content: object) -> None:
    """ValueError, which names the field by its path, where content is no plan."""
    if not isinstance(content, dict):
        raise ValueError("the top level is not an object")
    if "format" not in content:
        raise ValueError("it has no 'format'")
    if content["format"] != FORMAT:
        version = content["format"] if isinstance(content["format"], int) else "another"
        raise ValueError(f"format {version}, and {FORMAT} is read here")
    _check_fields("", content, _TOP)
    units = len(content["units"])
    unit = _Field(lambda value: _is_count(value) and value < units, "the position of a unit")
    casts = content.get("casts", [])
    _check_rows("units", content["units"], {**_UNIT, "cause": _or_null(unit)})
    _check_rows("casts", casts, _CAST)
    _check_rows("casts", casts, _explained(unit), where="readers")
    _check_rows("stored", content.get("stored", []), _STORED)


def _explained(unit: _Field) -> _Fields:
    """What a Cast has besides, in plans that say why it stands."""
    return {
        "origin": _one_of(Origin),
        "maker": _or_null(unit),
        "readers": _Field(
            lambda value: isinstance(value, list) and all(map(unit.holds, value)),
            "a list of units' positions",
        ),
        "leaves": _SWITCH,
    }


@dataclass(frozen=True, slots=True)
class _Field:
    """What a field holds, in words; with `can_lack` it may not be there at all."""

    holds: Callable[[Any], bool]
    words: str
    can_lack: bool = False


_Fields = Mapping[str, _Field]


def _check_rows(path: str, rows: list[Any], fields: _Fields, *, where: str = "") -> None:
    """Checks the rows of a list; with `where`, those that have that field."""
    for position, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"{path}[{position}] is {_shown(row)}, and must be an object")
        if not where or where in row:
            _check_fields(f"{path}[{position}].", row, fields)


def _check_fields(path: str, row: Mapping[str, Any], fields: _Fields) -> None:
    for name, field in fields.items():
        if name in row:
            if not field.holds(row[name]):
                raise ValueError(f"{path}{name} is {_shown(row[name])}, and must be {field.words}")
        elif not field.can_lack:
            raise ValueError(f"it has no '{path}{name}'")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 40


def _is_text(value: object) -> bool:
    return isinstance(value, str) and (value.isascii() or _can_be_written(value))


def _can_be_written(text: str) -> bool:
    """Whether text is Unicode: JSON can hold half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _or_null(field: _Field) -> _Field:
    return _Field(
        lambda value: value is None or field.holds(value), f"{field.words}, or null", field.can_lack
    )


def _one_of(words: type[enum.Enum]) -> _Field:
    known = frozenset(word.value for word in words)
    return _Field(
        lambda value: isinstance(value, str) and value in known,
        f"one of {', '.join(word.value for word in words)}",
    )


_TEXT = _Field(_is_text, "text")
_NAME = _or_null(_TEXT)
_COUNT = _Field(_is_count, "a number, 0 or more")
_SWITCH = _Field(lambda value: isinstance(value, bool), "true or false")
_ROWS = _Field(_is_list, "a list")
_TEXTS = _Field(_are_texts, "a list of texts")

_TOP: _Fields = {
    "model": _TEXT,
    "half": _TEXT,
    "target": _TEXT,
    "io": _one_of(IOTypes),
    "keep_io": _TEXTS,
    "keep_functions": _SWITCH,
    "units": _ROWS,
    "casts": _Field(_is_list, "a list", can_lack=True),
    "stored": _Field(_is_list, "a list", can_lack=True),
    "assumptions": _Field(_are_texts, "a list of texts", can_lack=True),
}
_UNIT: _Fields = {
    "node": _NAME,
    "operator": _TEXT,
    "variable": _TEXT,
    "colour": _one_of(Colour),
    "rule": _one_of(Rule),
    "kind": _one_of(Kind),
    "reason": _TEXT,
    "follow": _SWITCH,
    "source": _TEXT,
    "makes": _Field(_are_texts, "a list of texts", can_lack=True),
    "flops": _Field(lambda value: value is None or _is_count(value), "a number, or null", can_lack=True),
}
_CAST: _Fields = {"value": _NAME, "to": _TEXT, "reads": _COUNT}
_STORED: _Fields = {"value": _NAME, "form": _one_of(Storage), "saturates": _COUNT, "flushes": _COUNT}
