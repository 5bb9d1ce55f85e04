"""The data files of a model that is about to be replaced: which become obsolete, and which must stay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from amp_rewrite.files import reading
from amp_rewrite.model.external_data import KEY


@dataclass(frozen=True, slots=True)
class ObsoleteFiles:
    """`removable` are files without any reference; `warnings` say which files stay, and why."""

    removable: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

    def remove(self) -> None:
        """Removes the removable files."""
        for file in self.removable:
            file.unlink(missing_ok=True)


def find(target: Path, in_use: frozenset[Path]) -> ObsoleteFiles:
    """The files that a new model at `target` makes obsolete, except those `in_use` by others.

    Considers only regular files beside the target that a tensor of the old model refers to. A file that
    another file there mentions, or for which that is unknown, stays.
    """
    referenced = sorted(file for file in referenced_by(target) if file.parent == target.parent)
    reasons = {file: _reason_to_stay(file, target, in_use) for file in referenced}
    warnings = (f"{file.name} stays beside the result: {why}" for file, why in reasons.items() if why)
    return ObsoleteFiles(tuple(file for file in referenced if not reasons[file]), tuple(warnings))


def referenced_by(path: Path) -> frozenset[Path]:
    """The data files, existing or not, of the model at a path; empty for a file that is not a model, and for
    one that cannot be read.
    """
    data = _content(path)
    proto = _parsed(data) if KEY in data else None
    locations = {
        entry.value
        for tensor in (_tensors(proto) if proto is not None else ())
        for entry in tensor.external_data
        if entry.key == _LOCATION and "\0" not in entry.value
    }
    files = (path.parent / location for location in locations)
    return frozenset(file.parent.resolve() / file.name for file in files)  # a link itself is not followed


def _content(path: Path) -> bytes:
    try:
        return reading.read(path)
    except OSError:  # what is no regular file, or too large for a model, among them
        return b""


def _parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        proto = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError):
        return None
    return proto if proto.HasField("graph") else None


_LOCATION = KEY.decode()


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """All tensors of a model, in any field."""
    todo: list[Message] = [message]
    while todo:
        current = todo.pop()
        if isinstance(current, onnx.TensorProto):
            yield current
            continue
        for field, value in current.ListFields():
            if field.message_type is not None and field.message_type.name not in _WITHOUT_TENSORS:
                todo += [value] if isinstance(value, Message) else value


_WITHOUT_TENSORS = {"ValueInfoProto", "StringStringEntryProto", "OperatorSetIdProto", "TypeProto"}


def _reason_to_stay(file: Path, target: Path, in_use: frozenset[Path]) -> str:
    """Why a file must not be removed; empty if it may be."""
    if file.is_symlink() or (file.exists() and not file.is_file()):
        return "it is not a regular file"
    if file.resolve() in in_use:
        return "the input needs it"
    try:
        others = (f for f in sorted(file.parent.iterdir()) if f not in (file, target) and f.is_file())
        user = next((other.name for other in others if _refers(other, file)), None)
    except OSError as error:
        return f"it cannot be known whether others need it ({error.strerror or error})"
    return f"{user} refers to it" if user else ""


def _refers(other: Path, file: Path) -> bool:
    """Whether a file is a model with data in another file, or not a model but contains the other's name."""
    if not _mentions(other, os.fsencode(file.name)):
        return False
    return _parsed(_content(other)) is None or file in referenced_by(other)


def _mentions(other: Path, name: bytes) -> bool:
    """Whether a file contains a name. Large files are searched only if they may be models."""
    with other.open("rb") as opened:
        block = opened.read(_BLOCK)
        if len(block) == _BLOCK and other.suffix != ".onnx" and not block.startswith(_FIRST_BYTE):
            return False
        while block:
            if name in block:
                return True
            more = opened.read(_BLOCK)
            block = block[-len(name) :] + more if more else b""
    return False


_BLOCK = 1 << 20
"""Bytes to read at a time. Any smaller file is searched: it may be a model as text, or a list of files."""

_FIRST_BYTE = b"\x08"
"""A model begins with its IR version: field 1, a varint. Protobuf writes fields in order."""
