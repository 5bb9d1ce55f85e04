"""The flags that supply or size the inputs of model runs, and limit their time."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from amp_rewrite import many
from amp_rewrite.cli.flag_builders import PATH, assignments, grouped, number, repeatable, written
from amp_rewrite.console import Console
from amp_rewrite.errors import FeedError, ModelError, OptionError, RunError
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.sessions import Libraries, Runnable
from amp_rewrite.text import brief

_FLAGS = (
    repeatable(
        "--data",
        "PATH",
        "Inputs: an .npz file, a directory of them, or an ONNX test_data_set_* directory. If not given: "
        "those of --calibrate, MODEL.npz beside MODEL.onnx, or synthetic ones.",
        type=PATH,
    ),
    repeatable(
        "--dim", "NAME=SIZE", "The size of an open dimension of synthetic inputs, by symbol or as INPUT:AXIS."
    ),
    number("--seed", click.IntRange(min=0), "The seed of synthetic inputs.", 0),
    number("--samples", click.IntRange(min=1), "The number of synthetic samples.", 1),
)


def holds_ranges(path: Path) -> bool:
    """Return whether a value of `--calibrate` names observed ranges, not samples."""
    return path.suffix == ".json"


def _data(flags: Mapping[str, Any]) -> Data:
    paths = tuple(flags["data"]) or _default_paths()
    return Data(paths, dims(flags["dim"]), flags["seed"], flags["samples"])


def _default_paths() -> tuple[Path, ...]:
    """Return the samples of --calibrate, else m.npz beside m.onnx; none if a flag sizes synthetic inputs."""
    context = click.get_current_context(silent=True)
    if context is None or written(context, ("data", "dim", "seed", "samples")):
        return ()
    model = context.params.get("model") or context.params.get("original")
    samples = itertools.filterfalse(holds_ranges, context.params.get("calibrate") or ())
    return tuple(samples) or (_beside(model) if isinstance(model, Path) else ())


def _beside(model: Path) -> tuple[Path, ...]:
    """Return the samples beside a model if they fit it, as no flag names them."""
    paths = tuple(filter(None, [many.data_beside(model)]))
    try:
        for _ in feeds.feeds(model, Data(paths)) if paths else ():
            pass
    except FeedError as error:
        problem = brief(str(error))
        Console(stderr=True).print(
            f"warning  {problem}; nobody named the file, and made-up inputs are used instead"
        )
        return ()
    except ModelError:  # the command raises it again
        pass
    return paths


input_flags = grouped(_FLAGS, "data", _data)
"""A decorator that adds these flags to a command and passes them as `Data` in `data`."""

_COUNTED = (
    repeatable("--data", "PATH", "Inputs, whose sizes open dimensions count with.", type=PATH),
    repeatable(
        "--dim",
        "NAME=SIZE",
        f"The size of an open dimension, by symbol or as INPUT:AXIS; others count as {DEFAULT}.",
    ),
)

counted_flags = grouped(_COUNTED, "data", lambda flags: Data(tuple(flags["data"]), dims(flags["dim"])))
"""A decorator that adds flags to a command that only counts, and passes them as `Data` in `data`."""


def dims(texts: Sequence[str]) -> dict[str, int]:
    """Parse the sizes of `--dim` by name; raise OptionError for a malformed or repeated one."""
    return assignments("--dim", texts, "NAME=SIZE", _size, "sizes", "batch=4")


def _size(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    if len(text) > _DIGITS:
        raise OptionError(
            f"--dim {name} is larger than any dimension", remedy=f"give at most {_DIGITS} digits"
        )
    return int(text)


_DIGITS = 18
"""The number of digits that always fits into the 64 bits of an ONNX dimension."""


@contextlib.contextmanager
def naming_sizes(model: Runnable, data: Data) -> Generator[None]:
    """Add the sizes that `--dim` could change to the error of a run that fails on synthetic inputs."""
    try:
        yield
    except RunError as error:
        sizes = {} if data.paths else feeds.open_sizes(model, data)
        if not sizes:
            raise
        assignments = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        flags = " ".join(f"--dim {shlex.quote(name)}=SIZE" for name in sizes)
        remedy = (
            f"its synthetic inputs have {assignments}: give other sizes with {flags}, or inputs with --data"
        )
        raise RunError(error.problem, where=error.where, remedy=remedy) from error


_TIMEOUT = number(
    "--timeout", float, "The total time limit for running models; none if not given.", metavar="SECONDS"
)

timeout_flag = grouped((_TIMEOUT,), "limit", lambda flags: TimeLimit(flags["timeout"], "--timeout"))
"""A decorator that adds the flag to a command and passes it as a `TimeLimit` in `limit`."""


def _distinct(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> Libraries:
    return tuple(dict.fromkeys(path.absolute() for path in paths))


custom_ops_flag = repeatable(
    "--custom-ops",
    "LIBRARY",
    "A shared library with the model's custom operators, for onnxruntime wherever it runs the model.",
    type=PATH,
    callback=_distinct,
)
"""A decorator that adds the flag to a command and passes the libraries as `custom_ops`, unchecked."""
