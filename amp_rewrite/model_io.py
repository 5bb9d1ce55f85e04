"""Whatever the user has <-> an onnx_ir.Model that is ours to change."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from amp_rewrite.errors import MissingPackageError, ModelError, OutputError

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | Any
"""A path, serialised bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph."""

PROTOBUF_LIMIT = (1 << 31) - (1 << 24)
"""Protobuf stops at 2 GiB; what is this large or larger gets external data."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ours to change.

    `size` is that of the model with its external data, in bytes; `external` are the files that hold it.
    `declared` names the values that had a value_info; `maps` holds the types that onnx-ir cannot.
    """

    model: ir.Model
    size: int
    external: frozenset[Path] = frozenset()
    declared: frozenset[str] | None = None
    maps: dict[str, onnx.TypeProto] = field(default_factory=dict[str, onnx.TypeProto])


def load(source: Source) -> Loaded:
    """Reads a model of any of the kinds; the source stays as it is.

    Raises ModelError when it is missing, truncated, not ONNX, or refers to files that are not there.
    """
    if isinstance(source, ir.Model):
        return Loaded(source.clone(), _size_in_memory(source), _external_files(source))
    if isinstance(source, bytes):
        loaded = _from_proto(_parse(source, "the given bytes"), len(source))
        return _complete(loaded) if _EXTERNAL in source else loaded
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return _complete(_from_proto(copy, source.ByteSize()))
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(source))
    if is_surgeon(source):
        proto = surgeon().export_onnx(source)
        return _complete(_from_proto(proto, proto.ByteSize()))
    raise ModelError(
        f"{type(source).__name__} is no model",
        remedy="give a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph",
    )


def _complete(loaded: Loaded) -> Loaded:
    """The same model; ModelError when a part of it lies in files, since nobody said in which folder."""
    if _external_files(loaded.model):
        raise ModelError(
            "keeps tensors in files, and does not say in which folder",
            where="the given model",
            remedy="give its path, or load it with its external data",
        )
    return loaded


def load_proto(path: Path) -> onnx.ModelProto:
    """A model file as a ModelProto with its external data in it; ModelError as `load` raises it."""
    load(path)
    return onnx.load(str(path))


def is_surgeon(source: object) -> bool:
    """Whether this is an onnx_graphsurgeon.Graph; the package is not imported to find out."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(source).__mro__)
    return any(room.startswith("onnx_graphsurgeon") and name == "Graph" for room, name in kinds)


def surgeon() -> Any:
    """The module onnx_graphsurgeon; MissingPackageError where it is not installed."""
    try:
        return importlib.import_module("onnx_graphsurgeon")
    except ImportError as error:
        raise MissingPackageError(
            "onnx-graphsurgeon", extra="graphsurgeon", purpose="a graphsurgeon graph"
        ) from error


def _from_path(path: Path) -> Loaded:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=path, remedy="check the path") from error
    except OSError as error:
        raise ModelError(
            f"cannot be read ({error.strerror})", where=path, remedy="give a file that you may read"
        ) from error
    proto = _parse(data, path)
    loaded = _from_proto(proto, len(data), path)
    if _EXTERNAL not in data:
        return loaded
    for graph in loaded.model.graphs():
        ir.external_data.set_base_dir(graph, path.parent)
    outside = sum(_external_sizes(loaded.model, path))
    files = _external_files(loaded.model)
    _take_in_attributes(loaded.model)
    return replace(loaded, size=loaded.size + outside, external=files)


_EXTERNAL = b"location"
"""The key under which a tensor names the file that holds it: a model without these bytes has none such."""


def _parse(data: bytes, where: str | Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise ModelError(
            "is no ONNX model, or only a part of one", where=where, remedy=_EXPORT_AGAIN
        ) from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise ModelError("is no ONNX model", where=where, remedy=_EXPORT_AGAIN)
    return proto


_EXPORT_AGAIN = "export or download it again"


def _from_proto(proto: onnx.ModelProto, size: int, where: str | Path = "the given model") -> Loaded:
    maps = dict(_take_maps(proto.graph))
    declared = frozenset(_declared(proto.graph))
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx-ir wraps whatever it met in errors of several kinds
        raise ModelError(
            f"cannot be understood ({_root_cause(error)})", where=where, remedy=_EXPORT_AGAIN
        ) from error
    return Loaded(model, size, declared=declared, maps=maps)


def _declared(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (info.name for info in graph.value_info)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _declared(attribute.g)


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"[:200]


def _take_maps(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    """Takes out the types that hold maps: onnx-ir cannot read them, and they never concern us."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        if _holds_map(info.type):
            kept = onnx.TypeProto()
            kept.CopyFrom(info.type)
            info.ClearField("type")
            yield info.name, kept


def _holds_map(kind: onnx.TypeProto) -> bool:
    which = kind.WhichOneof("value")
    if which == "map_type":
        return True
    if which in ("sequence_type", "optional_type"):
        return _holds_map(getattr(kind, which).elem_type)
    return False


def _external_sizes(model: ir.Model, path: Path) -> Iterator[int]:
    """The sizes of the external tensors; ModelError for one that is not where it should be."""
    root = path.parent.resolve()
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            _check_external(tensor, root, path)
            yield tensor.nbytes


def _external_files(model: ir.Model) -> frozenset[Path]:
    return frozenset(Path(t.path) for t in _tensors(model) if isinstance(t, ir.ExternalTensor))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of all graphs, and the tensors that attributes hold."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for attribute in _tensor_attributes(model):
        yield attribute.as_tensor()


def _tensor_attributes(model: ir.Model) -> Iterator[ir.Attr]:
    for graph in model.graphs():
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield attribute


def _take_in_attributes(model: ir.Model) -> None:
    """Reads what attributes hold in files: only initializers are written to external data again."""
    for graph in model.graphs():
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.type != ir.AttributeType.TENSOR or attribute.is_ref():
                    continue
                tensor = attribute.as_tensor()
                if isinstance(tensor, ir.ExternalTensor):
                    held = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
                    node.attributes[name] = ir.AttrTensor(name, held)


def _check_external(tensor: ir.ExternalTensor, root: Path, path: Path) -> None:
    place = (root / tensor.location).resolve()
    what = f"the data of '{tensor.name}'" if tensor.name else "the data of a tensor"
    if root not in place.parents:
        raise ModelError(
            f"{what} would lie outside the model's folder",
            where=path,
            remedy="keep the file beside the model, and let it be no link to elsewhere",
        )
    try:
        size = place.stat().st_size
    except OSError as error:
        raise ModelError(
            f"{what} should be in {tensor.location}, and that cannot be read",
            where=path,
            remedy="put the file beside the model",
        ) from error
    offset = tensor.offset or 0
    if not 0 <= offset <= size - tensor.nbytes:
        raise ModelError(f"{what} ends beyond the end of {tensor.location}", where=path, remedy=_EXPORT_AGAIN)


def _size_in_memory(model: ir.Model) -> int:
    return sum(tensor.nbytes for tensor in _tensors(model))


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
        return Made(loaded.model, _size_in_memory(loaded.model), proto)
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
    _spare_weights(source, loaded, target)
    data = save(loaded, target)
    if _EXTERNAL in data:
        return Made(target, _size_in_memory(loaded.model) + len(data), str(target))
    return Made(target, len(data), data)


def _spare_weights(source: Path, loaded: Loaded, target: Path) -> None:
    """Refuses to write over a file from which the input reads its weights, unless over the input itself."""
    data = _data_beside(target)
    if source != target and any(data.exists() and data.samefile(file) for file in loaded.external):
        raise OutputError(
            f"its weights would replace {data.name}, which {source.name} reads",
            where=target,
            remedy="choose another name with -o",
        )


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
            f"cannot be written as ONNX ({_root_cause(error)})",
            where="the given model",
            remedy=_EXPORT_AGAIN,
        ) from error
    graph = proto.graph
    for info in (*graph.input, *graph.output, *graph.value_info) if loaded.maps else ():
        if info.name in loaded.maps:
            info.type.CopyFrom(loaded.maps[info.name])
    return proto


def _forget_undeclared(model: ir.Model, declared: Container[str | None]) -> None:
    """An initializer says its type itself; onnx-ir would add a value_info that was not there."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            leaving = value.is_graph_input() or value.is_graph_output()
            if value.name not in declared and not leaving:
                value.type = value.shape = None


def save(loaded: Loaded, path: Path) -> bytes:
    """Writes a model to a file: beside it first, then moved into place, so that none is ever half there.

    A model that had external data, or that is too large for one file, gets `<name>.data` beside it.
    Returns what was written into the file itself; raises OutputError when that fails.
    """
    if loaded.external or _is_too_large(loaded):
        try:
            return _save_with_data(loaded, path)
        except OSError as error:
            raise unwritable(path, error) from error
    data = to_proto(loaded).SerializeToString()
    write(data, path)
    return data


def _save_with_data(loaded: Loaded, path: Path) -> bytes:
    """Both files are finished in a folder of their own before they replace the old ones: weights are
    converted while they are written, and may be read from the very file that is to be replaced.
    """
    beside = _data_beside(path)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent) as folder:
        new = Path(folder, path.name)
        ir.external_data.unload_from_model(loaded.model, folder, beside.name, max_workers=2)
        data = to_proto(loaded).SerializeToString()
        new.write_bytes(data)
        if _data_beside(new).exists():
            _data_beside(new).replace(beside)
        new.replace(path)
    return data


def _data_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


def _is_too_large(loaded: Loaded) -> bool:
    """Whether protobuf cannot hold it; two forms of a tensor make at most half as much again."""
    return loaded.size > PROTOBUF_LIMIT // 2 and _size_in_memory(loaded.model) >= PROTOBUF_LIMIT


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
        remedy="choose another place with -o",
    )
