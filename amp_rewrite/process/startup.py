"""The start of the command: its imports, with a one-line error if they fail."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import gc
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from amp_rewrite.errors import TRACEBACK

# Late imports, during which no fork happens.
#
# A fork copies a module that another thread is importing half initialised, and locked: the child would
# deadlock. So late imports hold a lock that a fork acquires first.

LOCK = threading.RLock()
"""The lock that a fork acquires first, so that it copies no partial work done under it."""

_FIRST = (logging, concurrent.futures.thread)
"""Modules to import first: both register locks that a fork acquires, in reverse order of registration. A
module under import may need them, and must not register them while a fork waits for our lock.
"""

if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def import_module(name: str) -> ModuleType:
    """Import a module by name, as `importlib.import_module` does."""
    with LOCK:
        return importlib.import_module(name)


# Python's cyclic garbage collector, paused while large graphs are built.


@contextlib.contextmanager
def paused() -> Generator[None]:
    """Pause the collector, which would traverse a large graph again and again as it grows.

    A pass over 100,000 nodes takes twice as long with it. Objects created meanwhile move to the oldest
    generation, so that the collector does not traverse them all at once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # objects frozen by the host stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def load(name: str) -> ModuleType:
    """Import a module of the command; end the process with a one-line error if a package prevents that."""
    try:
        with _interrupts_end_it(), lazy_imports(), paused():
            return importlib.import_module(name)
    except Exception as error:  # a broken or old package may raise anything
        if os.environ.get(TRACEBACK):
            raise
        _refuse_to_start(error)


def _refuse_to_start(error: Exception) -> NoReturn:
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in ("", "amp_rewrite"):
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        problem = f"a package that it needs cannot be imported ({what})"
    else:
        problem = f"the package {_PACKAGES.get(missing, missing)} is missing"
    is_clone = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    package = ".[cpu]" if is_clone else f"amp-rewrite[cpu] @ git+{_REPOSITORY}"
    install = f"pip install '{package}'"
    print(f"amp-rewrite: {problem}; install what it needs with: {install}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


_REPOSITORY = "https://github.com/amp-rewrite/amp-rewrite"

_PACKAGES = {"yaml": "PyYAML", "onnx_ir": "onnx-ir", "google": "protobuf"}
"""The names of packages that differ from those of their modules."""


@contextlib.contextmanager
def _interrupts_end_it() -> Generator[None]:
    """Restore the system's handler of interrupts (SIGINT), which ends the process at once.

    A KeyboardInterrupt in the middle of an import prints a traceback, and crashes protobuf's C extension.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def lazy_imports() -> Generator[None]:
    """Load rarely needed modules on first use, which nearly halves the time of the imports.

    Changes `sys.meta_path`, so it is for a process of our own.
    """
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


SELDOM = frozenset({"sympy", "onnx_ir._symbolic_shapes", "re2"})
"""Modules for symbolic dimensions in onnx-ir, which are unused here, and for regular expressions."""


class _LazyFinder:
    """A finder of these modules as Python's own, with the standard library's lazy loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of such a module; None for any other."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in SELDOM else None
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec


def tolerate_lost_streams() -> None:
    """Make no exit code depend on a reader: what standard error cannot take, and what goes to a closed pipe,
    is dropped.

    A closed standard stream leads nowhere: else the next file would get its number, and what libraries print.
    """
    for name, kind in (("stdin", None), ("stdout", _Unread), ("stderr", _Lossy)):
        stream: Any = getattr(sys, name)
        if stream is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(file, True)
            setattr(sys, name, os.fdopen(file, "r" if kind is None else "w"))
        elif kind is not None and stream is getattr(sys, f"__{name}__"):
            raw = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
            by_line = stream.line_buffering or kind is _Lossy
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=by_line))


class _Lossy(io.FileIO):
    LOST: type[OSError] = OSError

    def write(self, data: Any, /) -> int:
        """Write as much as the system accepts, and claim to have written all of it."""
        with contextlib.suppress(self.LOST):
            return super().write(data) or len(data)
        return len(data)


class _Unread(_Lossy):
    LOST = BrokenPipeError
