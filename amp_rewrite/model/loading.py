"""Loading of a model of any supported kind as a mutable onnx_ir.Model."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
from collections.abc import Collection, Container, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import EXPORT_AGAIN, MissingPackageError, ModelError
from amp_rewrite.files import reading
from amp_rewrite.model import external_data as external
from amp_rewrite.model import graph_edits, preserved_fields, proto_traversal, traversal
from amp_rewrite.model.preserved_fields import PreservedFields

# Contradictory duplicates in a model, which readers resolve differently.
#
# onnxruntime 1.32 takes the first of two Constant values, the last of two small initializers, and the
# first of large ones; onnx-ir and onnx's reference take the last of all.


def refuse(proto: onnx.ModelProto, graphs: Collection[onnx.GraphProto], where: str | Path) -> None:
    """Raise ModelError if a model, which has these graphs, contradicts itself."""
    contradiction = next(_contradictions(proto, graphs), None)
    if contradiction is not None:
        raise ModelError(contradiction, where=where, remedy=EXPORT_AGAIN)


def _contradictions(proto: onnx.ModelProto, graphs: Collection[onnx.GraphProto]) -> Iterator[str]:
    for graph in (*graphs, *proto_traversal.in_functions(proto)):
        initializers = [(tensor.name, tensor) for tensor in graph.initializer]
        initializers += [(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        for name in _differing(initializers):
            yield f"stores '{name}' twice, with different values"
    for name in _differing((f"{f.domain}.{f.name}:{f.overload}", f) for f in proto.functions):
        yield f"has two functions '{name.removesuffix(':')}'"
    for node in proto_traversal.every_node(proto):
        if len(node.attribute) > 1:
            for name in _differing((attribute.name, attribute) for attribute in node.attribute):
                yield f"has a node {node.op_type} '{node.name}' with two attributes '{name}'"


def _differing(pairs: Iterable[tuple[str, Message]]) -> Iterator[str]:
    """Yield the names of messages that differ from an earlier one of the same name."""
    first_by_name: dict[str, Message] = {}
    for name, message in pairs:
        first = first_by_name.setdefault(name, message)
        if first is not message and first.SerializeToString() != message.SerializeToString():
            yield name


# File formats that are often mistaken for ONNX, recognised by their first bytes.


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A file format other than ONNX: `problem` completes a sentence that begins with the file's path."""

    problem: str
    remedy: str


def recognise(data: bytes) -> ForeignFormat | None:
    """Return the format of these bytes, if it is known and not ONNX."""
    return next((file_format for pattern, file_format in _FORMATS if pattern.match(data)), None)


_UNPACK = "unpack it, and give the model in it"
_FORMATS = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), ForeignFormat(problem, remedy))
    for pattern, problem, remedy in (
        (rb"version https://git-lfs", "is a Git LFS pointer, not the model", "fetch it with git lfs pull"),
        (rb"\x1f\x8b", "is compressed with gzip", _UNPACK),
        (
            rb"PK\x03\x04",
            "is a zip archive, or a PyTorch checkpoint",
            "unpack it, or export the model to ONNX",
        ),
        (rb"....ORTM", "is in onnxruntime's own format", "give the ONNX model that it was made from"),
        (rb"\s*<(!doctype|html)", "is a web page, not the model", "download the model itself"),
        (
            rb"\s*(<\s*ir_version|\{|ir_version:)",
            "is text; models are read in ONNX's binary format",
            "convert it with onnx.save(onnx.load(FILE), NEW_FILE)",
        ),
    )
)


# Names that are not valid UTF-8, decoded as Latin-1.


def decode(proto: onnx.ModelProto) -> bool:
    """Decode strings that are not UTF-8, which some exporters write, as Latin-1; return whether any are."""
    try:
        "".join(_strings(proto))
    except TypeError:  # protobuf returns bytes for text that it cannot decode
        _decode(proto)
        return True
    return False


def _strings(message: Message) -> Iterator[Any]:
    """Yield all strings of a message (bytes if they cannot be decoded), of a tensor without its data."""
    if isinstance(message, onnx.TensorProto):
        yield from (message.name, message.doc_string)
        for entry in (*message.external_data, *message.metadata_props):
            yield from (entry.key, entry.value)
        return
    for described, value in message.ListFields():
        if described.type == FieldDescriptor.TYPE_STRING:
            yield from (value,) if isinstance(value, (str, bytes)) else value
        elif described.type == FieldDescriptor.TYPE_MESSAGE:
            for each in (value,) if isinstance(value, Message) else value:
                yield from _strings(each)


def _decode(message: Message) -> None:
    for described, value in message.ListFields():
        if described.type == FieldDescriptor.TYPE_MESSAGE:
            for each in (value,) if isinstance(value, Message) else value:
                _decode(each)
        elif described.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, described.name, value.decode("latin-1"))
            elif not isinstance(value, str):
                value[:] = [each.decode("latin-1") if isinstance(each, bytes) else each for each in value]


# The order of nodes: each after its producers.


def sort_nodes(model: ir.Model, where: str | Path, sparse: Container[str | None] = frozenset[str]()) -> None:
    """Sort the nodes of a model topologically, as runtimes do; a sorted model is not changed.

    `sparse` names the sparse initializers, which onnx-ir does not know. Raises ModelError, with the model's
    place `where`, for a value without a definition, and for cyclic dependencies.
    """
    graph, is_sorted = model.graph, True
    defined: set[ir.Value] = set()
    for node in traversal.nodes_inner_first(graph):  # a body may not use the outputs of its node
        for value in node.inputs if node.op_type != "Constant" else ():  # a Constant's inputs are ignored
            if value is None or value in defined:
                continue
            if value.producer() is not None:
                is_sorted = False
            elif not (value.is_graph_input() or value.is_initializer() or value.name in sparse):
                problem = f"uses '{value.name}', which is not defined"
                raise ModelError(problem, where=where, remedy=EXPORT_AGAIN)
        defined.update(node.outputs)
    if is_sorted:
        return
    try:
        graph.sort()
    except ValueError as error:
        raise ModelError("has nodes with cyclic dependencies", where=where, remedy=EXPORT_AGAIN) from error


ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | Any
"""A path, serialised bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph."""

_IN_MEMORY = "the given model"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A mutable copy of a model.

    `size` includes its external data, in bytes; `external` are the files with the data, and `mode` is that of
    the model's own file, None without one. `preserved` are the fields that onnx-ir cannot represent, None for
    an onnx_ir.Model; `warnings` describe repairs and reinterpretations. `mended` says that the source was
    invalid, and was repaired.
    """

    model: ir.Model
    size: int
    external: frozenset[Path] = frozenset()
    mode: int | None = None
    preserved: PreservedFields | None = None
    warnings: tuple[str, ...] = ()
    mended: bool = False


def load(source: ModelSource) -> Loaded:
    """Load a model of any kind; the source is not changed.

    Raises ModelError when it is missing, truncated, not ONNX, or refers to files that are missing.
    """
    if isinstance(source, ir.Model):
        return _from_ir(source)
    if isinstance(source, bytes):
        loaded = _from_proto(_parse(source, "the given bytes"), len(source))
        return _refuse_external(loaded) if external.KEY in source else loaded
    if isinstance(source, onnx.ModelProto):
        refuse_too_large(source, f"{SAVE}, or give onnx_ir.from_proto(model)")
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return _refuse_external(_from_proto(copy, source.ByteSize()))
    if isinstance(source, (str, os.PathLike)):
        return _from_path(Path(source))
    if is_surgeon(source):
        proto = refuse_too_large(exported(source))
        return _refuse_external(_from_proto(proto, proto.ByteSize()))
    raise ModelError(f"{type(source).__name__} is not a model", remedy=what_to_give(source))


def what_to_give(source: object) -> str:
    """Return the remedy for an object that is no model, such as a Result or a PyTorch module."""
    if hasattr(source, "named_parameters"):  # a torch.nn.Module
        return "export it first: torch.onnx.export(module, inputs, dynamo=True).model"
    if hasattr(source, "model"):
        return "give the model in it, its attribute model"
    return "give a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph"


def _from_ir(source: ir.Model) -> Loaded:
    for graph in source.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise ModelError(
                    f"the initializer '{name}' has no value",
                    where=_IN_MEMORY,
                    remedy="set its const_value, or remove it from the initializers",
                )
    external.check(source)
    model = source.clone()
    sort_nodes(model, _IN_MEMORY)
    renamed = graph_edits.rename_twins(model)
    size, files = external.size_of(source), external.files(source)
    return Loaded(model, size, files, warnings=renamed, mended=bool(renamed))


SAVE = "save it with onnx.save(model, path, save_as_external_data=True), and give the path"


def refuse_too_large(proto: onnx.ModelProto, remedy: str = SAVE) -> onnx.ModelProto:
    """Return the same model; ModelError if protobuf would fail to copy it, after serialising most of it."""
    size = sum(map(_bytes_of, proto.graph.initializer))
    if size >= _LARGEST_FILE:
        problem = f"has {size / 1e9:.1f} GB of tensors in memory, and protobuf copies no more than 2 GiB"
        raise ModelError(problem, where=_IN_MEMORY, remedy=remedy)
    return proto


def _bytes_of(tensor: onnx.TensorProto) -> float:
    """Return the bytes of a tensor without reading its data, which would copy it."""
    if tensor.HasField("raw_data"):
        return math.prod(tensor.dims) * _ITEM_SIZES.get(tensor.data_type, 0)
    return 4 * len(tensor.float_data) + 8 * (len(tensor.double_data) + len(tensor.int64_data))


_ITEM_SIZES = {
    int(kind): kind.itemsize
    for kind in ir.DataType
    if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
}


def _refuse_external(loaded: Loaded) -> Loaded:
    """Return the same model; ModelError if it has external data, whose folder is unknown."""
    if external.files(loaded.model):
        raise ModelError(
            "keeps tensors in files, and does not say in which folder",
            where=_IN_MEMORY,
            remedy="give its path, or load it with its external data",
        )
    return loaded


def load_graph(path: Path) -> onnx.ModelProto:
    """Load a model file as a ModelProto without its external data; ModelError if it is no model."""
    with open_file(path) as file:
        return _parse(file.read(), path)


def load_with_weights(path: PathLike) -> onnx.ModelProto:
    """Load a model file as a ModelProto that holds its external data; ModelError if either cannot be read."""
    file = arguments.path("model", path)
    model = load_graph(file)
    try:
        onnx.load_external_data_for_model(model, str(file.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"its weights cannot be read ({error})", where=file, remedy="put their files beside the model"
        ) from error
    return model


@contextlib.contextmanager
def open_file(path: Path) -> Generator[BinaryIO]:
    """Open a file that may be a model for reading.

    Raises ModelError when it is missing, not a regular file, or too large, and when reading it fails.
    """
    if os.path.isdir(path):  # noqa: PTH112 - False, not an error, for a path that no file can have
        raise ModelError("is a folder", where=path, remedy="name the model in it")
    try:
        with reading.open_regular(path) as file:
            if os.fstat(file.fileno()).st_size >= _LARGEST_FILE:
                remedy = _of_a_data_file(path) or EXPORT_AGAIN
                raise ModelError(
                    "is larger than the 2 GiB that an ONNX file can have", where=path, remedy=remedy
                )
            yield file
    except FileNotFoundError as error:
        remedy = _NO_STDIN if str(path) == "-" else "check the path"
        raise ModelError("there is no such file", where=path, remedy=remedy) from error
    except OSError as error:
        raise ModelError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error


_NO_STDIN = "no model is read from standard input: save it to a file first"
_LARGEST_FILE = 1 << 31
"""Protobuf stores the size of a message in 31 bits."""


def is_surgeon(source: object) -> bool:
    """Return whether this is an onnx_graphsurgeon.Graph; the package is not imported to find out."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(source).__mro__)
    return any(module.startswith("onnx_graphsurgeon") and name == "Graph" for module, name in kinds)


def surgeon() -> Any:
    """Return the module onnx_graphsurgeon; MissingPackageError if it is not installed."""
    try:
        return importlib.import_module("onnx_graphsurgeon")
    except ImportError as error:
        raise MissingPackageError(
            "onnx-graphsurgeon", extra="graphsurgeon", purpose="a graphsurgeon graph"
        ) from error


def exported(graph: Any) -> onnx.ModelProto:
    """Export an onnx_graphsurgeon.Graph as a ModelProto; ModelError if onnx-graphsurgeon fails."""
    export = surgeon().export_onnx
    try:
        return export(graph)
    except Exception as error:  # it raises errors of any kind
        raise ModelError(
            f"cannot be exported ({root_cause(error)})",
            where="the given graph",
            remedy="change it until onnx_graphsurgeon.export_onnx accepts it",
        ) from error


def _from_path(path: Path) -> Loaded:
    with open_file(path) as stream:
        mode, data = os.fstat(stream.fileno()).st_mode, stream.read()
    loaded = replace(_from_proto(_parse(data, path), len(data), path), mode=mode)
    if external.KEY not in data:
        return loaded
    file_sizes = external.resolve(loaded.model, path)
    size = loaded.size + sum(file_sizes.values())
    return replace(loaded, size=size, external=frozenset(file_sizes))


def _parse(data: bytes, where: str | Path) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise _not_onnx(data, "is not an ONNX model, or only a part of one", where) from error
    if not (proto.HasField("ir_version") and proto.HasField("graph")):
        raise _not_onnx(data, "is not an ONNX model", where)
    return proto


def _not_onnx(data: bytes, problem: str, where: str | Path) -> ModelError:
    """Return the error for data that does not parse, with the format if it is recognised."""
    file_format = recognise(data)
    if file_format is None:
        return ModelError(problem, where=where, remedy=_of_a_data_file(where) or EXPORT_AGAIN)
    return ModelError(file_format.problem, where=where, remedy=file_format.remedy)


def _of_a_data_file(where: str | Path) -> str:
    """Return the remedy for a file that is named like the weights of a model beside it; empty for others."""
    path = Path(where)
    name = path.name.removesuffix(".data").removesuffix("_data").removesuffix(".onnx")
    model = path.with_name(f"{name}.onnx")
    is_beside = bool(name) and model != path and model.is_file()
    return f"if these are the weights of {model}, name that: it finds them by itself" if is_beside else ""


def _from_proto(proto: onnx.ModelProto, size: int, where: str | Path = _IN_MEMORY) -> Loaded:
    graphs = tuple(proto_traversal.graphs(proto.graph))
    decoded = decode(proto)
    refuse(proto, graphs, where)
    preserved = preserved_fields.take_out(proto, graphs)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx-ir wraps other errors in several classes of its own
        raise ModelError(
            f"cannot be understood ({root_cause(error)})", where=where, remedy=EXPORT_AGAIN
        ) from error
    sort_nodes(model, where, preserved.sparse_names)
    renamed = graph_edits.rename_twins(model)
    warnings = (*([_DECODED] if decoded else ()), *renamed)
    return Loaded(model, size, preserved=preserved, warnings=warnings, mended=bool(renamed))


_DECODED = "names that are not UTF-8 were read as Latin-1"


def root_cause(error: BaseException) -> str:
    """Return the message at the end of the chain of causes, shortened."""
    while (cause := error.__cause__ or error.__context__) is not None:  # onnx-ir's own messages can fail
        error = cause
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
