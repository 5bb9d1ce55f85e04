"""The inputs of a run: read from files, or made up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import FeedError
from amp_rewrite.files import reading
from amp_rewrite.model import loading
from amp_rewrite.running.inputs import model_inputs, npz_files, synthetic
from amp_rewrite.running.inputs.coerce import coerce
from amp_rewrite.running.inputs.input_source import InputSource
from amp_rewrite.running.inputs.model_inputs import Input, Structure
from amp_rewrite.running.sessions import Feeds


@dataclass(frozen=True, slots=True)
class Data:
    """Where inputs come from: files, or where none are given, made up.

    A path is an `.npz` (one sample: arrays by the names of the inputs), a directory of them, an ONNX
    `test_data_set_*` directory, or a directory of these. `dims` gives sizes to open dimensions, by
    symbol or as `input:axis`; `seed` and `samples` are for what is made up. One path need not be in a list.
    Raises OptionError, which names the field, for what is none of this.
    """

    paths: tuple[Path, ...]
    dims: Mapping[str, int]
    seed: int
    samples: int

    def __init__(
        self,
        paths: PathLike | Iterable[PathLike] = (),
        dims: Mapping[str, int] | None = None,
        seed: int = 0,
        samples: int = 1,
    ) -> None:
        hold = partial(object.__setattr__, self)
        hold("paths", arguments.paths("Data.paths", paths))
        hold("dims", arguments.sizes("Data.dims", dims))
        hold("seed", arguments.whole("Data.seed", seed))
        hold("samples", arguments.whole("Data.samples", samples, least=1))


def feeds(model: onnx.ModelProto | str | Path, data: Data) -> Iterator[Feeds]:
    """The samples for a model, one after the other, each read or made when it is asked for.

    A sample has every input that the model cannot do without, by name, in the model's type. Raises
    ModelError when the model cannot be read, and FeedError when a path holds no samples, when what a file
    holds does not fit, or when an input cannot be made up; OptionError for `data` that is no Data.
    """
    arguments.instance("data", data, Data, 'write Data("inputs.npz")')
    loaded = loading.load(model).model
    owner = "" if isinstance(model, onnx.ModelProto) else str(model)
    if not data.paths:
        return synthetic.synthesise(loaded, data.dims, data.seed, data.samples, owner)
    inputs = model_inputs.of(loaded, owner)
    readers = [reader for path in data.paths for reader in _readers(Path(path))]
    return (reader(inputs) for reader in readers)


def input_source(data: Data) -> InputSource:
    """Where the samples come from, with the files of those that are read; FeedError as `feeds` raises it."""
    if not data.paths:
        return InputSource(seed=data.seed)
    readers = [reader for path in data.paths for reader in _readers(Path(path))]
    return InputSource(
        paths=tuple(map(str, data.paths)), files=tuple(str(reader.args[0]) for reader in readers)
    )


def known_sizes(model: str | Path, data: Data) -> Mapping[str, int]:
    """What is known of a model's open dimensions: what was asked for, or what the first sample of the files
    has, as `input:axis`. Raises what `feeds` raises.
    """
    if not data.paths:
        return data.dims
    first = next(feeds(model, data), {})
    arrays = {name: array for name, array in first.items() if hasattr(array, "shape")}
    return {
        f"{given.name}:{axis}": arrays[given.name].shape[axis]
        for given in model_inputs.of(loading.load(model).model, str(model))
        for axis, dim in enumerate(given.dims or ())
        if given.name in arrays and not isinstance(dim, int)
    }


_Reader = Callable[[Sequence[Input]], Feeds]


def open_sizes(model: onnx.ModelProto | str | Path, data: Data) -> dict[str, int]:
    """The size that each dimension that a model leaves open gets in made-up samples, by its name in `dims`.

    Raises ModelError when the model cannot be read.
    """
    return synthetic.open_sizes(loading.load(model).model, data.dims)


def _readers(path: Path) -> Iterator[partial[Feeds]]:
    """One reader for every sample that lies at the path; FeedError when there is none."""
    if path.is_dir():
        yield from _readers_within(path)
    elif path.suffix == ".npz" and path.is_file():
        yield partial(_read_npz, path)
    else:
        raise _no_samples(path)


def _no_samples(path: Path) -> FeedError:
    try:
        reading.check(path)
    except FileNotFoundError:
        return FeedError("there is no such file", where=path, remedy=_PATHS)
    except OSError as error:
        return FeedError(reading.problem(error), where=path, remedy=reading.remedy(error))
    return FeedError("is neither an .npz file nor a directory", where=path, remedy=_PATHS)


_PATHS = "give an .npz file, a directory of them, or an ONNX test_data_set_* directory"


def _readers_within(folder: Path) -> Iterator[partial[Feeds]]:
    if _is_data_set(folder):
        yield partial(_read_data_set, folder)
        return
    files = _sorted(folder.glob("*.npz"))
    sets = _sorted(child for child in folder.glob("test_data_set_*") if child.is_dir())
    if not files and not sets:
        raise FeedError("holds no samples", where=folder, remedy=_PATHS)
    yield from (partial(_read_npz, file) for file in files)
    yield from (partial(_read_data_set, child) for child in sets)


def _is_data_set(folder: Path) -> bool:
    """A data set of a model without inputs has no file but the outputs."""
    return folder.name.startswith("test_data_set_") or any(folder.glob("input_*.pb"))


def _sorted(paths: Iterator[Path]) -> list[Path]:
    """By name, and by number where names have numbers: 2 before 10."""
    return sorted(paths, key=lambda path: [int(p) if p.isdigit() else p for p in _PARTS.split(path.name)])


_PARTS = re.compile(r"(\d+)")


def _read_npz(path: Path, inputs: Sequence[Input]) -> Feeds:
    known = {given.name: given for given in inputs}
    return _fitted(known, npz_files.read(path, known), path)


def _read_data_set(folder: Path, inputs: Sequence[Input]) -> Feeds:
    files = _sorted(folder.glob("input_*.pb"))
    if len(files) > len(inputs):
        raise FeedError(
            f"has {len(files)} inputs, and the model takes {len(inputs)}", where=folder, remedy=_SAME_MODEL
        )
    values = {given.name: _read_pb(file, given) for given, file in zip(inputs, files, strict=False)}
    return _fitted({given.name: given for given in inputs}, values, folder)


_SAME_MODEL = "check that it belongs to this model"


def _read_pb(path: Path, given: Input) -> Any:
    proto, convert = _OPTIONAL if given.is_optional else _PROTOS[given.structure]
    parsed = proto()
    try:
        parsed.ParseFromString(reading.read(path))
        return convert(parsed)
    except OSError as error:
        raise given.error(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except (DecodeError, ValueError, TypeError) as error:
        raise given.error(f"cannot be read ({error})", where=path, remedy=_SAME_MODEL) from error


def _held(proto: onnx.OptionalProto) -> Any:
    """What an optional holds; None where it is empty, which not every writer says in its type."""
    full = any(descriptor.name.endswith("_value") for descriptor, _ in proto.ListFields())
    return numpy_helper.to_optional(proto) if full else None


_Format = tuple[Callable[[], Any], Callable[[Any], Any]]
_OPTIONAL: _Format = (onnx.OptionalProto, _held)
_PROTOS: dict[Structure, _Format] = {
    Structure.TENSOR: (onnx.TensorProto, numpy_helper.to_array),
    Structure.SEQUENCE: (onnx.SequenceProto, numpy_helper.to_list),
    Structure.OTHER: (onnx.MapProto, numpy_helper.to_dict),
}


def _fitted(inputs: Mapping[str, Input], values: Mapping[str, Any], where: Path) -> Feeds:
    """The values as the model takes them; FeedError for what is missing, unknown or does not fit."""
    npz_files.refuse_unknown(values, inputs, where)
    for name, given in inputs.items():
        if name not in values and not given.has_default:
            raise given.error("is missing", where=where, remedy=f"add it, as {given.type_text}")
    return {name: coerce(inputs[name], value, where) for name, value in values.items()}
