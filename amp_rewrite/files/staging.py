"""Atomic writing by a folder beside the target: readers see either the old file or the new one.

A stage is the folder `.NAME.amp-rewrite-unfinished`, with a number where others are there. A run that is
killed leaves it, and nothing else; it may be deleted. In a `transaction`, complete files wait in their stages
until all of them are moved into place together.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amp_rewrite.files.destination import folder_for_files, resolve, unwritable

UNFINISHED = "amp-rewrite-unfinished"
"""The end of the names of stages."""

Taken = Callable[[int], bool]
"""Whether files beside the target have the names that go with a number."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder `files` beside `target`, which is not a link; what is written there can be published.

    No other stage of the target has its `number`, which is for the names of other files beside the target.
    """

    target: Path
    files: Path
    number: int

    def complete(self, path: Path, move: Callable[[], object]) -> Path:
        """Move complete files into place: at once, or with the target's transaction.

        `path` is the user's name of the target. Returns the path of the file until then.
        """
        pending = _OPEN.get().get(self.target)
        if pending is not None:
            return pending.add(path, self, move)
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
        inodes = {place: file.stat().st_ino for file, place in places.items()}
        try:
            for file, place in places.items():
                _move_to_free(file, place)
            model.replace(self.target)
        except BaseException:  # an interrupt as well
            if model.exists():  # otherwise it has moved, and its data must stay
                _remove(inodes)
            raise


def _remove(inodes: Mapping[Path, int]) -> None:
    """Remove the files that have these inodes."""
    for place, inode in inodes.items():
        with contextlib.suppress(OSError):
            if place.lstat().st_ino == inode:
                place.unlink()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A complete file in a stage: the user's path, and the function that moves it there."""

    path: Path
    staged: Path
    move: Callable[[], object]


class Transaction:
    """Complete files that wait until all are moved into place; at most one for each target."""

    def __init__(self) -> None:
        self._pending: dict[Path, _Pending] = {}
        self._stages: dict[Path, contextlib.ExitStack] = {}

    def add(self, path: Path, stage: Stage, move: Callable[[], object]) -> Path:
        """Add a complete file to move at `commit`; return its path until then."""
        staged = stage.files / stage.target.name
        self._pending[stage.target] = _Pending(path, staged, move)
        return staged

    def keep(self, target: Path, stage: contextlib.ExitStack) -> None:
        """Keep the stage of a target while its file waits; close it otherwise."""
        with stage:
            if target in self._pending:
                self._stages[target] = stage.pop_all()

    def discard(self, target: Path) -> None:
        """Remove the file that waits for a target, if any."""
        self._pending.pop(target, None)
        self._stages.pop(target, contextlib.ExitStack()).close()

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
    """Open a transaction: files written to these targets (from `destination.resolve`) wait for `commit`.

    At the end, uncommitted files are removed, as after an error or an interrupt. A target of an outer
    transaction stays with that.
    """
    own = Transaction()
    token = _OPEN.set({**_OPEN.get(), **{target: own for target in targets if target not in _OPEN.get()}})
    try:
        yield own
    finally:
        _OPEN.reset(token)
        own.discard_all()


def current() -> Transaction:
    """Return the outermost transaction; an empty one if none is open."""
    return next(iter(_OPEN.get().values()), Transaction())


@contextlib.contextmanager
def beside(target: Path, taken: Taken = lambda _: False) -> Generator[Stage]:
    """Create a stage for a target (from `destination.resolve`), removed at the end, published or not.

    Its number is the first that is free, and not `taken`. A missing folder of the target is created, and
    stays if a file is published. In a transaction, a file that already waits for the target is removed, and
    the stage stays until the commit. Raises OSError if no folder can be created there.
    """
    pending = _OPEN.get().get(target)
    if pending is not None:
        pending.discard(target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder_for_files(target.parent))
        number, folder = next(_made(target, taken))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Stage(target, folder, number)
        if pending is not None:
            pending.keep(target, stack.pop_all())


def _made(target: Path, taken: Taken) -> Iterator[tuple[int, Path]]:
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


def _move_to_free(file: Path, place: Path) -> None:
    """Move a file to an unused name: unlike a rename, a hard link replaces nothing."""
    try:
        os.link(file, place)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        place.open("xb").close()
        file.replace(place)
    else:
        file.unlink()


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
