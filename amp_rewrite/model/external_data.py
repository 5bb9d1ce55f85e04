"""Tensors stored outside the model file: writing, resolving and validating their files."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError, Message

from amp_rewrite.certificate.element_checks import WrittenTensors
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.files import reading
from amp_rewrite.files.file_identity import is_same
from amp_rewrite.files.staging import Stage
from amp_rewrite.model import constants
from amp_rewrite.model.constants import ConvertedTensor
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


def write(
    model: ir.Model,
    stage: Stage,
    largest: int | None,
    count: Count | None = None,
    tracker: WrittenTensors | None = None,
) -> Sequence[str]:
    """Write the weights of a model to files of a stage, and make its tensors refer to them.

    Returns the names of the files, which are unused beside the stage's target. No file has more than
    `largest` bytes, except for a single larger tensor. `count` is called with the number of written bytes
    and the total; `tracker` observes the converted ones. Raises OSError.
    """
    values = [v for graph in model.graphs() for v in graph.initializers.values()]
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor) and not _is_large(value):
            (value.const_value,) = ir.external_data.convert_tensors_from_external([value.const_value])
    groups = list(_grouped(filter(_is_large, values), largest))
    names = stage.reserve(file_names(stage.target, len(groups)))
    before, total = 0, sum(map(_written_size, itertools.chain.from_iterable(groups)))
    for name, group in zip(names, groups, strict=True):
        for value in group if tracker else ():
            if isinstance(value.const_value, ConvertedTensor):
                value.const_value.written = tracker
        _write_file(group, stage.files, name, _counting(count, before, total))
        if tracker:
            tracker.close(stage.files / name)
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


def file_names(path: Path, count: int) -> Iterator[Sequence[str]]:
    """Yield candidate names for `count` data files of a model at `path`.

    The first are `<name>.data`, or `<name>.00001-of-00003.data` and so on; the next, in case one is in use,
    the same with a number before the suffix.
    """
    several = [f".{i:05}-of-{count:05}.data" for i in range(1, count + 1)]
    for number in itertools.count():
        numbered = f".{number}" if number else ""
        yield [
            _join_suffix(path.name, numbered + suffix) for suffix in ([".data"] if count == 1 else several)
        ]


def _join_suffix(name: str, suffix: str) -> str:
    """Return name and suffix as UTF-8, which ONNX requires, with the name truncated for file systems."""
    return os.fsencode(name)[: _LONGEST_NAME - len(suffix)].decode(errors="ignore") + suffix


_LONGEST_NAME = 255 - 10
"""Bytes of a file name on common file systems, less ten that onnx-ir appends while it writes."""


def is_file_name(name: str, path: Path) -> bool:
    """Return whether `file_names` could generate this name for the model at a path, ignoring case."""
    suffixes = (name[at:] for at, character in enumerate(name) if character == ".")
    own = (_join_suffix(path.name, suffix) for suffix in suffixes if _SUFFIX.fullmatch(suffix))
    return name.casefold() in map(str.casefold, own)


_SUFFIX = re.compile(r"(\.\d+)?(\.\d{5}-of-\d{5})?\.data", re.IGNORECASE)


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


# Data files of a model that is about to be replaced: obsolete ones, and those that must stay.


@dataclass(frozen=True, slots=True)
class ObsoleteFiles:
    """Data files of a replaced model: `removable` ones, and `warnings` with reasons for those that stay."""

    removable: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

    def remove(self) -> None:
        """Remove the removable files."""
        for file in self.removable:
            file.unlink(missing_ok=True)


def find(target: Path, in_use: frozenset[Path]) -> ObsoleteFiles:
    """Return the files that a new model at `target` makes obsolete, except those `in_use` by others.

    Considers only files beside the target that a tensor of the old model refers to. Removable are those that
    amp-rewrite wrote (SIGNATURE), unless another model in the folder refers to them.
    """
    present = sorted(
        file
        for file in referenced_by(target)
        if file.parent == target.parent.resolve() and os.path.lexists(file)
    )
    reasons = {file: _reason_to_stay(file, target, in_use) for file in present}
    warnings = (f"{file.name} stays beside the result: {why}" for file, why in reasons.items() if why)
    return ObsoleteFiles(tuple(file for file in present if not reasons[file]), tuple(warnings))


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
    except _UNPARSED:
        return None
    return proto if proto.HasField("graph") else None


_UNPARSED = (
    DecodeError,
    ValueError,
    RecursionError,
    text_format.ParseError,
    json_format.ParseError,
    onnx.parser.ParseError,
)


def _format(path: Path) -> str | None:
    return onnx.serialization.registry.get_format_from_file_extension(path.suffix)


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


def _reason_to_stay(file: Path, target: Path, in_use: frozenset[Path]) -> str:
    """Return the reason that a file must not be removed; empty if it may be."""
    if file.is_symlink() or not file.is_file():
        return "it is not a regular file"
    if file.resolve() in in_use:
        return "the input needs it"
    try:
        if not _is_signed(file):
            return "amp-rewrite did not write it"
        reader = _reader(file, target)
    except OSError as error:
        return f"it cannot be known whether others need it ({error.strerror or error})"
    return f"{reader.name} refers to it" if reader else ""


def _is_signed(file: Path) -> bool:
    with file.open("rb") as stream:
        stream.seek(-min(len(SIGNATURE), file.stat().st_size), os.SEEK_END)
        return stream.read() == SIGNATURE


def _reader(file: Path, target: Path) -> Path | None:
    """Return a model in the folder, other than `target`, that refers to a data file, if any."""
    for other in sorted(file.parent.iterdir()):
        is_other = not is_same(other, target) and other.is_file() and _may_be_model(other)
        if is_other and any(is_same(data, file) for data in referenced_by(other)):
            return other
    return None


def _may_be_model(path: Path) -> bool:
    """Return whether a file has a name or the first byte of a model: its IR version is field 1, a varint."""
    with path.open("rb") as stream:
        return _format(path) is not None or stream.read(1) == b"\x08"
