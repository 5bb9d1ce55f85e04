"""Reading of regular files only: others, such as pipes, may block or never end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from amp_rewrite.errors import READABLE

_MOST = 1 << 31
"""The largest valid file in bytes: protobuf limits models to 2 GiB, and plans are smaller than models."""


class IrregularError(OSError):
    """A path that is not a regular file, or a file that is larger than any valid one.

    `problem` completes a sentence that begins with the path; `remedy` says what to do.
    """

    def __init__(self, number: int, problem: str, remedy: str) -> None:
        super().__init__(number, problem)
        self.problem = problem
        self.remedy = remedy


def read(path: Path, most: int = _MOST) -> bytes:
    """Return the bytes of a regular file, following links.

    Raises IrregularError at once for any other file, and for more than `most` bytes; OSError if the file
    cannot be read.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise IrregularError(errno.EFBIG, f"is larger than {most:,} bytes", "give a smaller file")
        return file.read()


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; raises as `read` does."""
    try:
        _check(path.stat())  # by name first: opening a device or a pipe can have effects
        file = os.fdopen(os.open(path, _FLAGS), "rb")
    except ValueError as error:
        raise IrregularError(errno.EINVAL, "is not a valid path", "check the path") from error
    try:
        _check(os.fstat(file.fileno()))  # the name may refer to another file by now
    except OSError:
        file.close()
        raise
    return file


def problem(error: OSError) -> str:
    """Return the problem with a file that could not be read, as the end of a sentence after its path."""
    return error.problem if isinstance(error, IrregularError) else f"cannot be read ({error.strerror})"


def remedy(error: OSError) -> str:
    """Return the remedy for that error."""
    return error.remedy if isinstance(error, IrregularError) else READABLE


_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
"""Not waiting for a pipe's writer, owning a terminal, or converting line ends; not all systems have all."""


def _check(status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
    kind, remedy = _KINDS.get(stat.S_IFMT(status.st_mode), ("a device", "give a regular file"))
    raise IrregularError(number, f"is {kind}, not a file", remedy)


_KINDS = {
    stat.S_IFDIR: ("a folder", "name a file in it"),
    stat.S_IFIFO: ("a pipe", "save what comes through it to a file first"),
    stat.S_IFSOCK: ("a socket", "give a regular file"),
}


def is_same(one: Path, other: Path) -> bool:
    """Return whether two paths, resolved, are the same existing file."""
    try:
        return one.resolve().samefile(other.resolve())
    except (OSError, RuntimeError, ValueError):  # a cycle of links is a RuntimeError
        return False
