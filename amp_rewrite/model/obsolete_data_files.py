"""The data files of a model that is about to be replaced: which of them go with it, and which must stay."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from amp_rewrite.model.external_data import KEY


@dataclass(frozen=True, slots=True)
class ObsoleteFiles:
    """What nothing will refer to any more, and what stays although the old model named it, and why."""

    removable: tuple[Path, ...] = ()
    staying: tuple[str, ...] = ()

    def remove(self) -> None:
        """Removes what nothing refers to."""
        for file in self.removable:
            file.unlink(missing_ok=True)


def find(target: Path, in_use: frozenset[Path]) -> ObsoleteFiles:
    """What a new model at `target` leaves without a reader, but for the files that are `in_use` by others.

    Only plain files beside the target count that a tensor of the model there names, and no other file there
    mentions. Where that cannot be known, the file stays.
    """
    named = sorted(file for file in referenced_by(target) if file.parent == target.parent)
    reasons = {file: _reason_to_stay(file, target, in_use) for file in named}
    staying = (f"{file.name} stays beside the result: {why}" for file, why in reasons.items() if why)
    return ObsoleteFiles(tuple(file for file in named if not reasons[file]), tuple(staying))


def referenced_by(path: Path) -> frozenset[Path]:
    """The files that tensors of the model at a path lie in, whether these are there or not.

    None for what is no model, and what cannot be read.
    """
    data = _content(path)
    proto = _parsed(data) if KEY in data else None
    locations = {
        entry.value
        for tensor in (_tensors(proto) if proto is not None else ())
        for entry in tensor.external_data
        if entry.key == _LOCATION and "\0" not in entry.value
    }
    return frozenset(_placed(path.parent / location) for location in locations)


def _placed(file: Path) -> Path:
    """The path of a file in one spelling, links to the file itself not followed."""
    return file.parent.resolve() / file.name


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def _parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        proto = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError):
        return None
    return proto if proto.HasField("graph") else None


_LOCATION = KEY.decode()


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """All tensors of a model, wherever they stand in it."""
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
    """Why a file is not ours to remove; nothing where it is."""
    if file.is_symlink() or (file.exists() and not file.is_file()):
        return "it is not a regular file"
    if file.resolve() in in_use:
        return "the input needs it"
    try:
        reader = next((other.name for other in _others(file, target) if _refers(other, file)), None)
    except OSError as error:
        return f"it cannot be known whether others need it ({error.strerror or error})"
    return f"{reader} refers to it" if reader else ""


def _others(file: Path, target: Path) -> Iterable[Path]:
    """The files in the folder that may be models, or speak of one."""
    for other in sorted(file.parent.iterdir()):
        if other not in (file, target) and other.is_file():
            yield other


def _refers(other: Path, file: Path) -> bool:
    """Whether a file is a model with data in another file, or is none and has the other's name in it."""
    if not _mentions(other, os.fsencode(file.name)):
        return False
    return _parsed(_content(other)) is None or file in referenced_by(other)


def _mentions(other: Path, name: bytes) -> bool:
    """Whether a file holds a name. Of large ones only what may be a model is looked at."""
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
"""Bytes to read at a time. A file of fewer is looked at whatever it is: a model as text, or a list."""

_FIRST_BYTE = b"\x08"
"""A model begins with its IR version: field 1, a number. Protobuf writes fields in order."""
