"""What a field of a JSON object may hold; a field that holds something else is named by its path."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonField:
    """What a field holds, in words; with `optional` it may be absent."""

    holds: Callable[[Any], bool]
    words: str
    optional: bool = False


JsonFields = Mapping[str, JsonField]


def check_rows(path: str, rows: list[Any], fields: JsonFields, *, where: str = "") -> None:
    """Checks the rows of a list; with `where`, those that have that field. ValueError as `check`."""
    for position, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"{path}[{position}] is {_shown(row)}, and must be an object")
        if not where or where in row:
            check(f"{path}[{position}].", row, fields)


def check(path: str, row: Mapping[str, Any], fields: JsonFields) -> None:
    """ValueError, which names the field below `path`, for one that is absent or holds something else."""
    for name, field in fields.items():
        if name in row:
            if not field.holds(row[name]):
                raise ValueError(f"{path}{name} is {_shown(row[name])}, and must be {field.words}")
        elif not field.optional:
            raise ValueError(f"it has no '{path}{name}'")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 40


def or_null(field: JsonField) -> JsonField:
    """That field, or null."""
    return JsonField(
        lambda value: value is None or field.holds(value), f"{field.words}, or null", field.optional
    )


def optional(field: JsonField) -> JsonField:
    """That field, if it is there."""
    return JsonField(field.holds, field.words, optional=True)


def one_of(words: type[enum.Enum]) -> JsonField:
    """One of the values of an enum."""
    known = frozenset(word.value for word in words)
    return JsonField(
        lambda value: isinstance(value, str) and value in known,
        f"one of {', '.join(word.value for word in words)}",
    )


def list_of(field: JsonField, words: str) -> JsonField:
    """A list of such fields, described as a whole by `words`."""
    return JsonField(lambda value: isinstance(value, list) and all(map(field.holds, value)), words)


def position(count: int) -> JsonField:
    """The position of one of `count` units."""
    return JsonField(lambda value: _is_count(value) and value < count, "the position of a unit")


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


def _is_number(value: object) -> bool:
    """Whether it is a number that a float holds; JSON has integers of any length."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


TEXT = JsonField(_is_text, "text")
TEXTS = list_of(TEXT, "a list of texts")
COUNT = JsonField(_is_count, "a number, 0 or more")
COUNTS = list_of(COUNT, "a list of numbers, 0 or more")
INTEGER = JsonField(lambda value: type(value) is int, "a whole number")
INTEGERS = list_of(INTEGER, "a list of whole numbers")
NUMBER = JsonField(_is_number, "a number")
FLAG = JsonField(lambda value: isinstance(value, bool), "true or false")
LIST = JsonField(lambda value: isinstance(value, list), "a list")
OBJECT = JsonField(lambda value: isinstance(value, dict), "an object")
