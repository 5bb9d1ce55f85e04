"""Choice and validation of output paths; no file that amp-rewrite did not create is replaced unasked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from amp_rewrite import arguments
from amp_rewrite.arguments import ExternalData
from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.files import reading, staging
from amp_rewrite.model import external_data
from amp_rewrite.model.loading import ModelSource, open_file
from amp_rewrite.numerics.half import Half
from amp_rewrite.text import visible


def choose(
    source: ModelSource,
    output: str | os.PathLike[str] | None,
    half: Half,
    external_data: ExternalData | None = None,
    *,
    in_place: bool,
    force: bool,
) -> Path | None:
    """Return the output path for a model given as a path; None for any other, whose result is returned.

    Raises OptionError for contradicting arguments, OutputError where no file can be written, and ModelError
    for a source that is missing or not a file.
    """
    if not isinstance(source, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output is for a path; other models are returned")
        if external_data not in (None, ExternalData()):
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
    return beside(source_path, output, default(source_path, half), remedy, force=force)


def beside(
    source: Path,
    output: str | os.PathLike[str] | None,
    unnamed: Path,
    remedy: str = "choose another place",
    *,
    force: bool,
) -> Path:
    """Return the output path for a model that is not replaced: `unnamed` without an `output`.

    Raises OptionError, with this remedy, if it is the model itself, or its name implies another format, or
    as `refuse_foreign`, and OutputError where no file can be written.
    """
    target = Path(output) if output is not None else unnamed
    if reading.is_same(target, source):
        raise OptionError(f"{target} is the input itself", remedy=remedy)
    if output is None and target.is_symlink():  # a default path must not follow links
        raise OutputError(
            "is a link at the default output path", where=target, remedy="name a place with `output`"
        )
    _refuse_other_format(target)
    staging.resolve(target)
    refuse_foreign(target, FileKind.MODEL, force=force)
    return target


class FileKind(Enum):
    """What is to be written to a file."""

    MODEL = "model"
    REPORT = "report"


WRITTEN = "amp_rewrite.source"
"""The metadata key of a model that amp-rewrite wrote to a file; its value is the name of the source."""

DECISIONS = "amp_rewrite"
"""The metadata key of a model under which the decisions are stored."""


def source_name(path: Path) -> str:
    """Return the name of a source as the metadata of its results have it, in UTF-8."""
    return visible(path.name)


def refuse_foreign(path: Path, kind: FileKind, *, force: object) -> None:
    """Raise OptionError for a file at a path that amp-rewrite did not create, but with `force`."""
    if not arguments.flag("force", force) and (problem := foreign(path, kind)):
        raise OptionError(f"{path} {problem}", remedy="choose another place, or replace it with `force=True`")


def foreign(path: Path, kind: FileKind) -> str:
    """Return the reason why amp-rewrite did not create the file at a path; empty if it did, or has no file.

    A model has our metadata; a report is a text that begins as those of amp-rewrite do.
    """
    if not path.is_file() or not path.stat().st_size:
        return ""
    if kind is FileKind.REPORT:
        return "" if _is_report(path) else "is not a report"
    model = external_data.model_at(path)
    if model is None:
        return "is not a model"
    is_ours = any(entry.key in (WRITTEN, DECISIONS) for entry in model.metadata_props)
    return "" if is_ours else "is a model that amp-rewrite did not create"


def is_result_of(source: Path, path: Path) -> bool:
    """Return whether a model says that amp-rewrite wrote it, from a source of that name."""
    model = external_data.model_at(path)
    props = () if model is None else model.metadata_props
    return any(entry.key == WRITTEN and entry.value == source_name(source) for entry in props)


def _is_report(path: Path) -> bool:
    """Return whether a file begins as JSON, HTML, XML or our Markdown, and is text; weights may begin so."""
    with reading.open_regular(path) as file:
        begin = file.read(_BEGIN)
    try:
        begin[: -_LONGEST_CHARACTER if len(begin) == _BEGIN else None].decode()
    except UnicodeDecodeError:
        return False
    return bool(_REPORT.match(begin)) and not _CONTROL.search(begin)


_BEGIN, _LONGEST_CHARACTER = 1 << 12, 3
_REPORT = re.compile(rb"\s*([{<]|```text\nPrecision coverage)")
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")


_OTHERS = frozenset(".json .onnxjson .onnxtext .onnxtxt .ort .pbtxt .prototxt .textproto .txtpb".split())
"""Suffixes for which onnx.load and onnxruntime expect another format than ONNX's binary one."""


def _refuse_other_format(target: Path) -> None:
    if target.suffix.lower() in _OTHERS:
        problem = f"{target} would be read as another format, by its name"
        raise OptionError(problem, remedy="name the result .onnx")


def refuse_data(target: Path, source_files: Iterable[Path]) -> None:
    """Raise OptionError if a result would replace a file with weights of its model."""
    for file in source_files:
        if reading.is_same(target, file):
            raise OptionError(f"{target} holds weights of the input", remedy="choose another place")


def default(path: Path, half: Half) -> Path:
    """Return the default output path: beside the input, with the type in its name."""
    return path.with_name(f"{path.stem}_{_SHORT[half.name]}.onnx")


_SHORT = {"float16": "fp16", "bfloat16": "bf16"}
