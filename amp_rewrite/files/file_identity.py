"""Detects that a file of a model was changed or replaced while it was read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from amp_rewrite.errors import ModelError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What identifies a file and its content to the file system; times are in nanoseconds."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileIdentity:
        """The identity in the status of a file, open or by its path."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and its identity when it was opened."""

    path: Path
    identity: FileIdentity

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """The file that is at a path now; raises OSError."""
        return cls(path, FileIdentity.of(path.stat()))

    def check(self) -> None:
        """ModelError when the file has changed: a mixture of two files is not a model."""
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
    """ModelError for the first file that has changed."""
    for file in files:
        file.check()


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths, resolved, are the same existing file."""
    try:
        return one.resolve().samefile(other.resolve())
    except (OSError, RuntimeError, ValueError):  # a cycle of links is a RuntimeError
        return False
