"""Whatever the user has -> an onnx_ir.Model that is ours to change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from amp_rewrite.errors import EXPORT_AGAIN, MissingPackageError, ModelError
from amp_rewrite.files import reading
from amp_rewrite.files.file_identity import FileIdentity, SourceFile
from amp_rewrite.model import external_data as external
from amp_rewrite.model import foreign_formats, preserved_fields, proto_traversal, topology, utf8_names
from amp_rewrite.model.preserved_fields import PreservedFields
from amp_rewrite.process import fork_safe

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | Any
"""A path, serialised bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ours to change.

    `size` is that of the model with its external data, in bytes; `external` are the files that hold the data,
    and `files` all that it was read from, as they were.
    `kept` is what onnx-ir cannot read, None for a model that it made; `warnings` say what was read otherwise
    than it is written.
    """

    model: ir.Model
    size: int
    external: frozenset[Path] = frozenset()
    files: tuple[SourceFile, ...] = ()
    preserved: PreservedFields | None = None
    warnings: tuple[str, ...] = ()


def load(source: ModelSource) -> Loaded:
    """Reads a model of any of the kinds; the source stays as it is.

    Raises ModelError when it is missing, truncated, not ONNX, or refers to files that are not there.
    """
    if isinstance(source, ir.Model):
        external.check(source)
        model = source.clone()
        topology.sort_nodes(model, "the given model")
        return Loaded(model, external.size_of(source), external.files(source))
    if isinstance(source, bytes):
        loaded = _from_proto(_parse(source, "the given bytes"), len(source))
        return _refuse_external(loaded) if external.KEY in source else loaded
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return _refuse_external(_from_proto(copy, source.ByteSize()))
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(source))
    if is_surgeon(source):
        proto = exported(source)
        return _refuse_external(_from_proto(proto, proto.ByteSize()))
    raise ModelError(
        f"{type(source).__name__} is not a model",
        remedy="give a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph",
    )


def _refuse_external(loaded: Loaded) -> Loaded:
    """The same model; ModelError when a part of it lies in files, since nobody said in which folder."""
    if external.files(loaded.model):
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


def load_graph(path: Path) -> onnx.ModelProto:
    """A model file as a ModelProto whose external data stays outside; ModelError when it is no model."""
    with open_file(path) as file:
        return _parse(file.read(), path)


@contextlib.contextmanager
def open_file(path: Path) -> Generator[BinaryIO]:
    """A file that can be a model, open for reading.

    Raises ModelError when it is missing, no regular file, or too large, and when reading it fails.
    """
    refuse_folder(path)
    try:
        with reading.open_regular(path) as file:
            if os.fstat(file.fileno()).st_size >= _LARGEST_FILE:
                raise ModelError(
                    "is larger than the 2 GiB that an ONNX file can have",
                    where=path,
                    remedy=EXPORT_AGAIN,
                )
            yield file
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=path, remedy="check the path") from error
    except OSError as error:
        raise ModelError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error


def is_surgeon(source: object) -> bool:
    """Whether this is an onnx_graphsurgeon.Graph; the package is not imported to find out."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(source).__mro__)
    return any(room.startswith("onnx_graphsurgeon") and name == "Graph" for room, name in kinds)


def surgeon() -> Any:
    """The module onnx_graphsurgeon; MissingPackageError where it is not installed."""
    try:
        return fork_safe.import_module("onnx_graphsurgeon")
    except ImportError as error:
        raise MissingPackageError(
            "onnx-graphsurgeon", extra="graphsurgeon", purpose="a graphsurgeon graph"
        ) from error


def exported(graph: Any) -> onnx.ModelProto:
    """An onnx_graphsurgeon.Graph as a ModelProto; ModelError where onnx-graphsurgeon cannot make one."""
    export = surgeon().export_onnx
    try:
        return export(graph)
    except Exception as error:  # it raises whatever it meets
        raise ModelError(
            f"cannot be exported ({root_cause(error)})",
            where="the given graph",
            remedy="change it until onnx_graphsurgeon.export_onnx takes it",
        ) from error


def refuse_folder(path: Path) -> None:
    """Raises ModelError where a folder stands in the place of a model."""
    if os.path.isdir(path):  # noqa: PTH112 - False, not an error, for a path that no file can have
        raise ModelError("is a folder", where=path, remedy="name the model in it")


def refuse_missing(path: Path) -> None:
    """Raises ModelError, as `open_file` does, for what is not there or can be no model."""
    with open_file(path):
        return


def _from_path(path: Path) -> Loaded:
    with open_file(path) as opened:
        file = SourceFile(path, FileIdentity.of(os.fstat(opened.fileno())))
        data = opened.read()
    file.check()
    loaded = replace(_from_proto(_parse(data, path), len(data), path), files=(file,))
    if external.KEY not in data:
        return loaded
    found = external.resolve(loaded.model, path)
    return replace(
        loaded,
        size=loaded.size + sum(found.values()),
        external=frozenset(found),
        files=(file, *map(SourceFile.at, found)),
    )


_LARGEST_FILE = 1 << 31
"""Protobuf counts the bytes of a message in 31 bits."""


def _parse(data: bytes, where: str | Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise _no_model(data, "is not an ONNX model, or only a part of one", where) from error
    if not (proto.HasField("ir_version") and proto.HasField("graph")):
        raise _no_model(data, "is not an ONNX model", where)
    return proto


def _no_model(data: bytes, problem: str, where: str | Path) -> ModelError:
    """What is wrong with a file that does not parse: where it is known for something else, that."""
    known = foreign_formats.recognise(data)
    if known is None:
        return ModelError(problem, where=where, remedy=EXPORT_AGAIN)
    return ModelError(known.problem, where=where, remedy=known.remedy)


def _from_proto(proto: onnx.ModelProto, size: int, where: str | Path = "the given model") -> Loaded:
    graphs = tuple(proto_traversal.graphs(proto.graph))
    warnings = (_ILLEGIBLE,) if utf8_names.decode(proto, graphs) else ()
    kept = preserved_fields.take_out(proto, graphs)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx-ir wraps whatever it met in errors of several kinds
        raise ModelError(
            f"cannot be understood ({root_cause(error)})", where=where, remedy=EXPORT_AGAIN
        ) from error
    topology.sort_nodes(model, where, kept.sparse_names)
    return Loaded(model, size, preserved=kept, warnings=warnings)


_ILLEGIBLE = "names that are not UTF-8 were read as Latin-1"


def root_cause(error: BaseException) -> str:
    """What was at the bottom of an error, shortened."""
    while (
        cause := error.__cause__ or error.__context__
    ) is not None:  # onnx-ir can fail as it tells of an error
        error = cause
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
