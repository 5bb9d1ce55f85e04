"""Resolution of output paths, and checks that a file can be written there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path

from amp_rewrite.errors import OutputError

_OPEN_FILE = re.compile(r"/dev/(std(in|out|err)|fd/\d+)|/proc/[^/]+/(task/[^/]+/)?fd/\d+")
"""Names of the open files of a process, which must not be replaced."""

_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""NumPy's message for a full disk."""

_MOST_LINKS = 40
"""The longest chain of links, as on Linux."""


def resolve(path: Path) -> Path:
    """Return the path of the file to write, following links, which stay; its folder may be missing.

    Raises OutputError where no file can be written: for a folder, a device, a named pipe or a socket, below
    a file, or behind cyclic links.
    """
    try:
        target = _behind_links(path)
        if target.is_dir():
            raise OutputError("is a folder", where=path, remedy="name a file in it")
        if target.exists() and not target.is_file():
            raise OutputError("is a device, a pipe or a socket", where=path, remedy="name a file")
        if target.exists() and not os.access(target, os.W_OK):
            raise OutputError("is write-protected", where=path, remedy="choose another place, or allow it")
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error
    return target


def _behind_links(path: Path) -> Path:
    """Return the file at the end of links; the system resolves `..` after a link, relative to its target."""
    target = path
    for _ in range(_MOST_LINKS):
        existing = next((folder for folder in target.absolute().parents if folder.exists()), target)
        if not existing.is_dir() or ".." in target.absolute().relative_to(existing).parts:
            raise OutputError(
                f"cannot be written: there is no folder {target.parent.absolute()}",
                where=path,
                remedy="choose another place, or create it",
            )
        target = target.parent.resolve() / target.name
        if _OPEN_FILE.fullmatch(str(target)):
            raise OutputError("is an open file of a process", where=path, remedy="name a file")
        if not target.is_symlink():
            return target
        target = target.parent / target.readlink()
    raise OSError("its links are cyclic")


@contextlib.contextmanager
def folder_for_files(path: Path) -> Generator[None]:
    """Create a folder and its parents; at the end, those that were created and are empty are removed."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with contextlib.suppress(OSError):  # files have been moved there
            for folder in missing:
                folder.rmdir()


def unwritable(path: Path, error: OSError | ValueError) -> OutputError:
    """Return the error for a file that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if _SHORT_WRITE.fullmatch(reason):
        reason = "the disk takes no more of it"
    return OutputError(f"cannot be written ({reason})", where=path, remedy="choose another place")
