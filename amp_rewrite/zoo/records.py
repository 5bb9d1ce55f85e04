"""What was done before, so that a run that is started again does the rest.

As `make` does, it compares sizes and times of files, and not their content.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from amp_rewrite import version
from amp_rewrite.files import destination
from amp_rewrite.model import obsolete_data_files, writing
from amp_rewrite.zoo import row
from amp_rewrite.zoo.job import Job
from amp_rewrite.zoo.row import Row, Status


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
    known = {"job": _stamp(job), "files": _stamps(job.files), "row": found.to_json()}
    writing.write_json(known, job.record)


def _stamp(job: Job) -> Any:
    """What the results of a job depend on, as JSON data."""
    model = job.entry.model
    read = [model, *sorted(obsolete_data_files.referenced_by(model))]
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
