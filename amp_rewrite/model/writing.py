"""The model that is ours -> the kind that the user gave: an object, or a file in one step."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, ModelError, OutputError
from amp_rewrite.files import destination, file_identity, locking, staging
from amp_rewrite.files.file_identity import SourceFile
from amp_rewrite.files.staging import Stage
from amp_rewrite.model import external_data as external
from amp_rewrite.model import external_data_writing, obsolete_data_files, preserved_fields, trailing_outputs
from amp_rewrite.model.loading import Loaded, ModelSource, exported, root_cause, surgeon
from amp_rewrite.model.traversal import graphs
from amp_rewrite.policy.options import Beside, ExternalData

PROTOBUF_LIMIT = (1 << 31) - (1 << 24)
"""Protobuf stops at 2 GiB; what is this large or larger gets external data."""


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """A result: `model` is of the kind that was given, `size` in bytes with external data, and
    `checkable` what onnx's checker takes; `warnings` say which files of an older result stay.
    """

    model: Any
    size: int
    checkable: Checkable
    warnings: tuple[str, ...] = ()


_AS_IT_WAS = ExternalData()


def write_result(
    source: ModelSource,
    loaded: Loaded,
    target: Path | None,
    *,
    changed: bool,
    external_data: ExternalData = _AS_IT_WAS,
) -> WrittenResult:
    """The loaded model as the kind that `source` is; a model that did not change comes as it came.

    A path is written to `target`. Raises OutputError when that fails, or when the model is too large.
    """
    if isinstance(source, (str, os.PathLike)) and target is not None:
        return _write_back(Path(source), loaded, target, external_data, changed=changed)
    if not changed:
        return _unchanged(source, loaded)
    if not isinstance(source, ir.Model):
        _refuse_too_large(loaded, "the result", "give a path: a file can have its weights beside it")
    proto = to_proto(loaded)
    if isinstance(source, ir.Model):
        return WrittenResult(loaded.model, external.size_of(loaded.model), proto)
    if isinstance(source, bytes):
        data = proto.SerializeToString()
        return WrittenResult(data, len(data), data)
    if isinstance(source, onnx.ModelProto):
        return WrittenResult(proto, proto.ByteSize(), proto)
    return WrittenResult(surgeon().import_onnx(proto), proto.ByteSize(), proto)


def _unchanged(source: Any, loaded: Loaded) -> WrittenResult:
    if isinstance(source, ir.Model):
        same: Any = source.clone()
    elif isinstance(source, onnx.ModelProto):
        same = onnx.ModelProto()
        same.CopyFrom(source)
    else:
        same = source if isinstance(source, bytes) else source.copy()
    return WrittenResult(same, loaded.size, "")


def _write_back(
    source: Path, loaded: Loaded, target: Path, external_data: ExternalData, *, changed: bool
) -> WrittenResult:
    if not changed and not loaded.external and not _goes_beside(loaded, external_data):
        return _copied(source, loaded, target)
    in_use = loaded.external if source != target else frozenset[Path]()
    saved = save(loaded, target, external_data, in_use)
    beside = external.size_of(loaded.model) if external.KEY in saved.data else 0
    return WrittenResult(target, beside + len(saved.data), str(target), saved.warnings)


def _copied(source: Path, loaded: Loaded, target: Path) -> WrittenResult:
    """A model that did not change and lies in one file, byte for byte."""
    with _staged(target) as stage:
        saved = _publish(stage, source.read_bytes(), (), loaded.files)
    return WrittenResult(target, len(saved.data), "", saved.warnings)


Checkable = onnx.ModelProto | bytes | str
"""What onnx's checker takes: a model, its bytes, or the path of one (with external data, only a path)."""


def checkable(source: ModelSource) -> Checkable:
    """What onnx's checker takes, for a model of any kind."""
    if isinstance(source, (str, os.PathLike)):
        return str(source)
    if isinstance(source, bytes):
        return source
    if isinstance(source, ir.Model):
        return _serialised(source)
    return source if isinstance(source, onnx.ModelProto) else exported(source)


def to_proto(loaded: Loaded) -> onnx.ModelProto:
    """The model as a ModelProto, with what was taken out on the way in."""
    held = tuple(graphs(loaded.model.graph))
    if loaded.preserved is not None:
        _forget_undeclared(held, loaded.preserved.declared)
    proto = _serialised(loaded.model)
    if loaded.model.functions or trailing_outputs.are_in(held):
        trailing_outputs.put_back(loaded.model, proto)
    if loaded.preserved is not None:
        preserved_fields.restore(loaded.preserved, proto)
    for function in proto.functions:
        function.domain = function.domain or ""  # onnx's checker wants it said, also where it is empty
    return proto


def _serialised(model: ir.Model) -> onnx.ModelProto:
    try:
        return ir.to_proto(model)
    except ir.serde.SerdeError as error:  # such as a name that is no text, which loading lets pass
        raise ModelError(
            f"cannot be written as ONNX ({root_cause(error)})",
            where="the given model",
            remedy=EXPORT_AGAIN,
        ) from error


def _forget_undeclared(held: Iterable[ir.Graph], declared: Container[str | None]) -> None:
    """An initializer says its type itself; onnx-ir would add a value_info that was not there."""
    for graph in held:
        for value in graph.initializers.values():
            leaving = value.is_graph_input() or value.is_graph_output()
            if value.name not in declared and not leaving:
                value.type = value.shape = None


def save(
    loaded: Loaded, path: Path, asked: ExternalData = _AS_IT_WAS, in_use: frozenset[Path] = frozenset[Path]()
) -> WrittenFile:
    """Writes a model to a file: beside it first, then moved into place, so that none is ever half there.

    Its weights go where `asked` has them. Data of the model that stood there goes with it, unless it is
    `in_use` or others refer to it. Raises OutputError when the model cannot be written, and ModelError when a
    file that it is read from was changed meanwhile.
    """
    beside = _goes_beside(loaded, asked)
    if not beside:
        _refuse_too_large(loaded, path, "leave out `Options.external_data=NEVER`")
    with _staged(path) as stage:
        names: Sequence[str] = ()
        if beside:
            _refuse_link_elsewhere(path, stage.target)
            names = external_data_writing.write(loaded.model, stage, asked.largest)
        elif loaded.external:
            ir.external_data.load_to_model(loaded.model)
        return _publish(stage, to_proto(loaded).SerializeToString(), names, loaded.files, in_use)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was written into the file itself, and what there is to warn of."""

    data: bytes
    warnings: tuple[str, ...] = ()


@contextlib.contextmanager
def _staged(path: Path) -> Generator[Stage]:
    target = destination.resolve(path)
    try:
        with staging.beside(target, lambda: obsolete_data_files.referenced_by(target)) as stage:
            yield stage
    except OSError as error:
        raise destination.unwritable(path, error) from error


def _publish(
    stage: Stage,
    data: bytes,
    names: Sequence[str],
    read: Sequence[SourceFile],
    in_use: frozenset[Path] = frozenset[Path](),
) -> WrittenFile:
    """Has a model and its data files take their places, once all that was read is seen to be what it was."""
    (stage.files / stage.target.name).write_bytes(data)
    file_identity.check(read)
    with locking.held(stage.target.parent):
        old = obsolete_data_files.find(stage.target, in_use)
        stage.publish(names, next((file.path for file in read), None))
        old.remove()
    return WrittenFile(data, old.staying)


def _goes_beside(loaded: Loaded, asked: ExternalData) -> bool:
    if asked.beside is Beside.AUTO:
        return bool(loaded.external or asked.largest) or _is_too_large(loaded)
    return asked.beside is Beside.ALWAYS


def _refuse_link_elsewhere(path: Path, target: Path) -> None:
    """Who follows a link to a model looks for its data beside the link."""
    if path.parent.resolve() != target.parent.resolve():
        raise OutputError(
            f"is a link to {target}, and the weights would lie in a file beside that",
            where=path,
            remedy="name the file itself, or another place",
        )


def _refuse_too_large(loaded: Loaded, where: str | Path, remedy: str) -> None:
    if _is_too_large(loaded):
        size = external.size_of(loaded.model) / 1e9
        raise OutputError(
            f"would hold {size:.1f} GB of weights, and protobuf stops at 2 GiB", where=where, remedy=remedy
        )


def _is_too_large(loaded: Loaded) -> bool:
    """Whether protobuf cannot hold it; two forms of a tensor make at most half as much again."""
    return loaded.size > PROTOBUF_LIMIT // 2 and external.size_of(loaded.model) >= PROTOBUF_LIMIT


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Writes plain data as JSON in one step; raises OutputError."""
    staging.write((json.dumps(content, indent=1) + "\n").encode(), path)
