"""A YAML file as fields that know the line where they stand; whatever is wrong is told with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from amp_rewrite import reading
from amp_rewrite.errors import ListError

KEEP_ONE = "keep one of them"

_MOST = 1 << 24
"""Bytes of a file: a list of all operators there are takes a thousandth of it."""

# Ten times faster, not in every build of PyYAML, and a file nested deeply enough crashes it: it
# reads our own files only.
_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Field:
    """A key and its value, where they stand."""

    file: Path
    key: yaml.Node
    name: str
    value: yaml.Node

    @property
    def line(self) -> int:
        """The line of the key, from 1."""
        return self.key.start_mark.line + 1

    def error(self, problem: str, remedy: str = "") -> ListError:
        """An error about this field, with its place."""
        return ListError(problem, file=self.file, line=self.line, remedy=remedy)


def parse(path: Path, allowed: tuple[str, ...], *, trusted: bool) -> yaml.MappingNode:
    """The mapping at the top of a file; ListError when it cannot be read or is something else.

    `allowed` are its keys, for the message; a `trusted` file is read by the faster parser.
    """
    loader = _FastLoader if trusted else yaml.SafeLoader
    try:
        top: yaml.Node | None = yaml.compose(reading.read(path, _MOST).decode("utf-8-sig"), loader)
    except OSError as error:
        raise ListError(reading.problem(error), file=path, remedy=reading.remedy(error)) from error
    except UnicodeDecodeError as error:
        raise ListError("is not UTF-8 text", file=path, remedy="save it as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _not_yaml(path, error) from error
    if isinstance(top, yaml.MappingNode):
        return top
    line = top.start_mark.line + 1 if top else 1
    raise ListError("the top level is not a mapping", file=path, line=line, remedy=one_of(allowed))


def _not_yaml(path: Path, error: Exception) -> ListError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    quote = "a reason that holds ': ' must stand in quotes" if "mapping values" in problem else ""
    line = mark.line + 1 if mark else 0
    return ListError(f"is not YAML: {problem}", file=path, line=line, remedy=quote)


def fields(file: Path, node: yaml.MappingNode, allowed: tuple[str, ...] = ()) -> list[Field]:
    """Keys and values in order. YAML itself keeps the last of equal keys and says nothing."""
    found: dict[str, Field] = {}
    for key, value in node.value:
        field = Field(file, key, str(key.value), value)
        if not is_text(key):
            raise field.error("a key is not text")
        if field.name in found:
            raise field.error(f"{field.name} is here and on line {found[field.name].line}", KEEP_ONE)
        if allowed and field.name not in allowed:
            raise field.error(f"unknown key {field.name}", near(field.name, allowed))
        found[field.name] = field
    return list(found.values())


def text(field: Field) -> str:
    """The text that a field holds, its white space folded; ListError when it holds none."""
    if not is_text(field.value):
        raise field.error(f"the {field.name} is not text", f"write {field.name}: some text")
    return " ".join(field.value.value.split())


def is_text(node: yaml.Node) -> bool:
    """Whether a node is text, and not empty."""
    return node.tag == "tag:yaml.org,2002:str" and bool(node.value.strip())


def near(word: str, words: Iterable[str]) -> str:
    """What a misspelt word may have meant, as advice."""
    found = nearest(word, words)
    return f"did you mean {found}?" if found else one_of(words)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that is most like another, whatever its case; None when none is like it."""
    folded = {other.lower(): other for other in sorted(words)}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return folded[near[0]] if near else None


def one_of(words: Iterable[str]) -> str:
    """The words there are, as advice."""
    return f"it can be {', '.join(words)}"
