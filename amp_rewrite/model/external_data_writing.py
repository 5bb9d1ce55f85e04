"""Weights in files beside the model: in which, and under which names."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.files.staging import Stage
from amp_rewrite.model import tensor_blocks

_INSIDE_UP_TO = 1 << 10
"""Tensors of up to so many bytes stay in the model, as onnx.save keeps them: shapes and axes are among them,
and onnx's shape inference reads no other file.
"""

_IN_FLIGHT = 1 << 62
"""No bound on what onnx-ir holds while it writes: what is large is not held, but written block by block."""


def write(model: ir.Model, stage: Stage, largest: int | None) -> Sequence[str]:
    """Writes the weights of a model to files of a stage, which the model then refers to.

    Their names, which are returned, are free beside its target. With `largest` there are as many files as it
    takes for none to have more bytes, but for a tensor that alone is larger. Raises OSError.
    """
    values = [v for graph in model.graphs() for v in graph.initializers.values() if v.const_value is not None]
    _take_in(values)
    groups = list(_grouped(filter(_is_large, values), largest))
    names = stage.reserve(file_names(stage.target, len(groups)))
    for name, group in zip(names, groups, strict=True):
        _write(group, stage.files, name)
    return names


def _is_large(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.nbytes > _INSIDE_UP_TO


def _take_in(values: Iterable[ir.Value]) -> None:
    """Has the model hold what is small itself."""
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor) and not _is_large(value):
            (value.const_value,) = ir.external_data.convert_tensors_from_external([value.const_value])


def _grouped(values: Iterable[ir.Value], largest: int | None) -> Iterator[list[ir.Value]]:
    """The values, in order, in groups that each go into one file."""
    group: list[ir.Value] = []
    size = 0
    for value in values:
        needed = value.const_value.nbytes if value.const_value is not None else 0
        if group and largest is not None and size + needed > largest:
            yield group
            group, size = [], 0
        group.append(value)
        size += needed
    if group:
        yield group


def _write(group: Sequence[ir.Value], folder: Path, name: str) -> None:
    tensors = [value.const_value for value in group if value.const_value is not None]
    written = ir.external_data.convert_tensors_to_external(
        tensors, folder, name, max_workers=tensor_blocks.THREADS, max_in_flight_bytes=_IN_FLIGHT
    )
    for value, tensor, made in zip(group, tensors, written, strict=True):
        made.doc_string = tensor.doc_string
        made.metadata_props.update(tensor.metadata_props)
        value.const_value = made


def file_names(path: Path, count: int) -> Iterator[Sequence[str]]:
    """Names for so many data files of a model at `path`: `<name>.data`, or `<name>.00001-of-00003.data` and
    so on, then the same with a number before that, for where one of them is taken.
    """
    for number in itertools.count():
        numbered = f".{number}" if number else ""
        yield [_fitted(path.name, numbered + suffix) for suffix in _suffixes(count)]


def _suffixes(count: int) -> list[str]:
    if count == 1:
        return [".data"]
    return [f".{i:05}-of-{count:05}.data" for i in range(1, count + 1)]


def _fitted(name: str, suffix: str) -> str:
    """The two together, as UTF-8 that a model can hold, and cut to what file systems take."""
    return os.fsencode(name)[: _LONGEST_NAME - len(suffix)].decode(errors="ignore") + suffix


_LONGEST_NAME = 255 - 10
"""Bytes of a file's name, in the file systems in use, less ten that onnx-ir adds while it writes."""


def is_file_name(name: str, path: Path) -> bool:
    """Whether a name is one that `offers` could give for the model at a path, in whatever case."""
    return bool(re.fullmatch(f"{re.escape(path.name)}{_SUFFIX}", name, re.IGNORECASE))


_SUFFIX = r"(\.\d+)?(\.\d{5}-of-\d{5})?\.data"
