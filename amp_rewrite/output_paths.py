"""Where a result is written."""

from __future__ import annotations

import os
from pathlib import Path

from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.half import Half
from amp_rewrite.model_io import Source
from amp_rewrite.options import ExternalData, Options


def choose(
    source: Source, output: str | os.PathLike[str] | None, options: Options, *, in_place: bool
) -> Path | None:
    """Where the rewrite of a model at a path goes; None for a model of another kind, which is returned.

    Raises OptionError for a request that contradicts itself, and OutputError for a folder and for what cannot
    be the name of a file.
    """
    if not isinstance(source, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output is for a path; other models are returned")
        if options.external_data != ExternalData():
            raise OptionError("external_data is for a path; other models keep their weights")
        return None
    given = Path(source)
    try:
        return _chosen(given, output, options, in_place=in_place)
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
        where = given if output is None else str(output)
        raise OutputError(
            f"is no name that a file can have ({getattr(error, 'strerror', None) or error})",
            where=where,
            remedy="name a file",
        ) from error


def _chosen(given: Path, output: str | os.PathLike[str] | None, options: Options, *, in_place: bool) -> Path:
    if in_place and output is not None:
        raise OptionError("output and in_place name two places", remedy="leave one of them out")
    if in_place:
        return given
    target = Path(output) if output is not None else default(given, options.half)
    if "\0" in str(target):
        raise ValueError("embedded null byte")
    if target.is_dir():
        raise OutputError("is a folder", where=target, remedy="name a file in it with -o")
    if target.exists() and given.exists() and target.samefile(given):
        raise OptionError(f"{target} is the input itself", remedy="choose another place, or say --in-place")
    return target


def default(path: Path, half: Half) -> Path:
    """Where the result goes when nothing is said: beside the input, under a name of its own."""
    return path.with_name(f"{path.stem}_{_SHORT[half.name]}.onnx")


_SHORT = {"float16": "fp16", "bfloat16": "bf16"}
