"""A YAML file as mappings, lists and texts; errors name the line of a key.

A path may lead to any file, and an error must not leak its content: for a file that is neither a list nor
rules, errors name the line, and a key only where it looks like a misspelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from amp_rewrite.errors import ListError
from amp_rewrite.files import reading
from amp_rewrite.text import nearest, one_of, suggestion

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


KEEP_ONE = "keep one of them"


@dataclass(frozen=True, slots=True)
class Document:
    """The mapping at the top of a file, in which all but mappings and lists is text, its white space folded.

    `lines` has the line of each key, from 1, by the keys that lead to it.
    """

    file: Path
    content: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]

    def error(self, problem: str, *keys: str, remedy: str = "") -> ListError:
        """Return an error about the value to which the keys lead, with its place."""
        return ListError(problem, file=self.file, line=self.lines[keys], remedy=remedy)

    def text(self, key: str) -> str:
        """Return the text at a key of the top; raises ListError for anything else."""
        value = self.content[key]
        if not isinstance(value, str) or not value:
            raise self.error(f"the {key} is not text", key, remedy=f"write {key}: some text")
        return value

    def truth(self, value: Any, *keys: str) -> bool:
        """Return the truth value that is written so, as in YAML 1.1; raises ListError for any other."""
        words = yaml.SafeLoader.bool_values
        if not isinstance(value, str) or value.lower() not in words:
            raise self.error(f"{keys[-1]} is not a truth value", *keys, remedy="write true or false")
        return words[value.lower()]

    def refuse_unknown(self, allowed: Iterable[str], *keys: str) -> None:
        """Raise ListError for the last of these keys unless it is allowed."""
        if keys[-1] not in allowed:
            near = nearest(keys[-1], allowed)
            problem = f"unknown key {keys[-1]}" if near else "an unknown key"
            raise self.error(problem, *keys, remedy=suggestion(keys[-1], allowed))


def read(path: Path, allowed: tuple[str, ...], *, trusted: bool) -> Document:
    """Return the content of a file, with no other keys at the top than those `allowed`.

    A `trusted` file is read by the faster parser. Raises ListError for a file that cannot be read or is no
    mapping, and for a key that is there twice, of which YAML silently keeps the last.
    """
    text = _text(path)
    try:
        top: yaml.Node | None = yaml.compose(text, _FastLoader if trusted else _Loader)
        if not isinstance(top, yaml.MappingNode):
            line = top.start_mark.line + 1 if top else 1
            raise ListError("the top level is not a mapping", file=path, line=line, remedy=one_of(allowed))
        lines: dict[tuple[str, ...], int] = {}
        document = Document(path, _plain(path, top, (), lines), lines)
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
        raise _not_yaml(path, text, error) from error
    for key in document.content:
        document.refuse_unknown(allowed, key)
    return document


def _text(path: Path) -> str:
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


def _plain(file: Path, node: yaml.Node, keys: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> Any:
    """Return mappings and lists as such, and all else as text; put the lines of keys into `lines`."""
    if isinstance(node, yaml.SequenceNode):
        return [_plain(file, row, (*keys, str(index)), lines) for index, row in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return " ".join(node.value.split())
    content: dict[str, Any] = {}
    for key, value in node.value:
        name, line = key.value, key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not name:
            raise ListError("a key is not text", file=file, line=line)
        path = (*keys, name)
        if name in content:
            problem = f"the same key as on line {lines[path]}"
            raise ListError(problem, file=file, line=line, remedy=KEEP_ONE)
        lines[path] = line
        content[name] = _plain(file, value, path, lines)
    return content
