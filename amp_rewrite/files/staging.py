"""Atomic writing by a folder beside the target: readers see either the old file or the new one.

A stage is the folder `.NAME.amp-rewrite-unfinished`, with a number where others are there. A run that is
killed leaves it, and nothing else; it may be deleted. In a `transaction`, complete files wait in their stages
until all of them are moved into place together. Of two runs on one target the last wins, whole.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amp_rewrite.errors import OutputError

# The place of a file.

_OPEN_FILE = re.compile(r"/dev/(std(in|out|err)|fd/\d+)|/proc/[^/]+/(task/[^/]+/)?fd/\d+")
"""Names of the open files of a process, which must not be replaced."""

_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""NumPy's message for a full disk."""


def resolve(path: Path) -> Path:
    """Return the path of the file to write, following links, which stay; its folder may be missing.

    Raises OutputError where no file can be written: for a folder, a device, a named pipe or a socket, below
    a file, or behind cyclic links.
    """
    try:
        target = Path(os.path.realpath(path))
        if _OPEN_FILE.fullmatch(str(path.absolute())):
            raise OutputError("is an open file of a process", where=path, remedy="name a file")
        if target.is_dir():
            raise OutputError("is a folder", where=path, remedy="name a file in it")
        if target.is_symlink():
            raise OSError("its links are cyclic")
        if not next(folder for folder in target.parents if folder.exists()).is_dir():
            problem = f"cannot be written: there is no folder {target.parent}"
            raise OutputError(problem, where=path, remedy="choose another place, or create it")
        if target.exists() and not target.is_file():
            raise OutputError("is a device, a pipe or a socket", where=path, remedy="name a file")
        if target.exists() and not os.access(target, os.W_OK):
            raise OutputError("is write-protected", where=path, remedy="choose another place, or allow it")
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error
    return target


def unwritable(path: Path, error: OSError | ValueError) -> OutputError:
    """Return the error for a file that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if _SHORT_WRITE.fullmatch(reason):
        reason = "the disk takes no more of it"
    return OutputError(f"cannot be written ({reason})", where=path, remedy="choose another place")


# A folder beside the target.

UNFINISHED = "amp-rewrite-unfinished"
"""The end of the names of stages."""

Taken = Callable[[int], bool]
"""Whether files beside the target have the names that go with a number."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder `files` beside `target`, which is not a link; what is written there can be published.

    No other stage of the target has its `number`, which is for the names of other files beside the target.
    `removal` removes the folder.
    """

    target: Path
    files: Path
    number: int
    removal: contextlib.ExitStack

    def complete(self, path: Path, move: Callable[[], object]) -> Path:
        """Move complete files into place: at once, or with the target's transaction.

        `path` is the user's name of the target. Returns the path of the file until then.
        """
        waiting = _OPEN.get().get(self.target)
        if waiting is not None:
            return waiting.add(path, self, move)
        move()
        return path

    def publish(self, data: Sequence[str] = (), mode: int | None = None) -> None:
        """Move data files beside the target, where their names must be unused, and then the target itself.

        All get mode and owner of the replaced file; without one, they are no more accessible than `mode`,
        that of the source. Raises OSError, and then nothing has moved.
        """
        model = self.files / self.target.name
        places = {self.files / name: self.target.with_name(name) for name in data}
        for file in (*places, model):
            _take_after(file, self.target, mode)
        try:
            for file, place in places.items():
                if os.path.lexists(place):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                file.rename(place)
            model.replace(self.target)
        except BaseException:  # an interrupt as well
            for file, place in places.items() if model.exists() else ():  # otherwise data must stay
                if not file.exists():
                    place.unlink()
            raise


def _take_after(file: Path, old: Path, mode: int | None) -> None:
    """Give a file the mode of the one that it replaces, and its owner if permitted."""
    now = file.stat()
    if not old.exists():
        if mode is not None:
            file.chmod(stat.S_IMODE(now.st_mode & (mode | stat.S_IRWXU)))
        return
    before = old.stat()
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid) and hasattr(os, "chown"):
        with contextlib.suppress(PermissionError):
            os.chown(file, before.st_uid, before.st_gid)
    file.chmod(stat.S_IMODE(before.st_mode))


@contextlib.contextmanager
def beside(target: Path, taken: Taken = lambda _: False) -> Generator[Stage]:
    """Create a stage for a target (from `resolve`), removed at the end, published or not.

    Its number is the first that is free, and not `taken`. A missing folder of the target is created, and
    stays if a file is published. In a transaction, a file that already waits for the target is removed, and
    the stage stays until the commit. Raises OSError if no folder can be created there.
    """
    waiting = _OPEN.get().get(target)
    if waiting is not None:
        waiting.discard(target)
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, [folder for folder in target.parents if not folder.exists()])
        target.parent.mkdir(parents=True, exist_ok=True)
        number, folder = next(_free(target, taken))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Stage(target, folder, number, stack)


def _remove_empty(folders: Iterable[Path]) -> None:
    with contextlib.suppress(OSError):  # files have been moved there
        for folder in folders:
            folder.rmdir()


def _free(target: Path, taken: Taken) -> Iterator[tuple[int, Path]]:
    """Yield new folders and their numbers. Names are looked up after a folder is made: whoever had made it
    before moves its files first, and then removes it.
    """
    for number in itertools.count():
        folder = target.with_name(name_beside(f".{target.name}", f".{number}" * bool(number), UNFINISHED))
        with contextlib.suppress(FileExistsError):
            folder.mkdir(stat.S_IRWXU)
            if not taken(number):
                yield number, folder
            else:
                folder.rmdir()


def name_beside(name: str, number: str, suffix: str) -> str:
    """Return name, number and suffix, joined by dots, with the name cut to what file systems take.

    As UTF-8, which ONNX requires.
    """
    end = f"{number}.{suffix}"
    return os.fsencode(name)[: _LONGEST_NAME - len(end)].decode(errors="ignore") + end


_LONGEST_NAME = 255 - 10
"""Bytes of a file name on common file systems, less ten that onnx-ir appends while it writes."""


def write(data: bytes, path: Path) -> None:
    """Write a file atomically, following links. Raises OutputError."""
    target = resolve(path)
    try:
        with beside(target) as stage:
            (stage.files / target.name).write_bytes(data)
            stage.complete(path, stage.publish)
    except OSError as error:
        raise unwritable(path, error) from error


# Files that are moved into place together.


@dataclass(frozen=True, slots=True)
class _Pending:
    """A complete file in a stage: the user's path, the function that moves it there, and what removes it."""

    path: Path
    staged: Path
    move: Callable[[], object]
    removal: contextlib.ExitStack


class Transaction:
    """Complete files that wait until all are moved into place; at most one for each target."""

    def __init__(self) -> None:
        self._pending: dict[Path, _Pending] = {}

    def add(self, path: Path, stage: Stage, move: Callable[[], object]) -> Path:
        """Add a complete file to move at `commit`, with its stage; return its path until then."""
        staged = stage.files / stage.target.name
        self._pending[stage.target] = _Pending(path, staged, move, stage.removal.pop_all())
        return staged

    def discard(self, target: Path) -> None:
        """Remove the file that waits for a target, if any."""
        if target in self._pending:
            self._pending.pop(target).removal.close()

    def discard_all(self) -> None:
        """Remove all waiting files, the last first: the first of a folder may have created it."""
        for target in reversed(list(self._pending)):
            self.discard(target)

    def replaces(self, result: Any) -> bool:
        """Return whether a waiting result is to replace a file."""
        return any(result == file.staged and target.exists() for target, file in self._pending.items())

    def commit(self, result: Any = None) -> Any:
        """Move all files into place in the order of writing.

        Returns the user's path for a `result` that waits here, else the result. Raises OutputError.
        """
        for target, file in list(self._pending.items()):
            try:
                file.move()
            except OSError as error:
                raise unwritable(file.path, error) from error
            result = file.path if result == file.staged else result
            self.discard(target)
        return result


_OPEN: ContextVar[Mapping[Path, Transaction]] = ContextVar("_OPEN", default=MappingProxyType({}))
"""The transaction of each target that has one."""


@contextlib.contextmanager
def transaction(targets: Iterable[Path]) -> Generator[Transaction]:
    """Open a transaction: files written to these targets (from `resolve`) wait for `commit`.

    At the end, uncommitted files are removed, as after an error or an interrupt. A target of an outer
    transaction stays with that.
    """
    own, outer = Transaction(), _OPEN.get()
    token = _OPEN.set({**outer, **{target: own for target in targets if target not in outer}})
    try:
        yield own
    finally:
        _OPEN.reset(token)
        own.discard_all()


def current() -> Transaction:
    """Return the outermost transaction; an empty one if none is open."""
    return next(iter(_OPEN.get().values()), Transaction())
