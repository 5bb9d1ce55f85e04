"""The data files of a model that is about to be replaced: which become obsolete, and which must stay."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from amp_rewrite.files import reading
from amp_rewrite.model.external_data import KEY
from amp_rewrite.model.external_data_writing import is_file_name
from amp_rewrite.model.output_paths import is_same


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

    Considers only files beside the target that a tensor of the old model refers to. Of these it removes what
    has the name of a data file of ours, holds nothing but tensors of the old model, and has no other reader
    in its folder or the one above, and no link to it in these or the folders beside its own.
    """
    extents = {file: each for file, each in _extents(target).items() if file.parent == target.parent}
    present = sorted(file for file in extents if os.path.lexists(file))
    reasons = {file: _reason_to_stay(file, target, extents[file], in_use) for file in present}
    warnings = (f"{file.name} stays beside the result: {why}" for file, why in reasons.items() if why)
    return ObsoleteFiles(tuple(file for file in present if not reasons[file]), tuple(warnings))


def referenced_by(path: Path) -> frozenset[Path]:
    """The data files, existing or not, of the model at a path; empty for a file that is not a model, and for
    one that cannot be read.
    """
    return frozenset(_extents(path))


def reader_in(folder: Path, file: Path, name: str) -> Path | None:
    """A model in a folder that keeps tensors in a file, which it calls by a name; raises OSError."""
    for other in sorted(folder.iterdir()):
        mentions = other.is_file() and _mentions(other, os.fsencode(name)) and not is_same(other, file)
        if mentions and any(is_same(data, file) for data in referenced_by(other)):
            return other
    return None


_Extent = tuple[int, int]
"""The offset and the length of a tensor in a data file, in bytes."""


def _extents(path: Path) -> dict[Path, list[_Extent]]:
    """The extents of the tensors in each data file of a model; a length that is not given is 0."""
    data = _content(path)
    proto = _parsed(data) if KEY in data else None
    found: dict[Path, list[_Extent]] = {}
    for tensor in _tensors(proto) if proto is not None else ():
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get(_LOCATION)
        if location is None or "\0" in location:
            continue
        file = path.parent / location
        file = file.parent.resolve() / file.name  # a link itself is not followed
        offset, length = (entries.get(key, "0") for key in ("offset", "length"))
        extent = (int(offset), int(length)) if offset.isdecimal() and length.isdecimal() else (0, 0)
        found.setdefault(file, []).append(extent)
    return found


def model_at(path: Path) -> onnx.ModelProto | None:
    """The model at a path without its external data; None for a file that is none, or cannot be read."""
    return _parsed(_content(path))


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


def _reason_to_stay(file: Path, target: Path, extents: Iterable[_Extent], in_use: frozenset[Path]) -> str:
    """Why a file must not be removed; empty if it may be."""
    if file.is_symlink() or not file.is_file():
        return "it is not a regular file"
    if file.resolve() in in_use:
        return "the input needs it"
    if not is_file_name(file.name, target):
        return "amp-rewrite gives no file that name"
    try:
        return _use(file, target) if _is_covered(file, extents) else "it holds more than the old model reads"
    except OSError as error:
        return f"it cannot be known whether others need it ({error.strerror or error})"


def _use(file: Path, target: Path) -> str:
    """What needs a file besides the model at `target`; empty where nothing does."""
    if file.stat().st_nlink > 1:
        return "a hard link leads to it"
    if link := next(_links_to(file), None):
        return f"{link} leads to it"
    others = (f for f in sorted(file.parent.iterdir()) if f not in (file, target) and f.is_file())
    user = next((other for other in others if _refers(other, file)), None)
    user = user or reader_in(file.parent.parent, file, file.name)
    return f"{os.path.relpath(user, file.parent)} refers to it" if user else ""


def _is_covered(file: Path, extents: Iterable[_Extent]) -> bool:
    """Whether a file holds nothing but these tensors, and zeros that align them."""
    end = 0
    with file.open("rb") as opened:
        for offset, length in sorted(extents):
            if offset > end:
                opened.seek(end)
                if offset - end > _ALIGNMENT or any(opened.read(offset - end)):
                    return False
            end = max(end, offset + length)
    return file.stat().st_size <= end


_ALIGNMENT = 1 << 16
"""The largest alignment of tensors in bytes: onnx-ir's for Windows, the allocation granularity there."""


def _links_to(file: Path) -> Iterator[str]:
    """The symbolic links to a file in its folder, the one above and those beside it; in the latter, those to
    its folder as well.
    """
    folder, above = file.parent, file.parent.parent
    beside = (each for each in sorted(above.iterdir()) if each.is_dir() and not each.is_symlink())
    for place in dict.fromkeys((folder, above, *beside)):
        goals = {str(file)} if place in (folder, above) else {str(file), str(folder)}
        with contextlib.suppress(PermissionError), os.scandir(place) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
            yield from (os.path.relpath(each, folder) for each in links if os.path.realpath(each) in goals)


def _refers(other: Path, file: Path) -> bool:
    """Whether a file is a model with data in another file, or not a model but contains the other's name."""
    if not _mentions(other, os.fsencode(file.name)):
        return False
    return model_at(other) is None or file in referenced_by(other)


def _mentions(other: Path, name: bytes) -> bool:
    """Whether a file contains a name. Large files are searched only if they may be models."""
    with other.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size >= 1 << 31:  # which no model has
            return False
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
