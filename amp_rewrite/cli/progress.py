"""The stage that is running, on standard error, while it takes long enough to wonder."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from rich.console import Console

from amp_rewrite.process.stopwatch import Progress


@contextlib.contextmanager
def shown_progress(*, quiet: bool) -> Generator[Progress | None]:
    """A progress callback with a spinner; none when quiet or when nobody watches."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with console.status("load") as status:
        yield status.update


def tell(progress: Progress | None, stage: str) -> None:
    """Tells a progress callback, if there is one, which stage begins."""
    if progress is not None:
        progress(stage)
