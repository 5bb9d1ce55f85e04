"""Runs the jobs of a zoo; whatever becomes of one, the others go on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_rewrite import arguments, version
from amp_rewrite.files import destination, staging
from amp_rewrite.model import writing
from amp_rewrite.zoo import entries, index_page, job, records
from amp_rewrite.zoo.job import Job
from amp_rewrite.zoo.row import Row, Status

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
        rows = [row.to_json() for row in self.rows]
        return {"amp_rewrite": version.installed(), "ok": self.ok, "counts": self.counts, "models": rows}


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
    rows = {each.entry.name: row for each in jobs if (row := records.done(each)) is not None}
    reused = len(rows)
    for row in rows.values():
        _tell(on_row, row)
    for each, row in _run([each for each in jobs if each.entry.name not in rows], executor):
        records.save(each, row)
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
                futures[executor.submit(job.run, each)] = each
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
            job.end_all()
