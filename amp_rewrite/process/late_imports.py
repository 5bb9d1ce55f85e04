"""Modules that wait until something of them is asked for: nearly half of the time that the imports take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_SELDOM = frozenset({"sympy", "onnx_ir._symbolic_shapes", "re2"})
"""What onnx-ir imports to calculate with dimensions that have names, which nothing here does, and what is
for nodes that are named in a flag.
"""


@contextlib.contextmanager
def postponed() -> Generator[None]:
    """Has the modules that are seldom needed wait if they are imported here; for a process that is ours."""
    finder = _Postponing()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Postponing:
    """Finds these modules as Python does, with the loader of the standard library that waits."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module that waits; None for any other."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _SELDOM else None
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec
