"""Tensors stored outside the model file: writing, resolving and validating their files."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import Message
from onnx import serialization

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.files import reading
from amp_rewrite.files.reading import is_same
from amp_rewrite.files.staging import Stage, name_beside
from amp_rewrite.model import constants
from amp_rewrite.process.stopwatch import Count

# Writing the weights of a model as external data: division into files, and their names.

_INTERNAL_UP_TO = 1 << 10
"""Tensors of up to this many bytes stay in the model file, as in onnx.save: shapes and axes are among them,
and onnx's shape inference reads no other file.
"""

SIGNATURE = b"\nwritten by amp-rewrite\n"
"""The last bytes of every data file that amp-rewrite writes: only such files are ever removed."""

_IN_FLIGHT = 1 << 62
"""No limit on onnx-ir's write buffer: large tensors are not buffered, but written in blocks."""


def divide(model: ir.Model, largest: int | None) -> list[list[ir.Value]]:
    """Return the weights of a model that lie in files, for each file. No file has more than `largest` bytes,
    except for a single larger tensor.
    """
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return list(_grouped(filter(_is_large, values), largest))


def write(
    model: ir.Model, groups: Sequence[Sequence[ir.Value]], stage: Stage, count: Count | None = None
) -> Sequence[str]:
    """Write these weights of a model to files of a stage, and make its tensors refer to them.

    Returns the names of the files, which are unused beside the stage's target. `count` is called with the
    number of written bytes and the total. Raises OSError.
    """
    for value in (value for graph in model.graphs() for value in graph.initializers.values()):
        if isinstance(value.const_value, ir.ExternalTensor) and not _is_large(value):
            (value.const_value,) = ir.external_data.convert_tensors_from_external([value.const_value])
    names = file_names(stage.target, stage.number, len(groups))
    before, total = 0, sum(map(_written_size, itertools.chain.from_iterable(groups)))
    for name, group in zip(names, groups, strict=True):
        _write_file(group, stage.files, name, _counting(count, before, total))
        before += sum(map(_written_size, group))
    return names


def _counting(count: Count | None, before: int, total: int) -> Callable[..., None]:
    """Return the callback that onnx-ir calls with each tensor before writing it."""

    def report(_: ir.TensorProtocol, info: ir.external_data.CallbackInfo) -> None:
        if count is not None:
            count(before + info.offset, total)

    return report


def _is_large(value: ir.Value) -> bool:
    return _written_size(value) > _INTERNAL_UP_TO


def _written_size(value: ir.Value) -> int:
    return value.const_value.nbytes if value.const_value is not None else 0


def _grouped(values: Iterable[ir.Value], largest: int | None) -> Iterator[list[ir.Value]]:
    """Yield the values, in order, in one group for each file."""
    group: list[ir.Value] = []
    size = 0
    for value in values:
        if group and largest is not None and size + _written_size(value) > largest - len(SIGNATURE):
            yield group
            group, size = [], 0
        group.append(value)
        size += _written_size(value)
    if group:
        yield group


def _write_file(group: Sequence[ir.Value], folder: Path, name: str, report: Callable[..., None]) -> None:
    tensors = [value.const_value for value in group if value.const_value is not None]
    references = ir.external_data.convert_tensors_to_external(
        tensors, folder, name, report, max_workers=constants.THREADS, max_in_flight_bytes=_IN_FLIGHT
    )
    for value, tensor, external in zip(group, tensors, references, strict=True):
        external.doc_string = tensor.doc_string
        external.metadata_props.update(tensor.metadata_props)
        value.const_value = external
    with (folder / name).open("ab") as file:
        file.write(SIGNATURE)


def file_names(path: Path, number: int, count: int) -> Sequence[str]:
    """Return the names of `count` data files of a model at `path`: `<name>.data`, or
    `<name>.00001-of-00003.data` and so on; with a number other than 0 in `<name>.<number>.data`.
    """
    numbered = f".{number}" * bool(number)
    parts = [f".{i:05}-of-{count:05}" for i in range(1, count + 1)] if count > 1 else [""] * count
    return [name_beside(path.name, numbered + part, "data") for part in parts]


KEY = b"location"
"""The key of the file name in an external tensor: a model without these bytes has no external data."""


def resolve(model: ir.Model, path: Path) -> dict[Path, int]:
    """Replace the file name in every external tensor of the model at a path by the full path of the file.

    Tensors in attributes are loaded: only initializers are written as external data again. Returns the files,
    and the bytes of tensors in each. Raises ModelError for a tensor whose data is missing or incomplete, or
    outside the model's folder: that of the path, or that of the file itself where the path is a link.
    """
    roots = frozenset((path.parent.resolve(), path.resolve().parent))
    file_sizes: dict[Path, int] = {}

    def resolved(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        tensor = _resolved(tensor, path.parent, roots, path)
        file = Path(tensor.path)
        file_sizes[file] = file_sizes.get(file, 0) + tensor.nbytes
        return tensor

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = resolved(value.const_value)
    for node, attribute in list(_tensor_attributes(model)):
        tensor = attribute.as_tensor()
        if isinstance(tensor, ir.ExternalTensor):
            tensor_copy = ir.Tensor(resolved(tensor).numpy().copy(), dtype=tensor.dtype, name=tensor.name)
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, tensor_copy)
    return file_sizes


def check(model: ir.Model) -> None:
    """Raise ModelError, as `resolve` does, for a model in memory.

    A tensor without a base folder may be in any folder: the caller chose the path.
    """
    for tensor in _external(model):
        folder = Path(tensor.base_dir)
        anywhere = Path(tensor.path).resolve().parents
        roots = (folder.resolve(),) if tensor.base_dir else anywhere
        _resolved(tensor, folder, frozenset(roots), "the given model")


def files(model: ir.Model) -> frozenset[Path]:
    """Return the full paths of the external data files of a model."""
    return frozenset(Path(tensor.path).resolve() for tensor in _external(model))


def folder(model: ir.Model) -> Path | None:
    """Return the folder of the external tensors of a model in memory; None if there is none, or several."""
    folders = {Path(tensor.base_dir or Path(tensor.path).parent) for tensor in _external(model)}
    return folders.pop() if len(folders) == 1 else None


def size_of(model: ir.Model) -> int:
    """Return the bytes of all tensors of a model, external or not."""
    return sum(tensor.nbytes for tensor in _tensors(model))


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    return (tensor for tensor in _tensors(model) if isinstance(tensor, ir.ExternalTensor))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the initializers of all graphs, and the tensors in attributes."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for _, attribute in _tensor_attributes(model):
        yield attribute.as_tensor()


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for holder in (model.graph, *model.functions.values()):
        for node in holder.all_nodes():
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield node, attribute


def _resolved(
    tensor: ir.ExternalTensor, folder: Path, roots: frozenset[Path], where: str | Path
) -> ir.ExternalTensor:
    """Return the same tensor with the full path of its file, after validating it.

    The result has no base folder: with one, onnx-ir would check the path again and reject a file with several
    hard links, which model stores use and runtimes accept.
    """
    place = (folder / tensor.location).resolve()
    what = f"the data of '{tensor.name}'" if tensor.name else "the data of a tensor"
    if roots.isdisjoint(place.parents):
        raise ModelError(
            f"{what} would lie outside the model's folder",
            where=where,
            remedy="keep the file itself, not a link to another folder, beside the model",
        )
    _check_extent(tensor, what, _size(place, tensor, what, where), where)
    return ir.ExternalTensor(
        place,
        tensor.offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _size(place: Path, tensor: ir.ExternalTensor, what: str, where: str | Path) -> int:
    try:
        if place.is_file():
            return place.stat().st_size
        raise OSError
    except (OSError, ValueError) as error:  # the name may be invalid on any file system
        raise ModelError(
            f"{what} should be in {tensor.location}, and that cannot be read",
            where=where,
            remedy="put the file beside the model",
        ) from error


def _check_extent(tensor: ir.ExternalTensor, what: str, size: int, where: str | Path) -> None:
    """Raise ModelError unless shape, offset and length agree with each other and with the file's size."""
    nbytes, offset, length = tensor.nbytes, tensor.offset or 0, tensor.length
    if min(tensor.shape.numpy(), default=0) < 0 or length not in (None, 0, nbytes):
        raise ModelError(f"{what} does not have the size of its shape", where=where, remedy=EXPORT_AGAIN)
    if not 0 <= offset <= size - nbytes:
        raise ModelError(f"{what} ends beyond the end of {tensor.location}", where=where, remedy=EXPORT_AGAIN)


# Data files of a model that is replaced: those that amp-rewrite wrote go, unless others need them.


def warnings(target: Path, in_use: frozenset[Path]) -> tuple[str, ...]:
    """Return a warning for each data file that stays when the model at `target` is replaced, with the reason.

    `in_use` are files that others need.
    """
    reasons = {file.name: _reason_to_stay(file, in_use, target) for file in sorted(files_beside(target))}
    return tuple(f"{name} stays beside the result: {why}" for name, why in reasons.items() if why)


def remove(replaced: Iterable[Path], in_use: frozenset[Path]) -> None:
    """Remove data files that a model had which is replaced by now.

    Those stay that amp-rewrite did not create (SIGNATURE), that are `in_use`, or to which a model in the
    folder refers.
    """
    for file in replaced:
        with contextlib.suppress(OSError):  # a file that is left is no fault of the result
            if not _reason_to_stay(file, in_use):
                file.unlink()


def files_beside(target: Path) -> frozenset[Path]:
    """Return the existing data files of the model at `target` that are in its own folder."""
    files = referenced_by(target)
    return frozenset(
        file for file in files if file.parent == target.parent.resolve() and os.path.lexists(file)
    )


def referenced_by(path: Path) -> frozenset[Path]:
    """Return the data files, existing or not, of the model at a path; empty if it is no readable model."""
    data = _content(path)
    proto = _parsed(data, path) if KEY in data else None
    tensors = () if proto is None else _referencing_tensors(proto)
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    names = {entry.value for entry in entries if entry.key == _LOCATION and "\0" not in entry.value}
    files = (path.parent / name for name in names)
    return frozenset(file.parent.resolve() / file.name for file in files)  # not following a link itself


def model_at(path: Path) -> onnx.ModelProto | None:
    """Return the model at a path without its external data; None if it is no readable model."""
    return _parsed(_content(path), path)


def _content(path: Path) -> bytes:
    try:
        return reading.read(path)
    except OSError:  # irregular files and those too large for a model included
        return b""


def _parsed(data: bytes, path: Path) -> onnx.ModelProto | None:
    """Return the model in the content of a file, in the format that onnx.load expects by its name."""
    try:
        proto = onnx.load_model_from_string(data, _format(path) or "protobuf")
    except Exception:  # each format has errors of its own
        return None
    return proto if proto.HasField("graph") else None


def _format(path: Path) -> str | None:
    return serialization.registry.get_format_from_file_extension(path.suffix)


_LOCATION = KEY.decode()


def _referencing_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield all tensors of a model, in any field."""
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


def _reason_to_stay(file: Path, in_use: frozenset[Path], replaced: Path | None = None) -> str:
    """Return the reason that a file must not be removed; empty if it may be."""
    if file.is_symlink() or not file.is_file():
        return "it is not a regular file"
    if file.resolve() in in_use:
        return "the input needs it"
    try:
        if not _is_signed(file):
            return "amp-rewrite did not create it"
        reader = _reader(file, replaced)
    except OSError as error:
        return f"it cannot be known whether others need it ({error.strerror or error})"
    return f"{reader.name} refers to it" if reader else ""


def _is_signed(file: Path) -> bool:
    with file.open("rb") as stream:
        stream.seek(-min(len(SIGNATURE), file.stat().st_size), os.SEEK_END)
        return stream.read() == SIGNATURE


def _reader(file: Path, replaced: Path | None) -> Path | None:
    """Return a model in the folder, other than `replaced`, that refers to a data file, if any."""
    for other in sorted(file.parent.iterdir()):
        is_other = other != replaced and other.is_file() and _may_be_model(other)
        if is_other and any(is_same(data, file) for data in referenced_by(other)):
            return other
    return None


def _may_be_model(path: Path) -> bool:
    """Return whether a file has a name or the first byte of a model: its IR version is field 1, a varint."""
    with path.open("rb") as stream:
        return _format(path) is not None or stream.read(1) == b"\x08"
