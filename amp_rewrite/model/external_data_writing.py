"""Writes the weights of a model as external data: into which files, and what they are called."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.certificate.element_checks import WrittenTensors
from amp_rewrite.files.staging import Stage
from amp_rewrite.model import tensor_blocks
from amp_rewrite.model.tensor_blocks import ConvertedTensor
from amp_rewrite.process.stopwatch import Count

_INTERNAL_UP_TO = 1 << 10
"""Tensors of up to this many bytes stay in the model file, as in onnx.save: shapes and axes are among them,
and onnx's shape inference reads no other file.
"""

_IN_FLIGHT = 1 << 62
"""No limit on what onnx-ir buffers as it writes: large tensors are not buffered, but written in blocks."""


def write(
    model: ir.Model,
    stage: Stage,
    largest: int | None,
    count: Count | None = None,
    written: WrittenTensors | None = None,
) -> Sequence[str]:
    """Writes the weights of a model to files of a stage, to which its tensors then refer.

    Returns the names of the files, which are free beside the stage's target. With `largest`, no file has more
    bytes, except for a single tensor that is larger. `count` is called with the tensors that are written, and
    all of them; `written` sees those that are converted. Raises OSError.
    """
    values = [v for graph in model.graphs() for v in graph.initializers.values()]
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor) and not _is_large(value):
            (value.const_value,) = ir.external_data.convert_tensors_from_external([value.const_value])
    groups = list(_grouped(filter(_is_large, values), largest))
    names = stage.reserve(file_names(stage.target, len(groups)))
    before, total = 0, sum(map(len, groups))
    for name, group in zip(names, groups, strict=True):
        for value in group if written else ():
            if isinstance(value.const_value, ConvertedTensor):
                value.const_value.written = written
        _write_file(group, stage.files, name, _counting(count, before, total))
        if written:
            written.close(stage.files / name)
        before += len(group)
    return names


def _counting(count: Count | None, before: int, total: int) -> Callable[..., None]:
    """What onnx-ir calls with each tensor before it is written."""

    def told(_: ir.TensorProtocol, info: ir.external_data.CallbackInfo) -> None:
        if count is not None:
            count(before + info.index, total)

    return told


def _is_large(value: ir.Value) -> bool:
    return _size(value) > _INTERNAL_UP_TO


def _size(value: ir.Value) -> int:
    return value.const_value.nbytes if value.const_value is not None else 0


def _grouped(values: Iterable[ir.Value], largest: int | None) -> Iterator[list[ir.Value]]:
    """The values, in order, in one group for each file."""
    group: list[ir.Value] = []
    size = 0
    for value in values:
        if group and largest is not None and size + _size(value) > largest:
            yield group
            group, size = [], 0
        group.append(value)
        size += _size(value)
    if group:
        yield group


def _write_file(group: Sequence[ir.Value], folder: Path, name: str, told: Callable[..., None]) -> None:
    tensors = [value.const_value for value in group if value.const_value is not None]
    written = ir.external_data.convert_tensors_to_external(
        tensors, folder, name, told, max_workers=tensor_blocks.THREADS, max_in_flight_bytes=_IN_FLIGHT
    )
    for value, tensor, external in zip(group, tensors, written, strict=True):
        external.doc_string = tensor.doc_string
        external.metadata_props.update(tensor.metadata_props)
        value.const_value = external


def file_names(path: Path, count: int) -> Iterator[Sequence[str]]:
    """Candidate names for this many data files of a model at `path`: `<name>.data`, or
    `<name>.00001-of-00003.data` and so on; then, for when one is taken, the same with a number before that.
    """
    several = [f".{i:05}-of-{count:05}.data" for i in range(1, count + 1)]
    for number in itertools.count():
        numbered = f".{number}" if number else ""
        yield [_joined(path.name, numbered + suffix) for suffix in ([".data"] if count == 1 else several)]


def _joined(name: str, suffix: str) -> str:
    """Name and suffix as UTF-8, which ONNX requires; the name is cut to what file systems accept."""
    return os.fsencode(name)[: _LONGEST_NAME - len(suffix)].decode(errors="ignore") + suffix


_LONGEST_NAME = 255 - 10
"""Bytes of a file name on common file systems, less ten that onnx-ir appends while it writes."""


def is_file_name(name: str, path: Path) -> bool:
    """Whether `file_names` could generate this name for the model at a path, ignoring case."""
    suffixes = (name[at:] for at, character in enumerate(name) if character == ".")
    own = (_joined(path.name, suffix) for suffix in suffixes if _SUFFIX.fullmatch(suffix))
    return name.casefold() in map(str.casefold, own)


_SUFFIX = re.compile(r"(\.\d+)?(\.\d{5}-of-\d{5})?\.data", re.IGNORECASE)
