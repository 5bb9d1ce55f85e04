"""Transcripts: commands and what they print, as text. A paragraph of a `.transcript` is a test:

    # What holds, in a sentence.
    > model.onnx
        g (float[n,4] x) => (float[n,4] y) <float[4,4] w> { y = MatMul (x, w) }
    > in.npz = {"x": np.ones((2, 4), np.float32)}
    $ amp-rewrite model.onnx --data in.npz --json r.json
    ...
    PASS  model_fp16.onnx  ... largest error {n} ...
    no: warning
    $ json r.json casts_added nodes.half
    casts_added: 2
    nodes.half: 1
    ! amp-rewrite explain {}
        none.onnx          | there is no such file
        model.onnx --dim n | --dim n is not NAME=SIZE

* `@ slow`, below the sentence, is a mark. `with NAME: a | b` runs the paragraph once for each value of NAME.
* `> NAME` writes a file: ONNX text, or the text itself; `> NAME: TEXT` is one line. `> NAME = EXPRESSION` is
  Python (`NAMES`): a model, bytes, text, arrays. `> NAME + DATA` stores weights in DATA. A paragraph of files
  is for those below.
* `$` runs `amp-rewrite` in this process, one of `COMMANDS`, or a command of the shell, in a folder of the
  paragraph. `a && b` and `a | b` are as in a shell; `2>/dev/null` and `>/dev/null` leave out one channel.
  Below it stands all that is printed. `...` is any text of a line, or alone any lines, `{n}` a number, and a
  blank any number of them. `no: TEXT` stands nowhere. `[1]` is the exit code, where it is not 0.
* `!` runs a command that must be refused: exit code 2, and one line on standard error alone, which contains
  the text, or is it, where that begins with `amp-rewrite: `. No file changes, and no field is named.
* A command with a `{}`, or `{1}` and `{2}`, has rows: what is filled in, and claims with ` & ` between them,
  which are part of what is printed, `= ALL OF IT`, `no: TEXT` or `[1]`. A row goes on in lines with a deeper
  indent.

`pytest -n 0 --update FILE` writes what is printed today; what fits stays.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.transcript_claims import CODE, fits, holds, renewed, renewed_claim


@dataclass
class Step:
    """A file or a command, and the lines below it."""

    number: int
    head: str
    body: list[str] = field(default_factory=list)


@dataclass
class Paragraph:
    """Steps with a sentence, in a folder of their own."""

    number: int
    top: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def after(self, sign: str) -> list[str]:
        """What stands behind a sign at the top: `#`, `@` or `with`."""
        return [line.removeprefix(f"{sign} ") for line in self.top if line.startswith(f"{sign} ")]

    @property
    def sentence(self) -> str:
        """What holds."""
        return " ".join(self.after("#"))

    @property
    def variants(self) -> list[dict[str, str]]:
        """What stands for the names of `with`: one run for each."""
        values = [
            [(name, value.strip()) for value in rest.split("|")]
            for name, _, rest in (line.partition(":") for line in self.after("with"))
        ]
        return [dict(each) for each in itertools.product(*values)]

    @property
    def is_shared(self) -> bool:
        """Whether it has only files, for the paragraphs below it."""
        return bool(self.steps) and all(step.head.startswith("> ") for step in self.steps)

    def lines(self) -> list[str]:
        """As it is written."""
        return [*self.top, *(line for step in self.steps for line in (step.head, *step.body))]


def parse(source: str) -> list[Paragraph]:
    """The paragraphs of a transcript."""
    found: list[Paragraph] = []
    is_open = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() and not is_open:
            found.append(Paragraph(number))
        is_open = bool(line.strip())
        if not is_open:
            continue
        here = found[-1]
        if line.startswith(("$ ", "! ", "> ")):
            here.steps.append(Step(number, line))
        else:
            (here.steps[-1].body if here.steps else here.top).append(line)
    return found


def rows(body: list[str]) -> list[tuple[list[str], str]]:
    """The fillings and the claims of each row."""
    joined = re.split(r"\n(?!     )", "\n".join(body))
    cells = [[" ".join(cell.split()) for cell in re.split(r"\s+\|(?=\s|$)", row)] for row in joined]
    return [(row[:-1] or row, row[-1] if row[1:] else "") for row in cells]


class TranscriptError(AssertionError):
    """A step that is not as its transcript says: its number and what differs."""

    def __init__(self, number: int, told: str) -> None:
        super().__init__(told)
        self.number, self.told = number, told


@dataclass
class Run:
    """Runs the steps of a paragraph in a folder; with `is_update` it corrects what they claim."""

    folder: Path
    values: dict[str, str]
    is_update: bool = False

    def filled(self, text: str) -> str:
        """A text with the values of `with`."""
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text

    def do(self, step: Step) -> None:
        """Writes a file, or runs a command and looks at what it printed."""
        from tests import transcript_commands  # noqa: PLC0415 - who gives tests to the workers needs none of it

        sign, text, body = step.head[0], self.filled(step.head[2:]), [self.filled(line) for line in step.body]
        if sign == ">":
            transcript_commands.write(text, "\n".join(line[4:] for line in body), self.folder)
            return
        is_table = re.search(r"\{\d?\}", text) is not None
        told, faults, made = [], [], []
        for fillings, claims in rows(body) if is_table else [([], "")]:
            command = text.replace("{}", fillings[0]) if fillings else text
            for at, filling in enumerate(fillings, 1):
                command = command.replace(f"{{{at}}}", filling)
            done = transcript_commands.run(command, self.folder)
            expected = [claim for claim in claims.split(" & ") if claim] if is_table else body
            judge = _refused if sign == "!" else _rows if is_table else _lines
            new, fault = judge(expected, done), _fault(sign, done)
            if fault or new != expected:
                told += [f"$ {command}", *_difference(expected, new), *fault, "all of it:"]
                told += [f"    {line}" for line in done.lines[:60]]
            faults += fault
            made += [f"    {' | '.join([*fillings, ' & '.join(new)])}".rstrip()] if is_table else new
        if faults or (told and not self.is_update):
            raise TranscriptError(step.number, "\n".join(told))
        if told:
            step.body = made


def _difference(expected: list[str], new: list[str]) -> list[str]:
    return [line for line in difflib.ndiff(expected, new) if not line.startswith("?")]


def _fault(sign: str, done: Any) -> list[str]:
    if done.error:
        return [done.error]
    if sign == "!" and not (done.code == 2 and done.is_refusal):
        return ["no refusal: exit code 2, one line on standard error alone, and no file that changed"]
    if sign == "!" and "`" in re.sub("`amp-rewrite[^`]*`", "", done.printed):
        return ["a field of the library in place of a flag"]
    return []


def _refused(claims: list[str], done: Any) -> list[str]:
    claim = " & ".join(claims)
    whole = "= " if claim.startswith("amp-rewrite: ") else ""
    return claims if holds(whole + claim, done.lines) else [" ".join(done.lines)]


def _lines(claims: list[str], done: Any) -> list[str]:
    absent = [claim for claim in claims if claim.startswith("no: ") and holds(claim, done.lines)]
    lines = [claim for claim in claims if not claim.startswith("no: ") and not CODE.fullmatch(claim)]
    kept = lines if fits(lines, done.lines) else renewed(lines, done.lines)
    return _with_code(claims, [*kept, *absent], done.code)


def _rows(claims: list[str], done: Any) -> list[str]:
    plain = [claim for claim in claims if not CODE.fullmatch(claim)]
    new = [each if holds(each, done.lines) else renewed_claim(each, done.lines) for each in plain]
    return _with_code(claims, [claim for claim in new if claim], done.code)


def _with_code(claims: list[str], new: list[str], found: int) -> list[str]:
    """The old claims where the new ones are no others, else those with the exit code."""
    made = [*new, *([f"[{found}]"] if found else [])]
    return claims if sorted(made) == sorted(claims) else made


def run_paragraph(
    paragraph: Paragraph, shared: list[Paragraph], place: Path, *, is_update: bool = False
) -> None:
    """Runs a paragraph, in a folder for each of its variants."""
    for number, values in enumerate(paragraph.variants):
        run = Run(place / str(number), values, is_update and number == 0)
        run.folder.mkdir()
        for step in (*(step for one in shared for step in one.steps), *paragraph.steps):
            run.do(step)


# ---- pytest


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """A transcript is a file of tests."""
    return Transcript.from_parent(parent, path=file_path) if file_path.suffix == ".transcript" else None


class Transcript(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        """A test for each paragraph with a command."""
        self.paragraphs = parse(self.path.read_text(encoding="utf-8"))
        for at, paragraph in enumerate(self.paragraphs):
            if not paragraph.steps or paragraph.is_shared:
                continue
            shared = [one for one in self.paragraphs[:at] if one.is_shared]
            name = f"{paragraph.number}: {paragraph.sentence[:80]}"
            item = Test.from_parent(self, name=name, callobj=_function(self, paragraph, shared))
            for mark in " ".join(paragraph.after("@")).split():
                item.add_marker(mark)
            yield item

    def write(self) -> None:
        """Stores what an update changed."""
        paragraphs = ("\n".join(paragraph.lines()) for paragraph in self.paragraphs)
        self.path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


class Test(pytest.Function):
    """A paragraph; a function, so that it has the fixtures of all tests."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        """The sentence, the command, and what differs."""
        if isinstance(error := excinfo.value, TranscriptError):
            return f"{self.path}:{error.number}: {self.name.partition(': ')[2]}\n{error.told}"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the paragraph begins."""
        return self.path, int(self.name.partition(":")[0]) - 1, self.name


def _function(file: Transcript, paragraph: Paragraph, shared: list[Paragraph]) -> Any:
    def run(tmp_path: Path) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            pytest.skip("needs onnxruntime")
        is_update = file.config.getoption("update")
        assert not (is_update and hasattr(file.config, "workerinput")), "--update needs -n 0"
        run_paragraph(paragraph, shared, tmp_path, is_update=is_update)
        if is_update:
            file.write()

    return run
