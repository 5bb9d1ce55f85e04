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
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np

from amp_rewrite.errors import OptionError
from amp_rewrite.text import nearest

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

PathLike = str | os.PathLike[str]
Texts = str | Iterable[str]
"""A string, or several."""


def refused(name: str, problem: str, remedy: str = "") -> OptionError:
    """Return the error for an argument with a `problem`."""
    return OptionError(problem, where=name, remedy=remedy)


def shown(given: object) -> str:
    """Return a short description of a value: a string or number itself, of anything else the type."""
    if isinstance(given, np.generic):
        given = given.item()
    if isinstance(given, (str, bytes, int, float, enum.Enum)) or given is None:
        return reprlib.repr(given)
    if inspect.isclass(given):
        return f"the class {given.__name__}"
    return type(given).__name__


def is_path(given: object) -> TypeGuard[PathLike]:
    """Return whether this is a path or a non-empty string; bytes are not accepted."""
    return isinstance(given, (str, os.PathLike)) and isinstance(os.fspath(given), str) and given != ""


def flaw_of(path: PathLike) -> str:
    """Return the flaw of a path as the end of a sentence; empty for a valid one."""
    try:
        Path(path).lstat()
    except ValueError:
        return "has a character that is not valid in a path"
    except OSError as error:
        return "is longer than a path can be" if error.errno == errno.ENAMETOOLONG else ""
    return ""


def is_number(given: object) -> TypeGuard[float]:
    """Return whether this is a real number, also of NumPy, and not a bool."""
    return isinstance(given, (float, Real)) and not _is_bool(given)


def _is_bool(given: object) -> TypeGuard[bool]:  # of a number, pyright rules out that it is one
    return isinstance(given, bool)


def instance(name: str, given: object, kind: type[T], remedy: str = "") -> T:
    """Return an instance of that class."""
    if not isinstance(given, kind):
        raise refused(name, f"{shown(given)} is not of type {kind.__name__}", remedy)
    return given


def choice(name: str, given: E | str, kind: type[E], remedy: str = "") -> E:
    """Return a member of an enum, which may be given by its value, in any case."""
    return named(name, given, kind, {str(member.value): member for member in kind}, remedy)


def named(name: str, given: T | str, kind: type[T], known: Mapping[str, T], remedy: str = "") -> T:
    """Return an instance of that class, which may be given by one of the `known` names, in any case."""
    if isinstance(given, kind):
        return given
    by_name = {key.lower(): value for key, value in known.items()}
    if not isinstance(given, str) or given.lower() not in by_name:
        near = nearest(given.lower(), by_name) if isinstance(given, str) else None
        meant = f"did you mean {near}?" if near else remedy
        raise refused(name, f"{shown(given)} is not one of {', '.join(by_name)}", meant)
    return by_name[given.lower()]


def flag(name: str, given: object) -> bool:
    """Return a bool; other values with a truth value, such as "no", are mistakes."""
    if not isinstance(given, (bool, np.bool_)):
        raise refused(name, f"{shown(given)} is neither True nor False")
    return bool(given)


def whole(name: str, given: Any, least: int = 0) -> int:
    """Return an integer of at least `least`."""
    if not isinstance(given, Integral) or _is_bool(given) or int(given) < least:
        raise refused(name, f"{shown(given)} is not an integer of at least {least}")
    return int(given)


def texts(name: str, given: Texts) -> tuple[str, ...]:
    """Return strings; a single one need not be in a list."""
    found = _several(name, given, (str,), "a string, or a list of strings")
    for text in found:
        if not isinstance(text, str):
            raise refused(name, f"{shown(text)} is not a string")
    return found


def path(name: str, given: object) -> Path:
    """Return a path, which need not exist."""
    if not is_path(given):
        raise refused(name, f"{shown(given)} is not a path")
    if flaw := flaw_of(given):
        raise refused(name, f"{shown(os.fspath(given))} {flaw}", "check the path")
    return Path(given)


def paths(name: str, given: PathLike | Iterable[PathLike]) -> tuple[Path, ...]:
    """Return paths; a single one need not be in a list."""
    several = _several(name, given, (str, os.PathLike), "a path, or a list of paths")
    return tuple(path(name, one) for one in several)


def _several(name: str, given: Any, one: tuple[type, ...], wanted: str) -> tuple[Any, ...]:
    if isinstance(given, one):
        return (given,)
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise refused(name, f"{shown(given)} is not {wanted}")
    return tuple(given)


def mapping(name: str, given: object, example: str) -> dict[str, Any]:
    """Return a mapping with strings as keys; the error shows the `example`."""
    remedy = f"write it as in {example}"
    if not isinstance(given, Mapping):
        raise refused(name, f"{shown(given)} is not a mapping", remedy)
    found: dict[Any, Any] = dict(given)
    for key in found:
        if not isinstance(key, str):
            raise refused(name, f"the key {shown(key)} is not a string", remedy)
    return found


def sizes(name: str, given: object) -> dict[str, int]:
    """Return sizes of dimensions by name; empty for None."""
    found = mapping(name, {} if given is None else given, '{"batch": 4}')
    return {key: _size(f'{name}["{key}"]', size) for key, size in found.items()}


def _size(name: str, given: object) -> int:
    size = whole(name, given)
    if size >= _TOO_MANY:
        raise refused(name, "is larger than any dimension")
    return size


_TOO_MANY = 1 << 63
"""The first size that does not fit into a dimension of ONNX, a signed 64-bit integer."""


def function(name: str, given: object) -> None:
    """Raise OptionError for a value that is neither None nor callable."""
    if given is not None and not callable(given):
        raise refused(name, f"{shown(given)} is not callable")
