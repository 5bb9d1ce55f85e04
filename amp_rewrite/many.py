"""Many models: each by the command, in a process of its own, with a line of JSON that says how it ended."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from amp_rewrite import arguments, version
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import ModelError, OptionError, WorkerError
from amp_rewrite.files import reading, staging
from amp_rewrite.model import external_data
from amp_rewrite.process import executors

Line = dict[str, Any]
"""What is recorded of a model: `model`, `result` (None where there is none), `exit_code` and `why` of the
command, its `report` as JSON, and `of`, on which the result depends.
"""
RECORD = "results.jsonl"
"""The name of the record in a folder of results."""


@dataclass(frozen=True, slots=True)
class Job:
    """A model, the place of its result (None where there is none), and the flags of the command."""

    model: Path
    output: Path | None
    flags: tuple[str, ...]

    def of(self) -> Line:
        """Return what the result depends on: the bytes of all files, the flags, and the version."""
        around = self.output.resolve().parents if self.output is not None else ()
        places = (path for path in map(Path, self.flags) if path.resolve() not in around)
        named = (file for path in places for file in _files_at(path))
        own = (self.model, *_weights(self.model), *filter(None, [data_beside(self.model)]))
        files = {str(path): _digest(path) for path in dict.fromkeys((*own, *named)) if path.is_file()}
        return {"files": files, "flags": list(self.flags), "version": version.installed()}


@dataclass(frozen=True, slots=True)
class Found:
    """A model, and its path relative to the folder that was named, or its own name."""

    model: Path
    place: Path


def models_in(folder: Path, results: Path | None) -> list[Path]:
    """Return the .onnx files of a folder, recursively, but not those of results, nor unfinished ones."""
    own = results.resolve() if results is not None else None
    models = (path for path in sorted(folder.rglob("*.onnx")) if not path.is_dir())
    return [
        path
        for path in models
        if own not in path.resolve().parents and not path.parent.name.endswith(staging.UNFINISHED)
    ]


def data_beside(model: Path) -> Path | None:
    """Return the input file beside a model, m.npz for m.onnx; None if there is none."""
    data = model.parent / f"{model.stem}.npz"
    return data if data.is_file() else None


def _weights(model: Path) -> Sequence[Path]:
    try:
        return sorted(external_data.referenced_by(model))
    except (ModelError, OSError):  # which the command says
        return ()


def _files_at(path: Path) -> Iterator[Path]:
    """Yield the file that a word of the flags names, or the files in the folder that it names."""
    try:
        yield from sorted(path.rglob("*")) if path.is_dir() else (path,)
    except (OSError, ValueError):
        return


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The record: a line for each model that is done.


class JobRecord:
    """The lines of an earlier run in a file, if there is one, to which those of this run are appended.

    Raises OptionError for a file that is no record, which `force` replaces.
    """

    def __init__(self, path: Path | None, *, force: bool = False) -> None:
        self._path = path
        self._lines: dict[str, Line] = {}
        if path is not None:
            with contextlib.suppress(*((OptionError,) if force else ())):
                self._lines = dict(_read(path))
            staging.write("".join(map(_text, self._lines.values())).encode(), path)

    def done(self, job: Job, of: Line) -> Line | None:
        """Return the line of a job that depends on the same, and whose result is there as it was."""
        line = self._lines.get(str(job.model))
        if line is None or job.output is None or line["of"] != of or line["exit_code"] not in _HAS_REPORT:
            return None
        is_there = line["result"] == str(job.output) and job.output.is_file()
        return line if is_there and _digest(job.output) == line["sha256"] else None

    def add(self, line: Line) -> None:
        """Append a line."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_text(line))


def _read(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield the lines of a file by model, but for one that a killed run did not finish."""
    try:
        texts = reading.read(path).decode().splitlines()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _no_record(path) from error
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
            yield _KEPT(line)[0], line
        except (ValueError, KeyError, TypeError) as error:
            if number < len(texts) or number == 1:
                raise _no_record(path) from error


_KEPT = itemgetter("model", "result", "exit_code", "sha256", "of")


def _no_record(path: Path) -> OptionError:
    remedy = "choose another place, or replace it with --force"
    return OptionError("is no record of earlier results", where=path, remedy=remedy)


def _text(line: Line) -> str:
    return json.dumps(line) + "\n"


# The rewrite of one model: the command in a process of its own, which may crash.


@dataclass(frozen=True, slots=True)
class Ended:
    """The line of a model, and what its process printed on standard output and standard error; None for one
    that was done before.
    """

    line: Line
    printed: tuple[str, str] | None = None


def run(job: Job, of: Line, start: Path) -> Ended:
    """Run a job in the folder `start`, and return how it ended; errors are in the line."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / _UNNAMED
        place = () if job.output is None else ("-o", str(job.output))
        words = ("rewrite", *job.flags, *place, "--json", str(report), "--", str(job.model))
        code, printed = _ran(words, start)
        has_report = code in _HAS_REPORT and report.is_file()
        told = json.loads(report.read_bytes()) if has_report else None
    output = start / job.output if job.output is not None and has_report else None
    is_there = output is not None and output.is_file()
    why = (told["not_verified"] or "") if told is not None else _why(code, printed[1])
    line = {
        "model": str(job.model),
        "result": str(job.output) if is_there else None,
        "exit_code": code if has_report else _NO_RESULT,
        "why": why,
        "sha256": _digest(output) if output is not None and is_there else None,
        "of": of,
        "report": told,
    }
    return Ended(line, printed)


_UNNAMED = "-"
"""The name of a report that the command does not name among the files that it wrote."""

_HAS_REPORT, _NO_RESULT = (0, 1), 2
"""The exit codes of a rewrite that wrote its report, and of one without a result."""

_START = """import sys
sys.path.append(sys.argv.pop(1))  # where this package is, should it not be installed
from amp_rewrite.__main__ import main
main()"""


def _ran(words: Sequence[str], start: Path) -> tuple[int, tuple[str, str]]:
    """Return the exit code of the command, and what it printed; it ends with this process."""
    command = [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[1]), *words]
    with subprocess.Popen(
        command, cwd=start, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            out, err = process.communicate()
        except BaseException:  # an interrupt: it gets time to remove what is not complete
            process.terminate()
            raise
    return process.returncode, (out.decode(errors="backslashreplace"), err.decode(errors="backslashreplace"))


def _why(code: int, printed: str) -> str:
    """Return the last line on standard error, or how the process ended."""
    lines = printed.strip().splitlines()
    if code >= 0:
        return lines[-1].removeprefix("amp-rewrite: ") if lines else f"ended with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


OnEnd = Callable[[Ended], object]


def run_all(jobs: Sequence[Job], record: JobRecord, executor: Executor | None, on_end: OnEnd) -> list[Line]:
    """Return the lines of all jobs, those that are done already from the record.

    `on_end` is called as each job ends; workers of an `executor` have to see the same files, and what no
    worker returns runs here.
    """
    dependencies = [job.of() for job in jobs]
    lines = [record.done(job, of) for job, of in zip(jobs, dependencies, strict=True)]
    for line in filter(None, lines):
        on_end(Ended(line))
    left = [number for number, line in enumerate(lines) if line is None]
    tasks = [(jobs[number], dependencies[number], Path.cwd()) for number in left]
    for number, ended in zip(left, _results(tasks, executor), strict=True):
        record.add(ended.line)
        lines[number] = ended.line
        on_end(ended)
    return [line for line in lines if line is not None]


def _results(tasks: Sequence[tuple[Job, Line, Path]], executor: Executor | None) -> Iterator[Ended]:
    count = 0
    if executor is not None:
        try:
            for ended in executors.results(executor, run, tasks):
                count += 1
                yield ended
        except WorkerError:
            pass
    for task in tasks[count:]:
        yield run(*task)


def convert_all(
    models: PathLike | Iterable[PathLike],
    results: PathLike,
    flags: str | Sequence[str] = (),
    *,
    executor: Executor | None = None,
) -> list[Line]:
    """Rewrite and compare models, each by the command `amp-rewrite MODEL` with these flags (words, or a line
    of them), in a process of its own; return what is recorded of each in `results.jsonl`.

    `models` are paths of files and folders, or patterns, and `results` is the folder for the results. A model
    that fails, or whose process dies, does not stop the others. One whose files, flags and result are as an
    earlier run left them is not rewritten again. The workers of an `executor` (concurrent.futures) start the
    processes; they must see the same files.

    Raises ModelError without a model, OptionError for invalid arguments and for a `results.jsonl` of another
    kind, but with the flag `--force`, and OutputError.

    Examples:
        >>> import tempfile, onnx
        >>> from amp_rewrite import convert_all
        >>> from amp_rewrite.demo import network
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     onnx.save(network(), f'{folder}/demo.onnx')
        ...     (line,) = convert_all(folder, f'{folder}/half', ['--skip=verify'])
        >>> line['exit_code'], line['report']['casts_added']
        (0, 4)
    """
    folder = arguments.path("results", results)
    if executor is not None:
        arguments.instance("executor", executor, Executor)
    words = tuple(shlex.split(flags) if isinstance(flags, str) else arguments.texts("flags", flags))
    found = find(arguments.paths("models", models), folder)
    jobs = [Job(each.model, folder / each.place, words) for each in found]
    record = JobRecord(folder / RECORD, force="--force" in words)
    return run_all(jobs, record, executor, lambda _: None)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path, which need not be a valid one."""
    return os.path.isdir(path)  # noqa: PTH112 - False for what is not a valid path


def is_pattern(path: Path) -> bool:
    """Return whether a path is a pattern such as models/*.onnx, and no file."""
    return glob.has_magic(str(path)) and not path.exists()


def find(paths: Iterable[Path], results: Path | None = None) -> list[Found]:
    """Return the models at paths and patterns: in a folder all .onnx files, recursively, not in `results`.

    Raises ModelError for a folder, or a pattern, without any.
    """
    return list(dict.fromkeys(each for path in paths for each in _at(path, results)))


def _at(path: Path, results: Path | None) -> Iterator[Found]:
    if is_pattern(path):
        matching = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - may be absolute
        if not matching:
            raise ModelError("matches no file", where=path, remedy="check the pattern")
        for match in matching:
            yield from _at(match, results)
    elif not is_folder(path):
        yield Found(path, Path(path.name))
    else:
        models = models_in(path, results)
        if not models:
            raise ModelError("has no .onnx file", where=path, remedy="name a folder of models")
        yield from (Found(model, model.relative_to(path)) for model in models)
