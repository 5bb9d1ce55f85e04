"""Where a result is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.files import destination
from amp_rewrite.model.loading import ModelSource, refuse_missing
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.options import ExternalData, Options


def choose(
    source: ModelSource, output: str | os.PathLike[str] | None, options: Options, *, in_place: bool
) -> Path | None:
    """Where the rewrite of a model at a path goes; None for a model of another kind, which is returned.

    Raises OptionError for a request that contradicts itself, OutputError where no file can be, and
    ModelError for a source that is not there, or no file.
    """
    if not isinstance(source, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output is for a path; other models are returned")
        if options.external_data != ExternalData():
            raise OptionError("external_data is for a path; other models keep their weights")
        return None
    given = Path(source)
    refuse_missing(given)
    if in_place and output is not None:
        raise OptionError("`output` and `in_place=True` name two places", remedy="leave one of them out")
    if in_place:
        return given
    target = Path(output) if output is not None else default(given, options.half)
    if is_same(target, given):
        raise OptionError(
            f"{target} is the input itself", remedy="choose another place, or say `in_place=True`"
        )
    if output is None and target.is_symlink():  # whoever made it, nobody has named it here
        raise OutputError("is a link, and stands where the result goes", where=target, remedy="say `output`")
    destination.resolve(target)
    return target


def refuse_data(target: Path, read: Iterable[Path]) -> None:
    """OptionError where a result would replace a file that holds weights of its model."""
    for file in read:
        if is_same(target, file):
            raise OptionError(f"{target} holds weights of the input", remedy="choose another place")


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, whatever their spelling; False where one of them leads nowhere."""
    try:
        return one.resolve().samefile(other.resolve())
    except (OSError, RuntimeError, ValueError):  # a circle of links is a RuntimeError
        return False


def default(path: Path, half: Half) -> Path:
    """Where the result goes when nothing is said: beside the input, under a name of its own."""
    return path.with_name(f"{path.stem}_{_SHORT[half.name]}.onnx")


_SHORT = {"float16": "fp16", "bfloat16": "bf16"}
