"""The jobs of a zoo, which fail independently of each other."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
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
from amp_rewrite.files import staging
from amp_rewrite.files.file_identity import FileIdentity
from amp_rewrite.model import external_data, writing
from amp_rewrite.rewriting import records
from amp_rewrite.zoo import index_page, model_entries, row
from amp_rewrite.zoo.model_entries import Entry
from amp_rewrite.zoo.row import Row, Status

# The rewrite of one model of a zoo: the command in a process of its own, which may crash.


@dataclass(frozen=True, slots=True)
class Job:
    """A model, the flags of the command, and the folder of the results.

    `pages` requests a page of each model, `timeout` is in seconds, and `start` is the working directory, to
    which paths in flags are relative.
    """

    entry: Entry
    flags: tuple[str, ...]
    results: Path
    pages: bool
    timeout: float | None
    start: Path

    @property
    def result(self) -> Path:
        """The rewritten model."""
        return self.results / "models" / f"{self.entry.name}.onnx"

    @property
    def report(self) -> Path:
        """The report as JSON."""
        return self.results / "reports" / f"{self.entry.name}.json"

    @property
    def page(self) -> Path:
        """The report as HTML, if requested."""
        return self.results / "pages" / f"{self.entry.name}.html"

    @property
    def record(self) -> Path:
        """The record of the last run, for the next."""
        return self.results / ".records" / f"{self.entry.name}.json"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a run writes."""
        return (self.result, self.report, *((self.page,) if self.pages else ()))

    @property
    def command(self) -> list[str]:
        """The arguments of the command; the last occurrence of a flag takes effect."""
        own = ("--quiet", "-o", self.result, "--json", self.report)
        pages = ("--html", self.page) if self.pages else ()
        return ["rewrite", *map(str, (*self.flags, *self.entry.flags, *own, *pages, self.entry.model))]


def run(job: Job) -> Row:
    """Run a job and return its row; errors are recorded in the row, not raised."""
    began = time.monotonic()
    try:
        earlier = _identity(job.report)
        code, message = _ended(job)
        is_new = _identity(job.report) != earlier  # the report of an earlier run does not count
        outcome = _row(job) if is_new and code in _HAS_REPORT else _failed(job, _why(code, message))
    except (AmpRewriteError, OSError, ValueError) as error:
        outcome = _failed(job, str(error))
    return replace(outcome, seconds=round(time.monotonic() - began, 3))


def _ended(job: Job) -> tuple[int, str]:
    """Return the exit code of the process and its last line on standard error."""
    force = ("--force",) if job.record.is_file() else ()  # replaces the result of an earlier run
    started = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[2]), *job.command, *force],
        cwd=job.start if job.start.is_dir() else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with started as process, _registered(process):
        try:
            stderr = process.communicate(timeout=job.timeout)[1]
        except subprocess.TimeoutExpired:
            _end(process)
            return _OVER, f"took longer than {job.timeout:g} s"
    lines = stderr.decode(errors="backslashreplace").strip().splitlines()
    return process.returncode, lines[-1].removeprefix("amp-rewrite: ") if lines else ""


_OVER = 124
"""The exit code for a process that exceeded its timeout, as of the command timeout."""

_START = """import sys
sys.path.append(sys.argv.pop(1))  # where this package is, should it not be installed
from amp_rewrite.__main__ import main
main()"""


def _row(job: Job) -> Row:
    report = json.loads(job.report.read_bytes())
    status, why = row.status_of(report)
    places = [file.relative_to(job.results).as_posix() for file in job.files]
    locations = dict(zip(("result", "report", "page"), places, strict=False))
    return Row(job.entry.name, str(job.entry.model), status, why, **locations, **row.numbers(report))


def _identity(file: Path) -> FileIdentity | None:
    """Return the identity of a file; None if it does not exist."""
    return FileIdentity.of(file.stat()) if file.is_file() else None


_HAS_REPORT = (0, 1)
"""The exit codes of a rewrite that wrote its report."""


def _failed(job: Job, why: str) -> Row:
    stale = f"; {job.result.name} is of an earlier run" if job.result.is_file() else ""
    return Row(job.entry.name, str(job.entry.model), Status.FAILED, f"{why}{stale}")


def _why(code: int, message: str) -> str:
    """Return the reason for a failure: the last line on standard error, with the signal, if any."""
    if code >= 0 and message:
        return message
    return f"{_ending(code)}, after: {message}" if message else _ending(code)


def _ending(code: int) -> str:
    """Describe the exit code of a process."""
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
    """End all child processes that are still running."""
    for process in list(_RUNNING):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, with a grace period to remove incomplete files."""
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_GRACE = 3.0
"""The grace period in seconds; a running model takes one of them (`interruptible.GRACE`)."""


# Incremental runs: unchanged jobs of an earlier run are reused.
#
# As in `make`, sizes and times of files are compared, not their content.


def done(job: Job) -> Row | None:
    """Return the row of an earlier run of the same job if its files are unchanged; None otherwise.

    Failed jobs are not reused.
    """
    try:
        record = json.loads(job.record.read_bytes())
        same = record["job"] == _stamp(job) and record["files"] == _stamps(job.files)
        return row.from_json(record["row"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(job: Job, outcome: Row) -> None:
    """Record the row of a finished job, unless it failed; raise OutputError."""
    if outcome.status is Status.FAILED:
        return
    record = {"job": _stamp(job), "files": _stamps(job.files), "row": records.plain(outcome)}
    writing.write_json(record, job.record)


def _stamp(job: Job) -> Any:
    """Return the dependencies of the results of a job, as JSON data."""
    model = job.entry.model
    dependencies = [
        model,
        *sorted(external_data.referenced_by(model)),
        *filter(None, [model_entries.data_beside(model)]),
    ]
    for word in (*job.flags, *job.entry.flags):
        dependencies.extend(_word_files(job.start, word))
    return [version.installed(), job.command, _stamps(dependencies)]


def _word_files(start: Path, word: str) -> Iterator[Path]:
    """Yield the file that a word of the flags names, or the files in the folder that it names."""
    with contextlib.suppress(OSError, ValueError):
        path = start / word
        yield from sorted(path.rglob("*")) if path.is_dir() else (path,) if path.is_file() else ()


def _stamps(files: Iterable[Path]) -> list[list[Any]]:
    return [[str(file), stat.st_size, stat.st_mtime_ns] for file in files for stat in (file.stat(),)]


OnRow = Callable[[Row], object]


@dataclass(frozen=True, slots=True)
class Zoo:
    """The outcomes of all models by name, and the number reused from an earlier run."""

    rows: tuple[Row, ...]
    reused: int

    @property
    def ok(self) -> bool:
        """True if every model has a result without a known fault."""
        return all(row.status.is_good for row in self.rows)

    @property
    def has_failed(self) -> bool:
        """Whether some model has no result."""
        return any(row.status is Status.FAILED for row in self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """The number of models by status, for those that occur."""
        totals = {s.value: sum(row.status is s for row in self.rows) for s in Status}
        return {name: count for name, count in totals.items() if count}

    def to_json(self) -> dict[str, Any]:
        """Return the zoo as JSON data."""
        models = records.plain(self.rows)
        return {"amp_rewrite": version.installed(), "ok": self.ok, "counts": self.counts, "models": models}


def rewrite_zoo(
    source: arguments.PathLike,
    results: arguments.PathLike,
    flags: str | Sequence[str] = (),
    *,
    executor: Executor | None = None,
    pages: bool = False,
    timeout: float | None = None,
    on_row: OnRow | None = None,
) -> Zoo:
    """Rewrite, compare and report on the models of a folder or manifest (zoo.entries), each by the command
    `amp-rewrite MODEL` with these flags, words or a line of them, in a process of its own.

    The folder `results` then holds the models, their reports as JSON and with `pages` as HTML, zoo.json and
    index.html. Models whose files, flags and results are unchanged since an earlier run are not rewritten
    again. A process that dies, or takes longer than `timeout` seconds, fails alone. The workers of an
    `executor` (concurrent.futures) start the processes; they must see the same files, and the jobs of a lost
    worker run here. Without one, the number of parallel processes is half the number of processors. `on_row`
    is called with each Row as its job ends.

    Raises ModelError and ListError for an invalid source, OptionError for invalid arguments, and
    OutputError.

    Examples:
        >>> import tempfile, onnx
        >>> from amp_rewrite import rewrite_zoo
        >>> from amp_rewrite.demo import network
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     onnx.save(network(), f'{folder}/demo.onnx')
        ...     zoo = rewrite_zoo(folder, f'{folder}/half', ['--skip=verify'])
        >>> [(row.name, row.status.value) for row in zoo.rows]
        [('demo', 'not compared')]
    """
    place, folder = arguments.path("source", source), arguments.path("results", results).absolute()
    if timeout is not None and (not arguments.is_number(timeout) or timeout <= 0):
        raise arguments.refused("timeout", f"{arguments.describe(timeout)} is not a number above zero")
    if executor is not None:
        arguments.instance("executor", executor, Executor)
    words = shlex.split(flags) if isinstance(flags, str) else arguments.texts("flags", flags)
    start = Path.cwd()
    models = model_entries.find(place.absolute(), folder)
    model_entries.refuse_overwriting(models, folder)
    jobs = [Job(entry, tuple(words), folder, pages, timeout, start) for entry in models]
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
    writing.write_json(zoo.to_json(), folder / "zoo.json")
    staging.write(index_page.render(zoo.rows, zoo.counts).encode(), folder / "index.html")


def _run(jobs: Sequence[Job], executor: Executor | None) -> Iterator[tuple[Job, Row]]:
    """Yield each job with its row, in completion order."""
    remaining = list(jobs)
    if executor is not None:
        for each, row in _by(executor, jobs):
            remaining.remove(each)
            yield each, row
    if remaining:
        with here() as threads:
            yield from _by(threads, remaining)


def _by(executor: Executor, jobs: Iterable[Job]) -> Iterator[tuple[Job, Row]]:
    """Yield the jobs that an executor completes, without those of lost workers."""
    futures = dict[Future[Row], Job]()
    try:
        for each in jobs:
            with contextlib.suppress(Exception):  # a broken executor, or one that was shut down
                futures[executor.submit(run, each)] = each
        for future in as_completed(futures):
            if not future.cancelled() and future.exception() is None:
                yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


@contextlib.contextmanager
def here(count: int | None = None) -> Generator[Executor]:
    """Yield an executor of threads, each of which runs one process at a time; end these at exit."""
    with ThreadPoolExecutor(count or max(1, (os.cpu_count() or 1) // 2)) as threads:
        try:
            yield threads
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            end_all()
