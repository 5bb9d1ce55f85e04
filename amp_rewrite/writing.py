"""The model that is ours -> the kind that the user gave: an object, or a file in one step."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import tempfile
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from amp_rewrite import blocks, external
from amp_rewrite.errors import ModelError, OutputError
from amp_rewrite.model_io import Loaded, Source, root_cause, surgeon
from amp_rewrite.names import graphs

PROTOBUF_LIMIT = (1 << 31) - (1 << 24)
"""Protobuf stops at 2 GiB; what is this large or larger gets external data."""


@dataclass(frozen=True, slots=True)
class Made:
    """A result: `model` is of the kind that was given, `size` in bytes with external data, and
    `checkable` what onnx's checker takes.
    """

    model: Any
    size: int
    checkable: Checkable


def hand_back(source: Source, loaded: Loaded, target: Path | None, *, changed: bool) -> Made:
    """The loaded model as the kind that `source` is; a model that did not change comes as it came.

    A path is written to `target`. Raises OutputError when that fails.
    """
    if isinstance(source, (str, os.PathLike)) and target is not None:
        return _write_back(Path(source), loaded, target, changed=changed)
    if not changed:
        return _unchanged(source, loaded)
    proto = to_proto(loaded)
    if isinstance(source, ir.Model):
        return Made(loaded.model, external.size_of(loaded.model), proto)
    if isinstance(source, bytes):
        data = proto.SerializeToString()
        return Made(data, len(data), data)
    if isinstance(source, onnx.ModelProto):
        return Made(proto, proto.ByteSize(), proto)
    return Made(surgeon().import_onnx(proto), proto.ByteSize(), proto)


def _unchanged(source: Any, loaded: Loaded) -> Made:
    if isinstance(source, ir.Model):
        same: Any = source.clone()
    elif isinstance(source, onnx.ModelProto):
        same = onnx.ModelProto()
        same.CopyFrom(source)
    else:
        same = source if isinstance(source, bytes) else source.copy()
    return Made(same, loaded.size, "")


def _write_back(source: Path, loaded: Loaded, target: Path, *, changed: bool) -> Made:
    if not changed and not loaded.external:
        write(source.read_bytes(), target)
        return Made(target, loaded.size, "")
    spared = loaded.external if source != target else frozenset[Path]()
    data = save(loaded, target, spared)
    if external.KEY in data:
        return Made(target, external.size_of(loaded.model) + len(data), str(target))
    return Made(target, len(data), data)


Checkable = onnx.ModelProto | bytes | str
"""What onnx's checker takes: a model, its bytes, or the path of one (with external data, only a path)."""


def checkable(source: Source) -> Checkable:
    """What onnx's checker takes, for a model of any kind."""
    if isinstance(source, (str, os.PathLike)):
        return str(source)
    if isinstance(source, bytes):
        return source
    if isinstance(source, ir.Model):
        return ir.to_proto(source)
    return source if isinstance(source, onnx.ModelProto) else surgeon().export_onnx(source)


def to_proto(loaded: Loaded) -> onnx.ModelProto:
    """The model as a ModelProto, with the types put back that were taken out on the way in."""
    if loaded.declared is not None:
        _forget_undeclared(loaded.model, loaded.declared)
    try:
        proto = ir.to_proto(loaded.model)
    except ir.serde.SerdeError as error:  # such as a name that is no text, which loading lets pass
        raise ModelError(
            f"cannot be written as ONNX ({root_cause(error)})",
            where="the given model",
            remedy=external.EXPORT_AGAIN,
        ) from error
    graph = proto.graph
    proto.training_info.extend(loaded.rest.training_info)
    graph.sparse_initializer.extend(loaded.rest.graph.sparse_initializer)
    _put_back(loaded.odd, graph)
    for function in proto.functions:
        function.domain = function.domain or ""  # onnx's checker wants it said, also where it is empty
    return proto


def _put_back(odd: Mapping[str, onnx.TypeProto], graph: onnx.GraphProto) -> None:
    """Gives values the types again that were taken out on the way in."""
    if not odd:
        return
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.name in odd:
            info.type.CopyFrom(odd[info.name])
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _put_back(odd, attribute.g)


def _forget_undeclared(model: ir.Model, declared: Container[str | None]) -> None:
    """An initializer says its type itself; onnx-ir would add a value_info that was not there."""
    for graph in graphs(model.graph):
        for value in graph.initializers.values():
            leaving = value.is_graph_input() or value.is_graph_output()
            if value.name not in declared and not leaving:
                value.type = value.shape = None


def save(loaded: Loaded, path: Path, spared: frozenset[Path] = frozenset()) -> bytes:
    """Writes a model to a file: beside it first, then moved into place, so that none is ever half there.

    A model that had external data, or that is too large for one file, gets `<name>.data` beside it. Data of
    the model that stood there goes, unless it is `spared`. Returns what was written into the file itself;
    raises OutputError when that fails.
    """
    if loaded.external or _is_too_large(loaded):
        try:
            return _save_with_data(loaded, path, spared)
        except OSError as error:
            raise unwritable(path, error) from error
    data = to_proto(loaded).SerializeToString()
    write(data, path)
    return data


def _save_with_data(loaded: Loaded, path: Path, spared: frozenset[Path]) -> bytes:
    """The data gets a name that is free, and the model takes its place last: whoever looks, or stops us,
    finds the old model with its data or the new one with its own.
    """
    beside, stale = _free_data(path), _data_of(path) - spared
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent) as folder:
        new = Path(folder, path.name)
        ir.external_data.unload_from_model(
            loaded.model,
            folder,
            beside.name,
            size_threshold_bytes=_INSIDE_UP_TO,
            max_workers=blocks.WORKERS,
            max_in_flight_bytes=_IN_FLIGHT,
        )
        data = to_proto(loaded).SerializeToString()
        new.write_bytes(data)
        _move_both(new, path, new.with_name(beside.name), beside)
    for old in stale:
        old.unlink(missing_ok=True)
    return data


def _move_both(model: Path, model_to: Path, data: Path, data_to: Path) -> None:
    """Moves the data, if there is any, and then the model; when the second fails, the first is undone."""
    if data.exists():
        data.replace(data_to)
    try:
        model.replace(model_to)
    except OSError:
        data_to.unlink(missing_ok=True)
        raise


_INSIDE_UP_TO = 1 << 10
"""Tensors of up to so many bytes stay in the model, as onnx.save keeps them: shapes and axes are among them,
and onnx's shape inference reads no other file.
"""

_IN_FLIGHT = 1 << 62
"""No bound on what onnx-ir holds while it writes: what is large is not held, but written block by block."""


def _free_data(path: Path) -> Path:
    """`<name>.data`, or `<name>.1.data` and so on where that stands already."""
    names = itertools.chain([f"{path.name}.data"], (f"{path.name}.{i}.data" for i in itertools.count(1)))
    return next(beside for name in names if not (beside := path.with_name(name)).exists())


def _data_of(path: Path) -> frozenset[Path]:
    """The data files, named as we name them, of the model that stands at a path."""
    candidates = frozenset(path.parent.glob(f"{glob.escape(path.name)}.*data"))
    try:
        held = path.read_bytes() if candidates else b""
    except OSError:
        return frozenset()
    return frozenset(beside for beside in candidates if beside.name.encode() in held)


def _is_too_large(loaded: Loaded) -> bool:
    """Whether protobuf cannot hold it; two forms of a tensor make at most half as much again."""
    return loaded.size > PROTOBUF_LIMIT // 2 and external.size_of(loaded.model) >= PROTOBUF_LIMIT


def write(data: bytes, path: Path) -> None:
    """Writes a file in one step: whoever looks finds the old one or the new one. Raises OutputError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # it was moved, or its folder is none
            beside.unlink()


def unwritable(path: Path, error: OSError) -> OutputError:
    """The error for a file that cannot be written."""
    return OutputError(
        f"cannot be written ({error.strerror or error})",
        where=path,
        remedy="choose another place",
    )
