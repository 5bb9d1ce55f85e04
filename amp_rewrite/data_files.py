"""Weights in files beside the model: in which, under which names, and how these take their places."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from amp_rewrite import blocks

_INSIDE_UP_TO = 1 << 10
"""Tensors of up to so many bytes stay in the model, as onnx.save keeps them: shapes and axes are among them,
and onnx's shape inference reads no other file.
"""

_IN_FLIGHT = 1 << 62
"""No bound on what onnx-ir holds while it writes: what is large is not held, but written block by block."""


def unload(model: ir.Model, folder: Path, path: Path, largest: int | None) -> list[str]:
    """Writes the weights of a model to files in `folder`, which the model then refers to.

    Their names, which are returned, are free beside `path`. With `largest` there are as many files as it
    takes for none to have more bytes, but for a tensor that alone is larger. Raises OSError.
    """
    values = [v for graph in model.graphs() for v in graph.initializers.values() if v.const_value is not None]
    _take_in(values)
    groups = list(_grouped(filter(_is_large, values), largest))
    names = free_names(path, len(groups))
    for name, group in zip(names, groups, strict=True):
        _write(group, folder, name)
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
        tensors, folder, name, max_workers=blocks.WORKERS, max_in_flight_bytes=_IN_FLIGHT
    )
    for value, tensor, made in zip(group, tensors, written, strict=True):
        made.doc_string = tensor.doc_string
        made.metadata_props.update(tensor.metadata_props)
        value.const_value = made


def free_names(path: Path, count: int) -> list[str]:
    """Names for so many data files of a model at `path`: `<name>.data`, or `<name>.00001-of-00003.data` and
    so on, with a number before that where one of them is taken.
    """
    stems = itertools.chain([path.name], (f"{path.name}.{i}" for i in itertools.count(1)))
    return next(names for names in (_names(s, count) for s in stems) if not _taken(path, names))


def _names(stem: str, count: int) -> list[str]:
    if count == 1:
        return [f"{stem}.data"]
    return [f"{stem}.{i:05}-of-{count:05}.data" for i in range(1, count + 1)]


def _taken(path: Path, names: Iterable[str]) -> bool:
    return any(path.with_name(name).exists() for name in names)


def of(path: Path) -> frozenset[Path]:
    """The data files, named as we name them, of the model that stands at a path."""
    candidates = frozenset(path.parent.glob(f"{glob.escape(path.name)}.*data"))
    try:
        held = path.read_bytes() if candidates else b""
    except OSError:
        return frozenset()
    return frozenset(beside for beside in candidates if beside.name.encode() in held)


def move(names: Iterable[str], folder: Path, path: Path) -> None:
    """Moves data files from a folder beside a path, and the model to that path last: whoever looks, or stops
    us, finds the old model with its data or the new one with its own. Raises OSError, and nothing has moved.
    """
    moved: list[Path] = []
    try:
        for name in names:
            moved.append(path.with_name(name))
            (folder / name).replace(moved[-1])
        (folder / path.name).replace(path)
    except BaseException:  # an interrupt as well
        for beside in moved:
            beside.unlink(missing_ok=True)
        raise
