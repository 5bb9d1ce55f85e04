"""The files that a model is read from: whether they are still what they were when that began."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from amp_rewrite.errors import ModelError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What a file system knows a file by, and by what it knows that somebody has written to it."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileIdentity:
        """That of a file, open or by its path; times are in nanoseconds."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and what it was when it was first looked at."""

    path: Path
    identity: FileIdentity

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """The file at a path as it is now; raises OSError."""
        return cls(path, FileIdentity.of(path.stat()))

    def check(self) -> None:
        """ModelError when the file is no longer what it was: a mixture of two files is no model."""
        try:
            same = FileIdentity.of(self.path.stat()) == self.identity
        except OSError:
            same = False
        if not same:
            raise ModelError(
                "was changed or replaced while it was read",
                where=self.path,
                remedy="leave it alone, and start again",
            )


def check(files: Iterable[SourceFile]) -> None:
    """ModelError for the first file that is no longer what it was."""
    for file in files:
        file.check()
