"""Checks and conversions of arguments and fields; an OptionError names the wrong one.

`name` is written as in the caller's code: `Options.io` for a field, `in_place` for an argument.
"""

from __future__ import annotations

import enum
import errno
import inspect
import os
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np

from amp_rewrite.errors import OptionError
from amp_rewrite.text import nearest, understood

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

PathLike = str | os.PathLike[str]
Texts = str | Iterable[str]
"""A string, or several."""


def refused(name: str, problem: str, remedy: str = "") -> OptionError:
    """Return the error for an argument with a `problem`."""
    return OptionError(problem, where=name, remedy=remedy)


def describe(value: object) -> str:
    """Return a short description of a value: a string or number itself, of anything else the type."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bytes, int, float, enum.Enum)) or value is None:
        return reprlib.repr(value)
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return type(value).__name__


def is_path(value: object) -> TypeGuard[PathLike]:
    """Return whether this is a path or a non-empty string; bytes are not accepted."""
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str) and value != ""


def flaw_of(path: PathLike) -> str:
    """Return the flaw of a path as the end of a sentence; empty for a valid one."""
    try:
        Path(path).lstat()
    except ValueError:
        return "has a character that is not valid in a path"
    except OSError as error:
        return "is longer than a path can be" if error.errno == errno.ENAMETOOLONG else ""
    return ""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether this is a real number, also of NumPy, and not a bool."""
    return isinstance(value, (float, Real)) and not _is_bool(value)


def _is_bool(value: object) -> TypeGuard[bool]:  # of a number, pyright rules out that it is one
    return isinstance(value, bool)


def instance(name: str, value: object, kind: type[T], remedy: str = "") -> T:
    """Return an instance of that class."""
    if not isinstance(value, kind):
        raise refused(name, f"{describe(value)} is not of type {kind.__name__}", remedy)
    return value


def choice(name: str, value: E | str, kind: type[E], remedy: str = "") -> E:
    """Return a member of an enum, which may be given by its value, in any case."""
    return named(name, value, kind, {str(member.value): member for member in kind}, remedy)


def named(name: str, value: T | str, kind: type[T], choices: Mapping[str, T], remedy: str = "") -> T:
    """Return an instance of that class, which may be given by one of the `known` names, in any case."""
    if isinstance(value, kind):
        return value
    by_name = {key.lower(): choice for key, choice in choices.items()}
    known = understood(value.lower(), by_name) if isinstance(value, str) else ""
    if known not in by_name:
        near = nearest(value.lower(), by_name) if isinstance(value, str) else None
        hint = f"did you mean {near}?" if near else remedy
        raise refused(name, f"{describe(value)} is not one of {', '.join(by_name)}", hint)
    return by_name[known]


def flag(name: str, value: object) -> bool:
    """Return a bool; other values with a truth value, such as "no", are mistakes."""
    if not isinstance(value, (bool, np.bool_)):
        raise refused(name, f"{describe(value)} is neither True nor False")
    return bool(value)


def whole(name: str, value: Any, least: int = 0) -> int:
    """Return an integer of at least `least`."""
    if not isinstance(value, Integral) or _is_bool(value) or int(value) < least:
        raise refused(name, f"{describe(value)} is not an integer of at least {least}")
    return int(value)


def texts(name: str, value: Texts) -> tuple[str, ...]:
    """Return strings; a single one need not be in a list."""
    several = _several(name, value, (str,), "a string, or a list of strings")
    for text in several:
        if not isinstance(text, str):
            raise refused(name, f"{describe(text)} is not a string")
    return several


def path(name: str, value: object) -> Path:
    """Return a path, which need not exist."""
    if not is_path(value):
        raise refused(name, f"{describe(value)} is not a path")
    if flaw := flaw_of(value):
        raise refused(name, f"{describe(os.fspath(value))} {flaw}", "check the path")
    return Path(value)


def paths(name: str, value: PathLike | Iterable[PathLike]) -> tuple[Path, ...]:
    """Return paths; a single one need not be in a list."""
    several = _several(name, value, (str, os.PathLike), "a path, or a list of paths")
    return tuple(path(name, one) for one in several)


def _several(name: str, value: Any, one: tuple[type, ...], expected: str) -> tuple[Any, ...]:
    if isinstance(value, one):
        return (value,)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise refused(name, f"{describe(value)} is not {expected}")
    return tuple(value)


def mapping(name: str, value: object, example: str) -> dict[str, Any]:
    """Return a mapping with strings as keys; the error shows the `example`."""
    remedy = f"write it as in {example}"
    if not isinstance(value, Mapping):
        raise refused(name, f"{describe(value)} is not a mapping", remedy)
    items: dict[Any, Any] = dict(value)
    for key in items:
        if not isinstance(key, str):
            raise refused(name, f"the key {describe(key)} is not a string", remedy)
    return items


def sizes(name: str, value: object) -> dict[str, int]:
    """Return sizes of dimensions by name; empty for None."""
    items = mapping(name, {} if value is None else value, '{"batch": 4}')
    return {key: _size(f'{name}["{key}"]', size) for key, size in items.items()}


def _size(name: str, value: object) -> int:
    size = whole(name, value)
    if size >= _TOO_MANY:
        raise refused(name, "is larger than any dimension")
    return size


_TOO_MANY = 1 << 63
"""The first size that does not fit into a dimension of ONNX, a signed 64-bit integer."""


def function(name: str, value: object) -> None:
    """Raise OptionError for a value that is neither None nor callable."""
    if value is not None and not callable(value):
        raise refused(name, f"{describe(value)} is not callable")


# What becomes of weights, an argument of options and of writers.


class Beside(enum.Enum):
    """The condition for external data, weights in files beside a result that is a file.

    AUTO: where the model had external data, or exceeds one file (2 GiB). ALWAYS. NEVER.

    Examples:
        >>> from amp_rewrite import Options
        >>> Options(external_data="always").external_data.beside
        <Beside.ALWAYS: 'always'>
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The storage of weights of a result that is a file.

    With `largest`, no data file has more bytes than that, but for one that holds a single larger tensor.
    `beside` may be given by its value. Raises OptionError for an invalid `beside` or size.

    Examples:
        >>> from amp_rewrite.options import ExternalData
        >>> ExternalData(largest=2 * 10**9).beside
        <Beside.AUTO: 'auto'>
    """

    beside: Beside
    largest: int | None

    def __init__(self, beside: Beside | str = Beside.AUTO, largest: int | None = None) -> None:
        hold = partial(object.__setattr__, self)
        hold("beside", choice("ExternalData.beside", beside, Beside))
        hold("largest", None if largest is None else whole("ExternalData.largest", largest, least=1))
