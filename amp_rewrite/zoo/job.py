"""The rewrite of one model of a zoo: the command in a process of its own, which may die of it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.files import destination
from amp_rewrite.files.file_identity import FileIdentity
from amp_rewrite.zoo import row
from amp_rewrite.zoo.entries import Entry
from amp_rewrite.zoo.row import Row, Status


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
