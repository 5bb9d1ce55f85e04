"""Cases as text: paragraphs of a sentence, a model, and rows `name | changes | claims` (CONTRIBUTING.md).

A model may begin with `opset N` in place of a header; without either it has opset 17.
A change is `old -> new`, or what replaces the hole `...` of the model; several are separated by `; `. Flags
of the command are in brackets, behind the sentence for all rows or among the changes of one: `[--to half]`.
A row `name | changes | changes | claims` is a pair for the certificate: the original, and what the second
changes make of it, which may be the whole text of a result. `{3, 5}/4` is {3, 5} in the original, and
{0.75, 1.25} in the result.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HOLE = "..."
SEPARATOR = " ; "
WIDTH = 150
FOLDER = Path(__file__).parent / "cases"
HELD = "\u00a0"
"""A space at which no line is broken."""


@dataclass(frozen=True)
class Case:
    """A row of a paragraph with its model, and the `result` of a pair. `start` and `end` are where its claims
    stand in the file, where they are `written` in several lines perhaps.
    """

    sentence: str
    name: str
    model: str
    flags: str
    claims: tuple[str, ...]
    written: tuple[str, ...]
    line: int
    start: int
    end: int
    result: str | None = None

    @property
    def title(self) -> str:
        """The sentence and the name of the row."""
        return f"{self.sentence} / {self.name}" if self.name else self.sentence


def read(path: Path) -> Iterator[Case]:
    """The cases of a file, in order."""
    text = path.read_text()
    starts = [match.start() for match in re.finditer(r"(?:\A|(?<=\n\n))# ", text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield from _paragraph(text, start, end)


def _paragraph(text: str, start: int, end: int) -> Iterator[Case]:
    head = re.compile(r"(?:#.*\n)+").match(text, start, end)
    assert head is not None, f"no sentence: {text[start : start + 80]}"
    sentence, flags = _without_flags(" ".join(line.lstrip("# ") for line in head[0].splitlines()))
    rows = list(re.compile(r"^    (?=\S)(?:.*)(?:\n     .*)*", re.MULTILINE).finditer(text, head.end(), end))
    model = " ".join(text[head.end() : rows[0].start() if rows else end].split())
    assert rows or not model, f"no rows: {sentence}"
    for row in rows:
        assert "|" in row[0], f"no row, and no model, which has another indentation: {row[0]}"
        name, *changes, claims = row[0].split("|", 3)
        edits, own_flags = _without_flags(changes[0] if changes else "")
        original, result = _changed(model, edits), None
        if len(changes) == 2:
            result = _complete(DIVIDED.sub(_divided, _result(original, changes[1])))
            original = DIVIDED.sub(r"\1", original)
        yield Case(
            sentence,
            name.strip(),
            _complete(original),
            f"{flags} {own_flags}".strip(),
            tuple(" ".join(claim.split()) for claim in _split(claims)),
            tuple(_split(claims)),
            text.count("\n", 0, row.start()) + 1,
            row.end() - len(claims),
            row.end(),
            result,
        )


def _without_flags(text: str) -> tuple[str, str]:
    flags = re.findall(r"\[(--.*?)\](?=[\s;\[]|$)", text)
    for each in flags:
        text = text.replace(f"[{each}]", "")
    return " ".join(text.split()), " ".join(flags)


def _changed(model: str, changes: str) -> str:
    for change in filter(None, re.split(r"; |;$", " ".join(changes.split()))):
        exchange = re.fullmatch(r"(.+?)\s->(?:\s(.*))?", change.strip(), re.DOTALL)
        old, new = (exchange[1], exchange[2] or "") if exchange else (HOLE, change.strip())
        assert old in model, f"the model has no '{old}'"
        model = model.replace(old, new)
    return model


def _result(original: str, changes: str) -> str:
    """The text of a result, which changes make of the original, or which they are."""
    changes = " ".join(changes.split())
    is_whole = re.match(r"(opset \d+ )?g \(|<ir_version", changes) and " ->" not in changes
    return changes if is_whole else _changed(original, changes)


DIVIDED = re.compile(r"(\{[^{}]*\}|(?<== )-?[\d.][-\d.e]*)/([\d.]+)")
"""Numbers, and what divides them in the result: `{3, 5}/4`, `epsilon = 0.01/16`."""


def _divided(match: re.Match[str]) -> str:
    divisor = float(match[2])
    return re.sub(r"-?(inf|[\d.][-\d.e]*)", lambda number: repr(float(number[0]) / divisor), match[1])


def _complete(model: str) -> str:
    """A model with its header, where it has the short one."""
    return re.sub(r"\Aopset (\d+)\s", r'<ir_version: 8, opset_import: ["" : \1]> ', model)


def _split(claims: str) -> list[str]:
    return [claim for part in re.split(r"\s;\s", f" {claims} ") if (claim := part.strip())]


def update(path: Path, found: Iterable[tuple[Case, Iterable[str]]]) -> None:
    """Replaces the claims of cases in their file."""
    text = path.read_text()
    for case, claims in sorted(found, key=lambda each: -each[0].start):
        written = dict(zip(case.claims, case.written, strict=True))
        claimed = SEPARATOR.join(written.get(claim, claim) for claim in claims)
        text = f"{text[: case.start]} {claimed}{text[case.end :]}"
    path.write_text("".join(f"{_wrapped(line)}\n" for line in text.splitlines()))


def _wrapped(line: str) -> str:
    """A line of a sentence, a model or a row, broken where it is too long: best between nodes and claims."""
    indent = "# " if line.startswith("# ") else "        " if line.startswith("    ") else "  "
    if len(line) <= WIDTH:
        return line
    held = re.sub(r" (=|\(|->) ?", lambda match: match[0].replace(" ", HELD), line)
    wrap = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
    return wrap(held, WIDTH, subsequent_indent=indent).replace(HELD, " ")


def odd_models() -> dict[str, str]:
    """Models that use what ONNX has to offer, by table and name."""
    cases = read(FOLDER / "odd_models.cases")
    return {f"{case.sentence.split()[0].strip(':,')}: {case.name}": case.model for case in cases}
