"""A YAML file as fields that know their line, which errors name.

A path may lead to any file, and an error must not leak its content: for a file that is neither a list nor
rules, errors name the line, and a key only where it looks like a misspelling.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from amp_rewrite.errors import ListError
from amp_rewrite.files import reading
from amp_rewrite.text import LONGEST_NAME

KEEP_ONE = "keep one of them"

# Ten times faster, not in every build of PyYAML, and a file nested deeply enough crashes it: it
# reads our own files only.
_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LARGEST = 1 << 18
"""The most bytes of a file: ten times our longest list, which has a reason for every operator. PyYAML's own
parser takes seconds for as much, and minutes for larger files passed by mistake.
"""


class _AliasError(yaml.YAMLError):
    """An anchor or an alias: a few lines of them can expand beyond any memory."""

    def __init__(self, mark: Any) -> None:
        super().__init__()
        self.problem_mark = mark


class _Loader(yaml.SafeLoader):
    """A loader of untrusted files, which refuses anchors and aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node with its content; raises _AliasError."""
        event = self.peek_event()
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:  # an alias has one as well
            raise _AliasError(event.start_mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True)
class Field:
    """A key and its value, with their position."""

    file: Path
    key: yaml.Node
    name: str
    value: yaml.Node

    @property
    def line(self) -> int:
        """The line of the key, from 1; 0 for a field that is in no file."""
        return self.key.start_mark.line + 1 if self.key.start_mark else 0

    def error(self, problem: str, remedy: str = "") -> ListError:
        """Return an error about this field, with its place."""
        return ListError(problem, file=self.file, line=self.line, remedy=remedy)


def parse(path: Path, allowed: tuple[str, ...], *, trusted: bool) -> yaml.MappingNode:
    """Return the mapping at the top of a file; ListError when it cannot be read or has another root.

    `allowed` are its keys, for the message; a `trusted` file is read by the faster parser.
    """
    content = _content(path)
    try:
        top: yaml.Node | None = yaml.compose(content, _FastLoader if trusted else _Loader)
    except _AliasError as error:
        raise ListError(
            "has an anchor or an alias (&name, *name)",
            file=path,
            line=_line(error),
            remedy="write everything out where it belongs",
        ) from error
    except RecursionError as error:
        raise ListError("is nested too deeply", file=path, remedy=one_of(allowed)) from error
    except yaml.YAMLError as error:
        raise _not_yaml(path, content, error) from error
    if isinstance(top, yaml.MappingNode):
        return top
    line = top.start_mark.line + 1 if top else 1
    raise ListError("the top level is not a mapping", file=path, line=line, remedy=one_of(allowed))


def _content(path: Path) -> str:
    try:
        return reading.read(path, LARGEST).decode("utf-8-sig")
    except OSError as error:
        raise ListError(reading.problem(error), file=path, remedy=reading.remedy(error)) from error
    except UnicodeDecodeError as error:
        raise ListError("is not UTF-8 text", file=path, remedy="save it as UTF-8") from error


def _not_yaml(path: Path, content: str, error: yaml.YAMLError) -> ListError:
    """Return the error with its line, and of the content only the offending character."""
    if isinstance(error, ReaderError):
        line = content.count("\n", 0, error.position) + 1
        return ListError("is not YAML: a control character", file=path, line=line, remedy="check the path")
    problem = getattr(error, "problem", None) or ""
    quote = "put a text that contains ': ' in quotes" if "mapping values" in problem else ""
    return ListError(f"is not YAML: {_HANDLE.sub('', problem)}", file=path, line=_line(error), remedy=quote)


def _line(error: yaml.YAMLError) -> int:
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else 0


_HANDLE = re.compile(r"(?<=tag handle).*")
"""The only text of arbitrary length that PyYAML's errors quote, aliases aside."""


def fields(file: Path, node: yaml.MappingNode, allowed: tuple[str, ...] = ()) -> list[Field]:
    """Return keys and values in order; duplicate keys, of which YAML silently keeps the last, are errors."""
    by_name: dict[str, Field] = {}
    for key, value in node.value:
        field = Field(file, key, key.value if is_text(key) else "", value)
        if not field.name:
            raise field.error("a key is not text")
        if allowed and field.name not in allowed:
            raise _unknown(field, allowed)
        if field.name in by_name:
            raise field.error(f"{field.name} is here and on line {by_name[field.name].line}", KEEP_ONE)
        by_name[field.name] = field
    return list(by_name.values())


def plain(file: Path, node: yaml.Node, allowed: tuple[str, ...] = ()) -> Any:
    """Return mappings and lists as such, and all else as text; raise as `fields`."""
    if isinstance(node, yaml.MappingNode):
        return {field.name: plain(file, field.value) for field in fields(file, node, allowed)}
    return [plain(file, row) for row in node.value] if isinstance(node, yaml.SequenceNode) else node.value


def _unknown(field: Field, allowed: tuple[str, ...]) -> ListError:
    candidate = nearest(field.name, allowed)
    if candidate is None:
        return field.error("an unknown key", one_of(allowed))
    return field.error(f"unknown key {field.name}", f"did you mean {candidate}?")


def text(field: Field) -> str:
    """Return the text that a field holds, its white space folded; ListError when it holds none."""
    if not is_text(field.value):
        raise field.error(f"the {field.name} is not text", f"write {field.name}: some text")
    return " ".join(field.value.value.split())


def truth(field: Field) -> bool:
    """Return the truth value that a field holds; ListError for another value."""
    if field.value.tag != "tag:yaml.org,2002:bool":
        raise field.error(f"{field.name} is not a truth value", "write true or false")
    return field.value.value.lower() in _TRUE


_TRUE = frozenset(("yes", "true", "on"))
"""The true values of YAML 1.1; the loader has checked that the word is a truth value."""


def is_text(node: yaml.Node) -> bool:
    """Return whether a node is text, and not empty."""
    return node.tag == "tag:yaml.org,2002:str" and bool(node.value.strip())


def near(word: str, words: Iterable[str]) -> str:
    """Return the likely meaning of a misspelt word, as advice."""
    candidate = nearest(word, words)
    return f"did you mean {candidate}?" if candidate else one_of(words)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the candidate most similar to a word, ignoring case; None without one, or for a non-name."""
    if len(word) > LONGEST_NAME:  # comparison is quadratic in its length
        return None
    folded = {other.lower(): other for other in sorted(words)}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return folded[near[0]] if near else None


def one_of(words: Iterable[str]) -> str:
    """Return the valid words, as advice."""
    return f"it can be {', '.join(words)}"
