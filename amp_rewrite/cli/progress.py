"""A spinner on standard error that names the stage in progress."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from rich.console import Console

from amp_rewrite.process.stopwatch import Progress


@contextlib.contextmanager
def shown_progress(*, quiet: bool = False) -> Generator[Progress | None]:
    """A progress callback with a spinner; None when quiet, or when standard error is not a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with console.status("load") as status:
        yield status.update


def tell(progress: Progress | None, stage: str) -> None:
    """Passes a stage that begins to a progress callback, if there is one."""
    if progress is not None:
        progress(stage)
