"""Choice and validation of output paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.files import destination, file_identity
from amp_rewrite.model.loading import ModelSource, open_file
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.options import ExternalData, Options


def choose(
    source: ModelSource, output: str | os.PathLike[str] | None, options: Options, *, in_place: bool
) -> Path | None:
    """Return the output path for a model given as a path; None for any other, whose result is returned.

    Raises OptionError for contradicting arguments, OutputError where no file can be written, and ModelError
    for a source that is missing or not a file.
    """
    if not isinstance(source, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output is for a path; other models are returned")
        if options.external_data != ExternalData():
            raise OptionError("external_data is for a path; other models keep their weights")
        return None
    source_path = Path(source)
    with open_file(source_path):  # raises ModelError
        pass
    if in_place and output is not None:
        raise OptionError(
            "`output` and `in_place=True` contradict each other", remedy="leave one of them out"
        )
    if in_place:
        return source_path
    remedy = "choose another place, or use `in_place=True`"
    return beside(source_path, output, default(source_path, options.half), remedy)


def beside(
    source: Path,
    output: str | os.PathLike[str] | None,
    unnamed: Path,
    remedy: str = "choose another place",
) -> Path:
    """Return the output path for a model that is not replaced: `unnamed` without an `output`.

    Raises OptionError, with this remedy, if it is the model itself, or its name implies another format, and
    OutputError where no file can be written.
    """
    target = Path(output) if output is not None else unnamed
    if file_identity.is_same(target, source):
        raise OptionError(f"{target} is the input itself", remedy=remedy)
    if output is None and target.is_symlink():  # a default path must not follow links
        raise OutputError(
            "is a link at the default output path", where=target, remedy="name a place with `output`"
        )
    _refuse_other_format(target)
    destination.resolve(target)
    return target


_OTHERS = frozenset(".json .onnxjson .onnxtext .onnxtxt .ort .pbtxt .prototxt .textproto .txtpb".split())
"""Suffixes for which onnx.load and onnxruntime expect another format than ONNX's binary one."""


def _refuse_other_format(target: Path) -> None:
    if target.suffix.lower() in _OTHERS:
        problem = f"{target} would be read as another format, by its name"
        raise OptionError(problem, remedy="name the result .onnx")


def refuse_data(target: Path, source_files: Iterable[Path]) -> None:
    """Raise OptionError if a result would replace a file with weights of its model."""
    for file in source_files:
        if file_identity.is_same(target, file):
            raise OptionError(f"{target} holds weights of the input", remedy="choose another place")


def default(path: Path, half: Half) -> Path:
    """Return the default output path: beside the input, with the type in its name."""
    return path.with_name(f"{path.stem}_{_SHORT[half.name]}.onnx")


_SHORT = {"float16": "fp16", "bfloat16": "bf16"}
