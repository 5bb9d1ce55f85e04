"""The start of the command: its imports, with a one-line error if they fail, and its streams."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

from amp_rewrite.errors import TRACEBACK


@contextlib.contextmanager
def paused() -> Generator[None]:
    """Pause Python's cyclic garbage collector, which would traverse a large graph repeatedly as it grows.

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
    """Import a module of the command; end the process with a one-line error if a package prevents that.

    An interrupt meanwhile ends the process at once: a KeyboardInterrupt in the middle of an import prints a
    traceback, and crashes protobuf's C extension.
    """
    in_main = threading.current_thread() is threading.main_thread()
    is_default = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with paused(), _postponed_imports():
            return importlib.import_module(name)
    except Exception as error:  # a broken or old package may raise anything
        if os.environ.get(TRACEBACK):
            raise
        _refuse_to_start(error)
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


_SELDOM = ("sympy", "onnx_ir._symbolic_shapes", "re2")
"""Modules for symbolic dimensions in onnx-ir, which are unused here, and for regular expressions."""


@contextlib.contextmanager
def _postponed_imports() -> Generator[None]:
    """Have these modules imported on first use, which nearly halves the time of the imports."""
    found = (name for name in _SELDOM if importlib.util.find_spec(name.partition(".")[0]))
    postponed = {name: _Postponed(name) for name in found if name not in sys.modules}
    sys.modules.update(postponed)
    yield
    for name, module in postponed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


class _Postponed(ModuleType):
    def __getattr__(self, name: str) -> Any:
        sys.modules.pop(self.__name__, None)
        self.__dict__.update(vars(importlib.import_module(self.__name__)))
        return self.__dict__[name]


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


# Standard streams.


def reopen_closed_streams() -> None:
    """Lead closed standard streams nowhere: the next file would get their numbers, and what is printed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115


def drop(stream: IO[str]) -> None:
    """Discard what is buffered for a stream, and what follows: the flush at exit would fail once more."""
    with contextlib.suppress(OSError):  # a replacement of standard output may have no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
