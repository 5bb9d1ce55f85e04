"""Atomic writing by a stage beside the target: readers see either the old file or the new one.

A stage is a folder `.amp-rewrite-<hash of target>-<random>.part`, created exclusively and locked (flock)
while its run lives. The stage of a killed run is removed by the next run that writes the same target.
In a `transaction`, complete files wait in their stages until all of them are moved into place together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amp_rewrite.files import locking
from amp_rewrite.files.destination import folder_for_files, resolve, unwritable

_PREFIX, _SUFFIX = ".amp-rewrite-", ".part"
_NOTE = "published.json"
_FILES = "files"

Named = Callable[[], frozenset[Path]]
"""The data files that the model at the target refers to."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder beside `target`, which is not a link; files written to `files` can be published."""

    target: Path
    folder: Path

    @property
    def files(self) -> Path:
        """The folder to write to, under the final names of the files."""
        return self.folder / _FILES

    def complete(self, path: Path, move: Callable[[], object]) -> Path:
        """Move complete files into place: at once, or with the target's transaction.

        `path` is the user's name of the target. Returns the path of the file until then.
        """
        pending = _OPEN.get().get(self.target)
        if pending is not None:
            return pending.add(path, self, move)
        move()
        return path

    def reserve(self, offers: Iterable[Sequence[str]]) -> Sequence[str]:
        """Reserve the first of the offered sets of names that is unused beside the target, and return it.

        Other runs that write the same target do not use these names from then on. Raises OSError.
        """
        with locking.held(self.target.parent):
            used_names = {file.name for stage in _stages(self.target) for file in (stage / _FILES).glob("*")}
            names = next(names for names in offers if not self._clash(names, used_names))
            for name in names:
                (self.files / name).touch()
        return names

    def _clash(self, names: Sequence[str], used_names: set[str]) -> bool:
        return any(name in used_names or os.path.lexists(self.target.with_name(name)) for name in names)

    def publish(self, data: Sequence[str] = (), mode: int | None = None) -> None:
        """Move data files beside the target, where their names must be unused, and then the target itself.

        All get mode and owner of the replaced file; without one, they are no more accessible than `mode`,
        that of the source. Raises OSError, and then nothing has moved.
        """
        staged = [self.files / name for name in (*data, self.target.name)]
        _note(self.folder, staged[:-1])
        for file in staged:
            _take_after(file, self.target, mode)
        try:
            for file in staged[:-1]:
                _move_to_free(file, self.target.with_name(file.name))
            staged[-1].replace(self.target)
        except BaseException:  # an interrupt as well
            if staged[-1].exists():  # otherwise it has moved, and its data must stay
                _remove_published(self.folder, self.target, frozenset())
            raise


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
        """Move all files into place in the order of writing, with signals delayed.

        Returns the user's path for a `result` that waits here, else the result. Raises OutputError.
        """
        with signals_delayed():
            for target, file in list(self._pending.items()):
                try:
                    file.move()
                except OSError as error:
                    raise unwritable(file.path, error) from error
                result = file.path if result == file.staged else result
                self.discard(target)
        return result


@contextlib.contextmanager
def signals_delayed() -> Generator[None]:
    """Delay SIGINT and SIGTERM to the end of the context; without effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: arrived.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    for number in arrived:
        signal.raise_signal(number)


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
def beside(target: Path, references: Named = frozenset[Path]) -> Generator[Stage]:
    """Create a stage for a target (from `destination.resolve`), removed at the end, published or not.

    A missing folder of the target is created, and stays if a file is published. First removes leftovers of
    killed runs for the same target, except data files in `references`. In a transaction, a file that already
    waits for the target is removed, and the stage stays until the commit. Raises OSError if no folder can be
    created there.
    """
    pending = _OPEN.get().get(target)
    if pending is not None:
        pending.discard(target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder_for_files(target.parent))
        with locking.held(target.parent):
            for folder in _stages(target):
                _remove_stale(folder, target, references)
            folder = Path(tempfile.mkdtemp(_SUFFIX, _prefix(target), target.parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(locking.taken(folder))
            stage = Stage(target, folder)
            stage.files.mkdir()
        yield stage
        if pending is not None:
            pending.keep(target, stack.pop_all())


def write(data: bytes, path: Path) -> None:
    """Write a file atomically, following links. Raises OutputError."""
    target = resolve(path)
    try:
        with beside(target) as stage:
            (stage.files / target.name).write_bytes(data)
            stage.complete(path, stage.publish)
    except OSError as error:
        raise unwritable(path, error) from error


def _prefix(target: Path) -> str:
    """Return the prefix of a target's stages: a hash, as the target's own name may be too long."""
    digest = hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()
    return f"{_PREFIX}{digest}-"


def _stages(target: Path) -> list[Path]:
    return sorted(target.parent.glob(f"{_prefix(target)}*{_SUFFIX}"))


def _note(folder: Path, data: Iterable[Path]) -> None:
    """Record the inodes of data that is about to be published, so that a later run can identify it."""
    inodes = {file.name: file.stat().st_ino for file in data}
    (folder / _NOTE).write_bytes(os.fsencode(json.dumps(inodes)))


def _noted(folder: Path) -> dict[str, int]:
    """Return the inodes of the data that a stage was about to publish, by name; empty before that."""
    try:
        return dict(json.loads(os.fsdecode((folder / _NOTE).read_bytes())))
    except (OSError, ValueError):
        return {}


def _remove_stale(folder: Path, target: Path, references: Named) -> None:
    """Remove a stage whose run has died, and data that it published without its model."""
    if not _is_ours(folder):
        return
    lock = locking.free(folder)
    if lock is not None:
        with lock:
            _remove_published(folder, target, references())
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Return whether a folder of such a name belongs to us, and has only the content of a stage."""
    try:
        status = folder.lstat()
        inside = {file.name for file in folder.iterdir()}
    except OSError:
        return False
    owner = os.geteuid() if hasattr(os, "geteuid") else status.st_uid
    return stat.S_ISDIR(status.st_mode) and status.st_uid == owner and inside <= {_NOTE, _FILES}


def _remove_published(folder: Path, target: Path, references: frozenset[Path]) -> None:
    """Remove data that a stage has published before the model that refers to it, except `references`."""
    for name, inode in _noted(folder).items():
        place = target.with_name(name)
        with contextlib.suppress(OSError):
            if place.lstat().st_ino == inode and place not in references:
                place.unlink()


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
