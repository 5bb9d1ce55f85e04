"""Runs the jobs of a zoo; whatever becomes of one, the others go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amp_rewrite import arguments, version
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.files import destination, staging
from amp_rewrite.files.file_identity import FileIdentity
from amp_rewrite.model import external_data, writing
from amp_rewrite.rewriting import records
from amp_rewrite.zoo import entries, index_page, row
from amp_rewrite.zoo.entries import Entry
from amp_rewrite.zoo.row import Row, Status

# The rewrite of one model of a zoo: the command in a process of its own, which may die of it.


@dataclass(frozen=True, slots=True)
class Job:
    """A model, the flags of the command, and the folder of the results.

    `pages` asks for a page of each model, `timeout` are the seconds after which the process is ended, and
    `start` is the folder that relative paths in flags begin at.
    """

    entry: Entry
    flags: tuple[str, ...]
    results: Path
    pages: bool
    timeout: float | None
    start: Path

    @property
    def result(self) -> Path:
        """The model that is written."""
        return self.results / "models" / f"{self.entry.name}.onnx"

    @property
    def report(self) -> Path:
        """The report as JSON."""
        return self.results / "reports" / f"{self.entry.name}.json"

    @property
    def page(self) -> Path:
        """The report as HTML, where it is asked for."""
        return self.results / "pages" / f"{self.entry.name}.html"

    @property
    def record(self) -> Path:
        """What is known of the last run, for the next."""
        return self.results / ".records" / f"{self.entry.name}.json"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a run writes."""
        return (self.result, self.report, *((self.page,) if self.pages else ()))

    @property
    def command(self) -> list[str]:
        """The arguments of the command; of a flag that is given twice, the last one holds."""
        own = ("--quiet", "-o", self.result, "--json", self.report)
        pages = ("--html", self.page) if self.pages else ()
        return ["rewrite", *map(str, (*self.flags, *self.entry.flags, *own, *pages, self.entry.model))]


def run(job: Job) -> Row:
    """What came of a job; whatever is wrong is in it, and nothing is raised."""
    began = time.monotonic()
    try:
        for file in job.files:
            destination.make_folder(file.parent)
        earlier = _identity(job.report)
        code, told = _ended(job)
        is_new = _identity(job.report) != earlier  # an earlier run's report must not pass for this one's
        found = _row(job) if is_new and code in _HAS_REPORT else _failed(job, _why(code, told))
    except (AmpRewriteError, OSError, ValueError) as error:
        found = _failed(job, str(error))
    return replace(found, seconds=round(time.monotonic() - began, 3))


def _ended(job: Job) -> tuple[int, str]:
    """The exit code of the process, and the last line that it printed on standard error."""
    force = ("--force",) if job.record.is_file() else ()  # then the result is an earlier one
    started = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[2]), *job.command, *force],
        cwd=job.start if job.start.is_dir() else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with started as process, _registered(process):
        try:
            told = process.communicate(timeout=job.timeout)[1]
        except subprocess.TimeoutExpired:
            _end(process)
            return _OVER, f"took longer than {job.timeout:g} s"
    lines = told.decode(errors="backslashreplace").strip().splitlines()
    return process.returncode, lines[-1].removeprefix("amp-rewrite: ") if lines else ""


_OVER = 124
"""Stands for the exit code of a process whose time was over, as of the command timeout."""

_START = """import sys
sys.path.append(sys.argv.pop(1))  # where this package is, should it not be installed
from amp_rewrite.__main__ import main
main()"""


def _row(job: Job) -> Row:
    report = json.loads(job.report.read_bytes())
    status, why = row.status_of(report)
    places = [file.relative_to(job.results).as_posix() for file in job.files]
    named = dict(zip(("result", "report", "page"), places, strict=False))
    return Row(job.entry.name, str(job.entry.model), status, why, **named, **row.numbers(report))


def _identity(file: Path) -> FileIdentity | None:
    """The identity of a file; None where there is none."""
    return FileIdentity.of(file.stat()) if file.is_file() else None


_HAS_REPORT = (0, 1)
"""The exit codes of a rewrite that was carried out."""


def _failed(job: Job, why: str) -> Row:
    return Row(job.entry.name, str(job.entry.model), Status.FAILED, why)


def _why(code: int, told: str) -> str:
    """What is wrong: the last line that was printed; of a process that a signal ended, that as well."""
    if code >= 0 and told:
        return told
    return f"{_ending(code)}, after: {told}" if told else _ending(code)


def _ending(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


_RUNNING: set[subprocess.Popen[bytes]] = set()


@contextlib.contextmanager
def _registered(process: subprocess.Popen[bytes]) -> Generator[None]:
    _RUNNING.add(process)
    try:
        yield
    finally:
        _RUNNING.discard(process)


def end_all() -> None:
    """Ends the processes that this one has started and not seen end."""
    for process in list(_RUNNING):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, which may first remove what it has not completed."""
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_GRACE = 3.0
"""The seconds that a process has for that: a running model gets one of them (`interruptible.GRACE`)."""


# What was done before, so that a run that is started again does the rest.
#
# As `make` does, it compares sizes and times of files, and not their content.


def done(job: Job) -> Row | None:
    """The row of an earlier run of the same job, whose files are as it left them; None without one.

    What failed is not done.
    """
    try:
        known = json.loads(job.record.read_bytes())
        same = known["job"] == _stamp(job) and known["files"] == _stamps(job.files)
        return row.from_json(known["row"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(job: Job, found: Row) -> None:
    """Records a row that was just made, unless it failed; raises OutputError."""
    if found.status is Status.FAILED:
        return
    destination.make_folder(job.record.parent)
    known = {"job": _stamp(job), "files": _stamps(job.files), "row": records.plain(found)}
    writing.write_json(known, job.record)


def _stamp(job: Job) -> Any:
    """What the results of a job depend on, as JSON data."""
    model = job.entry.model
    read = [model, *sorted(external_data.referenced_by(model)), *filter(None, [entries.data_beside(model)])]
    for word in (*job.flags, *job.entry.flags):
        read.extend(_named(job.start, word))
    return [version.installed(), job.command, _stamps(read)]


def _named(start: Path, word: str) -> Iterator[Path]:
    """The files that a word of the flags names, and those in a folder that it names."""
    with contextlib.suppress(OSError, ValueError):
        path = start / word
        yield from sorted(path.rglob("*")) if path.is_dir() else (path,) if path.is_file() else ()


def _stamps(files: Iterable[Path]) -> list[list[Any]]:
    return [[str(file), found.st_size, found.st_mtime_ns] for file in files for found in (file.stat(),)]


OnRow = Callable[[Row], object]


@dataclass(frozen=True, slots=True)
class Zoo:
    """What came of all models, by name, and how many of them were done by an earlier run."""

    rows: tuple[Row, ...]
    reused: int

    @property
    def ok(self) -> bool:
        """Whether there is a result of every model, and nothing is known against any."""
        return all(row.status.is_good for row in self.rows)

    @property
    def has_failed(self) -> bool:
        """Whether there is no result of some model."""
        return any(row.status is Status.FAILED for row in self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """How many models ended in each way, those that occur."""
        found = {s.value: sum(row.status is s for row in self.rows) for s in Status}
        return {name: count for name, count in found.items() if count}

    def to_json(self) -> dict[str, Any]:
        """This as JSON data."""
        models = records.plain(self.rows)
        return {"amp_rewrite": version.installed(), "ok": self.ok, "counts": self.counts, "models": models}


def rewrite_zoo(
    source: arguments.PathLike,
    results: arguments.PathLike,
    flags: Sequence[str] = (),
    *,
    executor: Executor | None = None,
    pages: bool = False,
    timeout: float | None = None,
    on_row: OnRow | None = None,
) -> Zoo:
    """Rewrites, compares and reports on the models of a folder or manifest (zoo.entries), each by the command
    `amp-rewrite MODEL` with these flags in a process of its own.

    In the folder `results` are then the models, their reports as JSON and with `pages` as HTML, zoo.json and
    index.html. Models whose files, flags and results are as an earlier run left them are not rewritten again.
    A process that dies, or takes longer than `timeout` seconds, fails alone. The workers of an `executor`
    (concurrent.futures) start the processes; they have to see the same files, and what a lost worker had is
    done here. Without one, half as many run at a time as there are processors. `on_row` is called with each
    Row as it is known.

    Raises ModelError and ListError for a source that is wrong, OptionError for invalid arguments, and
    OutputError.

    Examples:
        >>> import tempfile, onnx
        >>> from amp_rewrite import rewrite_zoo
        >>> from amp_rewrite.demo import network
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     onnx.save(network(), f'{folder}/demo.onnx')
        ...     zoo = rewrite_zoo(folder, f'{folder}/half', ['--no-verify'])
        >>> [(row.name, row.status.value) for row in zoo.rows]
        [('demo', 'not compared')]
    """
    place, folder = arguments.path("source", source), arguments.path("results", results).absolute()
    if timeout is not None and (not arguments.is_number(timeout) or timeout <= 0):
        raise arguments.refused("timeout", f"{arguments.shown(timeout)} is not a number above zero")
    if executor is not None:
        arguments.instance("executor", executor, Executor)
    words, start = tuple(arguments.texts("flags", flags)), Path.cwd()
    found = entries.find(place.absolute(), folder)
    entries.refuse_overwriting(found, folder)
    jobs = [Job(entry, words, folder, pages, timeout, start) for entry in found]
    rows = {each.entry.name: row for each in jobs if (row := done(each)) is not None}
    reused = len(rows)
    for row in rows.values():
        _tell(on_row, row)
    for each, row in _run([each for each in jobs if each.entry.name not in rows], executor):
        save(each, row)
        rows[each.entry.name] = row
        _tell(on_row, row)
    zoo = Zoo(tuple(rows[each.entry.name] for each in jobs), reused)
    _write(zoo, folder)
    return zoo


def _tell(on_row: OnRow | None, row: Row) -> None:
    if on_row is not None:
        on_row(row)


def _write(zoo: Zoo, folder: Path) -> None:
    destination.make_folder(folder)
    writing.write_json(zoo.to_json(), folder / "zoo.json")
    staging.write(index_page.render(zoo.rows, zoo.counts).encode(), folder / "index.html")


def _run(jobs: Sequence[Job], executor: Executor | None) -> Iterator[tuple[Job, Row]]:
    """The jobs with what came of them, in the order in which they end."""
    left = list(jobs)
    if executor is not None:
        for each, row in _by(executor, jobs):
            left.remove(each)
            yield each, row
    if left:
        with here() as threads:
            yield from _by(threads, left)


def _by(executor: Executor, jobs: Iterable[Job]) -> Iterator[tuple[Job, Row]]:
    """The jobs that an executor does, without those whose workers are lost."""
    futures = dict[Future[Row], Job]()
    try:
        for each in jobs:
            with contextlib.suppress(Exception):  # it broke, or was shut down
                futures[executor.submit(run, each)] = each
        for future in as_completed(futures):
            if not future.cancelled() and future.exception() is None:
                yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


@contextlib.contextmanager
def here(count: int | None = None) -> Generator[Executor]:
    """Threads of this process, each of which waits for one process at a time; these end with the context."""
    with ThreadPoolExecutor(count or max(1, (os.cpu_count() or 1) // 2)) as threads:
        try:
            yield threads
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            end_all()
