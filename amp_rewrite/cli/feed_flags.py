"""The flags that say where the inputs of a run come from, the same for every command that runs models."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.grouping import Flag, grouped
from amp_rewrite.errors import OptionError, RunError
from amp_rewrite.process.stoppable import Limit
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.sessions import Runnable

_FLAGS = (
    click.option(
        "--data",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Inputs: an .npz file, a directory of them, or an ONNX test_data_set_* directory.",
    ),
    click.option(
        "--dim",
        multiple=True,
        metavar="NAME=SIZE",
        help="For inputs that are made up: the size of a dimension, by symbol or as INPUT:AXIS.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="For inputs that are made up: another seed, other numbers.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="How many inputs are made up.",
    ),
)
_NAMES = ("data", "dim", "seed", "samples")


def _data(flags: Mapping[str, Any]) -> Data:
    return Data(tuple(flags["data"]), dims(flags["dim"]), flags["seed"], flags["samples"])


counted_dim_flag: Flag = click.option(
    "--dim",
    multiple=True,
    metavar="NAME=SIZE",
    help="The size of an open dimension, by symbol or as INPUT:AXIS; others count as 1.",
)
"""For commands that count FLOPs and run nothing; they read what they get with `dims`."""


def dims(asked: Sequence[str]) -> dict[str, int]:
    """Sizes by name, from what `--dim` was given; OptionError for what is not NAME=SIZE."""
    found: dict[str, int] = {}
    for text in asked:
        name, size = _dim(text)
        if found.setdefault(name, size) != size:
            raise OptionError(f"--dim gives {name} two sizes", remedy="give it once")
    return found


def _dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name.strip() or not (size.isascii() and size.isdigit()):
        raise OptionError(f"--dim {text} is not NAME=SIZE", remedy="write it as in --dim batch=4")
    if len(size) > _DIGITS:
        raise OptionError(
            f"--dim {name.strip()} is larger than any dimension", remedy=f"give at most {_DIGITS} digits"
        )
    return name.strip(), int(size)


_DIGITS = 18
"""All numbers of so many digits fit into the 64 bits that ONNX has for a dimension."""


@contextlib.contextmanager
def naming_sizes(model: Runnable, data: Data) -> Generator[None]:
    """Has a run that fails on inputs that were made up for a model name the sizes that `--dim` changes."""
    try:
        yield
    except RunError as error:
        sizes = {} if data.paths else feeds.open_sizes(model, data)
        if not sizes:
            raise
        made = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        flags = " ".join(f"--dim {shlex.quote(name)}=SIZE" for name in sizes)
        remedy = f"its inputs were made up with {made}: give other sizes with {flags}, or inputs with --data"
        raise RunError(error.problem, where=error.where, remedy=remedy) from error


feed_flags = grouped(_FLAGS, _NAMES, "data", _data)
"""Adds the flags of this module to a command; it gets them as `Data` in `data`."""


_TIMEOUT = (
    click.option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="How long running models may take in all; no limit if not given.",
    ),
)


def _limit(flags: Mapping[str, Any]) -> Limit:
    return Limit(flags["timeout"], "--timeout")


timeout_flag = grouped(_TIMEOUT, ("timeout",), "limit", _limit)
"""Adds the flag to a command, which gets it as a `Limit` in `limit`."""
