"""Writing of a result as the same kind of model as its source: an object, or a file replaced atomically."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from amp_rewrite.arguments import Beside, ExternalData
from amp_rewrite.errors import OutputError
from amp_rewrite.files import staging
from amp_rewrite.files.reading import is_same
from amp_rewrite.files.staging import Stage, Transaction
from amp_rewrite.model import external_data as external
from amp_rewrite.model import output_paths, serialization
from amp_rewrite.model.loading import Loaded, ModelSource, open_file, surgeon
from amp_rewrite.process.stopwatch import Count

PROTOBUF_LIMIT = (1 << 31) - (1 << 24)
"""The size in bytes from which a model gets external data: protobuf's own limit is 2 GiB."""


Proof = Callable[[Any], None]
"""A check of a result (a path, bytes or a ModelProto) before it is published; an error prevents that."""


_AS_IN_SOURCE = ExternalData()


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """A result as the kind of its source, in `model`.

    `size` is in bytes with external data, `checkable` is for onnx's checker, and `warnings` list data files
    of a replaced result that stay.
    """

    model: Any
    size: int
    checkable: serialization.Checkable
    warnings: tuple[str, ...] = ()


def write_result(
    source: ModelSource,
    loaded: Loaded,
    target: Path | None,
    *,
    changed: bool,
    external_data: ExternalData = _AS_IN_SOURCE,
    proof: Proof | None = None,
    count: Count | None = None,
) -> WrittenResult:
    """Return the loaded model as the same kind as `source`; an unchanged model as a copy of the source.

    The result for a path is written to `target`, or without one is the path, and `count` is called with the
    number of bytes written to data files, and the total. `proof` is called with a changed result, a file
    before it is moved into place; its errors prevent that. Raises OutputError when writing fails, and for a
    model that is too large.
    """
    if isinstance(source, (str, os.PathLike)) and target is not None:
        return _write_file(
            Path(source), loaded, target, external_data, proof if changed else None, count, changed=changed
        )
    if not changed:
        copied = Path(source) if isinstance(source, (str, os.PathLike)) else _copied(source)
        return WrittenResult(copied, loaded.size, "")
    if isinstance(source, ir.Model):
        proto = serialization.to_proto(loaded)
        _prove(proof, proto)
        return WrittenResult(loaded.model, external.size_of(loaded.model), proto)
    _refuse_too_large(loaded, "the result", "give a path: a file can have external data")
    proto = serialization.to_proto(loaded)
    if isinstance(source, bytes):
        data = proto.SerializeToString()
        _prove(proof, data)
        return WrittenResult(data, len(data), data)
    _prove(proof, proto)
    result = proto if isinstance(source, onnx.ModelProto) else surgeon().import_onnx(proto)
    return WrittenResult(result, proto.ByteSize(), proto)


def transaction(target: Path | None) -> contextlib.AbstractContextManager[Transaction]:
    """Return a transaction that moves a result into place once it is judged; a no-op without a target."""
    return staging.transaction([] if target is None else [staging.resolve(target)])


def _prove(proof: Proof | None, result: Any) -> None:
    if proof is not None:
        proof(result)


def _copied(source: Any) -> Any:
    if isinstance(source, ir.Model):
        return source.clone()
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    return source if isinstance(source, bytes) else source.copy()


def _write_file(
    source: Path,
    loaded: Loaded,
    target: Path,
    external_data: ExternalData,
    proof: Proof | None,
    count: Count | None,
    *,
    changed: bool,
) -> WrittenResult:
    is_external = _is_external(loaded, external_data)
    is_stored = is_external == bool(loaded.external) and external_data.largest is None
    if not changed and is_stored and is_same(source, target):
        return WrittenResult(target, loaded.size, "")
    if not changed and not loaded.external and not is_external:
        with open_file(source) as file:
            data = _marked(file.read(), source)
        with _staged(target, 0) as stage:
            output = _publish(target, stage, data, (), loaded.mode)
        return WrittenResult(output.path, len(data), "", output.warnings)
    loaded.model.metadata_props[output_paths.WRITTEN] = output_paths.source_name(source)
    in_use = loaded.external if source != target else frozenset[Path]()
    output = save(loaded, target, external_data, in_use, proof, count)
    beside = external.size_of(loaded.model) if external.KEY in output.data else 0
    return WrittenResult(output.path, beside + len(output.data), str(output.path), output.warnings)


def _marked(data: bytes, source: Path) -> bytes:
    """Return the copy of a model that says in its metadata that amp-rewrite wrote it."""
    proto = onnx.ModelProto.FromString(data)
    entries = (entry for entry in proto.metadata_props if entry.key == output_paths.WRITTEN)
    entry = next(entries, None) or proto.metadata_props.add(key=output_paths.WRITTEN)
    entry.value = output_paths.source_name(source)
    return proto.SerializeToString()


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """The content of the model file, its path until its transaction is committed, and warnings."""

    path: Path
    data: bytes
    warnings: tuple[str, ...] = ()


def save(
    loaded: Loaded,
    path: Path,
    external_data: ExternalData = _AS_IN_SOURCE,
    in_use: frozenset[Path] = frozenset[Path](),
    proof: Proof | None = None,
    count: Count | None = None,
) -> WrittenModel:
    """Write a model to a file atomically, or with its transaction: it is complete or absent.

    `external_data` says where its weights go. Data files of a replaced model are removed, unless they are
    `in_use` or others refer to them. Raises OutputError when the model cannot be written.
    """
    is_external = _is_external(loaded, external_data)
    if not is_external:
        _refuse_too_large(loaded, path, "leave out `Options.external_data=NEVER`")
    groups = external.divide(loaded.model, external_data.largest) if is_external else []
    with _staged(path, len(groups)) as stage:
        names: Sequence[str] = ()
        if is_external:
            _refuse_link_elsewhere(path, stage.target)
            names = external.write(loaded.model, groups, stage, count)
        elif loaded.external:
            ir.external_data.load_to_model(loaded.model)
        data = serialization.to_proto(loaded).SerializeToString()
        return _publish(path, stage, data, names, loaded.mode, in_use, proof)


@contextlib.contextmanager
def _staged(path: Path, count: int) -> Generator[Stage]:
    """Create a stage whose number is free for this many data files."""
    target = staging.resolve(path)

    def is_taken(number: int) -> bool:
        names = external.file_names(target, number, count)
        return any(os.path.lexists(target.with_name(name)) for name in names)

    try:
        with staging.beside(target, is_taken) as stage:
            yield stage
    except OSError as error:
        raise staging.unwritable(path, error) from error


def _publish(
    path: Path,
    stage: Stage,
    data: bytes,
    names: Sequence[str],
    mode: int | None,
    in_use: frozenset[Path] = frozenset[Path](),
    proof: Proof | None = None,
) -> WrittenModel:
    """Move a model and its data files into place; a new file has the mode of the source."""
    staged = stage.files / stage.target.name
    staged.write_bytes(data)
    _prove(proof, staged)
    warnings = external.warnings(stage.target, in_use)

    def move() -> None:
        replaced = external.files_beside(stage.target)
        stage.publish(names, mode)
        external.remove(replaced, in_use)

    return WrittenModel(stage.complete(path, move), data, warnings)


def _is_external(loaded: Loaded, external_data: ExternalData) -> bool:
    """Return whether the weights are written as external data."""
    if external_data.beside is Beside.AUTO:
        return bool(loaded.external or external_data.largest) or _is_too_large(loaded)
    return external_data.beside is Beside.ALWAYS


def _refuse_link_elsewhere(path: Path, target: Path) -> None:
    """Raise an error for a link to another folder: runtimes look for external data beside the link."""
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
            f"would hold {size:.1f} GB of weights, and protobuf's limit is 2 GiB", where=where, remedy=remedy
        )


def _is_too_large(loaded: Loaded) -> bool:
    """Return whether it exceeds protobuf's limit; tensors stored in two types add at most half its size."""
    return loaded.size > PROTOBUF_LIMIT // 2 and external.size_of(loaded.model) >= PROTOBUF_LIMIT


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write plain data as JSON atomically; raises OutputError."""
    staging.write((json.dumps(plain(content), indent=1) + "\n").encode(), path)


def plain(value: Any) -> Any:
    """Return plain data with infinities and NaN, which JSON lacks, as strings."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
