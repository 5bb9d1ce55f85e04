"""Detection of files that changed or were replaced while a model was read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from amp_rewrite.errors import ModelError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The file system's identity of a file and its content; times are in nanoseconds."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Return the identity in the status of a file, open or by its path."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and its identity when it was opened."""

    path: Path
    identity: FileIdentity

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """Return the file that is at a path now; raises OSError."""
        return cls(path, FileIdentity.of(path.stat()))

    def check(self) -> None:
        """Raise ModelError if the file has changed: a mixture of two versions is not a model."""
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
    """Raise ModelError for the first file that has changed."""
    for file in files:
        file.check()


def is_same(one: Path, other: Path) -> bool:
    """Return whether two paths, resolved, are the same existing file."""
    try:
        return one.resolve().samefile(other.resolve())
    except (OSError, RuntimeError, ValueError):  # a cycle of links is a RuntimeError
        return False
