"""The flag `--executor`: who does the work of a command."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import Executor

import click

from amp_rewrite.cli.flag_builders import Flag
from amp_rewrite.process import executors


def executor_flag(what: str) -> Flag:
    """The flag, whose help says what the workers do."""
    return click.option(
        "--executor",
        metavar="WHERE",
        help=f"{what}: processes:N of this machine, or the workers of a Dask scheduler, dask://HOST:PORT.",
    )


@contextlib.contextmanager
def opened(where: str | None) -> Generator[Executor | None]:
    """The executor of that name; None without one. Raises as `executors.named` and `ExecutorName.opened`."""
    if where is None:
        yield None
        return
    with executors.named(where, "--executor").opened() as executor:
        yield executor
