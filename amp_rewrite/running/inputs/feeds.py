"""The inputs of a run: read from files, or synthesised."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from numpy.lib import format as npy
from numpy.typing import NDArray
from onnx import numpy_helper

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import FeedError
from amp_rewrite.files import reading
from amp_rewrite.model import loading
from amp_rewrite.policy import options
from amp_rewrite.policy.open_sizes import GivenSizes
from amp_rewrite.policy.options import Ranges
from amp_rewrite.running.inputs.declared_inputs import (
    Input,
    Structure,
    coerce,
    inputs_of,
    refuse_unknown,
    refuse_wrong_names,
)
from amp_rewrite.running.inputs.synthetic import Synthesis
from amp_rewrite.running.inputs.values import ImageRange
from amp_rewrite.running.sequences import sequences
from amp_rewrite.running.sessions import Feeds

SAVE = "save arrays of numbers with numpy.savez"
"""The remedy for an invalid archive, or one with other contents."""


def read(path: Path, inputs: Mapping[str, Input]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an `.npz` by name.

    A few kilobytes can inflate to any size, so nothing is inflated before the sizes that the archive states,
    beyond which no member is read, are known to fit into memory. Raises FeedError if they do not, for a
    member that is no input, and for a file that is damaged, encrypted, or not an archive.
    """
    try:
        with reading.open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            refuse_unknown(members, inputs, path)
            total, free = sum(info.file_size for info in members.values()), available()
            if free is not None and total > free:
                raise FeedError(
                    f"would take {total / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB of memory are free",
                    where=path,
                    remedy="give a smaller sample",
                )
            arrays: dict[str, NDArray[Any]] = {}
            for name, member in members.items():
                with archive.open(member) as content:
                    arrays[name] = npy.read_array(content, allow_pickle=False)
            return arrays
    except FeedError:
        raise
    except OSError as error:
        raise FeedError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except Exception as error:  # zipfile, its codecs and NumPy's header parser have no common base class
        problem = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise FeedError(f"cannot be read ({problem})", where=path, remedy=SAVE) from error


_LONGEST = 200
"""Characters of a library's error message that are shown: it may quote file contents."""


# Memory in bytes: what is available to this process.

SOURCES = (
    (Path("/proc/meminfo"), r"^MemAvailable:\s+(\d+) kB$", 1024),
    (Path("/sys/fs/cgroup/memory.max"), r"^(\d+)$", 1),  # "max" without a limit
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), r"^(\d+)$", 1),  # cgroup v1
)
"""Limits of the available memory: file, pattern, and unit in bytes."""


def available() -> int | None:
    """Return the bytes that this process can allocate before the system or its container runs out of memory;
    None if unknown.
    """
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    for file, pattern, unit in SOURCES:
        if (number := _read_number(file, pattern)) is not None:
            yield number * unit
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no such function, no such name
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read_number(file: Path, pattern: str) -> int | None:
    try:
        match = re.search(pattern, file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


# Sources of samples.


@dataclass(frozen=True, slots=True)
class InputSource:
    """The source of samples: synthesised with `seed`, read from `paths`, or else passed by the caller.

    `files` has the file or folder of each sample that was read, in order; `images` is the range of synthetic
    images, None if there are none, or several ranges. `change` says how inputs of unknown magnitude were
    changed; it may be empty.
    """

    seed: int | None = None
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    images: ImageRange | None = None
    change: str = ""

    @property
    def is_synthetic(self) -> bool:
        """True if the inputs are synthetic."""
        return self.seed is not None

    def sample(self, index: int) -> str:
        """Return the display name of a sample, counted from 0; empty for synthetic ones.

        The caller's are named as in Python: `samples[0]`.
        """
        if self.is_synthetic:
            return ""
        return self.files[index] if index < len(self.files) else f"samples[{index}]"

    def to_json(self) -> dict[str, Any]:
        """Return JSON data, without the names of single samples."""
        return {
            "synthetic": self.is_synthetic,
            "seed": self.seed,
            "paths": list(self.paths),
            "images": self.images.value if self.images else None,
            "change": self.change,
        }


FROM_CALLER = InputSource()


@dataclass(frozen=True, slots=True)
class Data:
    """The origin of inputs: files, samples (`arrays`: mappings from input names to arrays), or synthesis.

    A path is an `.npz` (one sample: arrays by the names of the inputs), a directory of these, an ONNX
    `test_data_set_*` directory, or a directory of those. `dims` gives sizes for open dimensions, by symbol or
    as `input:axis`. Synthetic inputs use `seed`, `samples`, `images` (the range of images if the graph
    implies none) and `ranges` (by input name). With `steps`, that many consecutive samples make a
    sequence (running.sequences). A single path need not be in a list.
    Raises OptionError, which names the field, for invalid values.
    """

    paths: tuple[Path, ...]
    dims: Mapping[str, int]
    seed: int
    samples: int
    images: ImageRange
    ranges: Ranges
    steps: int
    arrays: tuple[Feeds, ...]

    def __init__(
        self,
        paths: PathLike | Iterable[PathLike] = (),
        dims: Mapping[str, int] | None = None,
        seed: int = 0,
        samples: int = 1,
        images: ImageRange | str = ImageRange.UNIT,
        ranges: Ranges | None = None,
        steps: int = 1,
        arrays: Iterable[Feeds] = (),
    ) -> None:
        hold = partial(object.__setattr__, self)
        hold("paths", arguments.paths("Data.paths", paths))
        hold("dims", arguments.sizes("Data.dims", dims))
        hold("seed", arguments.whole("Data.seed", seed))
        hold("samples", arguments.whole("Data.samples", samples, least=1))
        hold("images", arguments.choice("Data.images", images, ImageRange))
        hold("ranges", options.checked("Data.ranges", ranges))
        hold("steps", arguments.whole("Data.steps", steps, least=1))
        given = (arguments.mapping("Data.arrays", sample, '{"image": array}') for sample in arrays)
        hold("arrays", tuple(given))

    @property
    def is_given(self) -> bool:
        """True if the inputs are the user's, in files or as arrays."""
        return bool(self.paths or self.arrays)

    def count_samples(self, source: InputSource) -> int:
        """Return the number of samples, sequences of `steps` with more than one, of a source of this data."""
        given = len(source.files) or len(self.arrays)
        return -(-given // self.steps) or self.samples


def feeds(model: onnx.ModelProto | str | Path, data: Data) -> Iterator[Feeds]:
    """Yield samples for a model, each read or synthesised on request.

    A sample has every input without a default, by name, in the type that the model declares. Raises
    ModelError if the model cannot be read, FeedError if a path has no samples, if a file's contents do not
    fit, or if an input cannot be synthesised, and OptionError if `data` is not a Data.
    """
    arguments.instance("data", data, Data, 'write Data("inputs.npz")')
    return _samples(loading.load(model).model, _path_of(model), data)


def _samples(model: ir.Model, path: str, data: Data, *, partial: bool = False) -> Iterator[Feeds]:
    """Yield the samples of `feeds` for a model from a path; those in files may lack inputs if `partial`."""
    if data.steps > 1 and not partial:
        distinct = data.steps if data.is_given else min(data.steps, DISTINCT)
        singles = replace(data, steps=1, samples=data.samples * distinct)
        return sequences(model, _samples(model, path, singles), data.steps, distinct)
    if not data.is_given:
        synthesis = Synthesis(model, data.dims, data.ranges, path)
        return synthesis.samples(data.seed, data.samples, data.images)
    declared = inputs_of(model, path)
    inputs = {one.name: replace(one, has_default=partial or one.has_default) for one in declared}
    return (_coerced(inputs, read_sample(inputs), where) for where, read_sample in _all_readers(data))


DISTINCT = 16
"""The most steps of a synthetic sequence with inputs of their own, which all stay in memory."""


def _path_of(model: onnx.ModelProto | str | Path) -> str:
    return "" if isinstance(model, onnx.ModelProto) else str(model)


def partial_feeds(model: onnx.ModelProto | str | Path, data: Data) -> Iterator[Feeds]:
    """Yield the samples in files, which may lack inputs of the model; raise as `feeds`."""
    return (
        _samples(loading.load(model).model, _path_of(model), data, partial=True)
        if data.is_given
        else iter(())
    )


def input_source(data: Data) -> InputSource:
    """Return the source of the samples, with any files; raise FeedError as `feeds` does."""
    if not data.is_given:
        return InputSource(seed=data.seed)
    if data.arrays:
        return FROM_CALLER
    files = tuple(str(where) for where, _ in _all_readers(data))
    return InputSource(paths=tuple(map(str, data.paths)), files=files)


def given_sizes(model: onnx.ModelProto | str | Path, data: Data, others: Iterable[Path] = ()) -> GivenSizes:
    """Return the sizes of a model's open dimensions: by name from `data`, all others from the first sample in
    its files, or in `others` if it has none. Raises as `feeds` does.
    """
    data = data if data.is_given else replace(data, paths=others)
    if not data.is_given:
        return GivenSizes(data.dims)
    loaded, path = loading.load(model).model, _path_of(model)
    first = next(_samples(loaded, path, data, partial=True), {})
    shapes = {name: array.shape for name, array in first.items() if hasattr(array, "shape")}
    sampled = {
        f"{declared.name}:{axis}": shapes[declared.name][axis]
        for declared in inputs_of(loaded, path)
        for axis, dim in enumerate(declared.dims or ())
        if declared.name in shapes and not isinstance(dim, int) and dim not in data.dims
    }
    name = "samples[0]" if data.arrays else Path(input_source(data).files[0]).name
    origins = (sampled and f"of {name}", data.dims and "given by name")
    return GivenSizes({**sampled, **data.dims}, " and ".join(map(str, filter(None, origins))))


def open_sizes(model: onnx.ModelProto | str | Path, data: Data) -> dict[str, int]:
    """Return the size of each open dimension in synthetic samples, by its name in `dims`.

    Raises ModelError if the model cannot be read.
    """
    return Synthesis(loading.load(model).model, data.dims).sizing.open_sizes()


_Reader = tuple[str | Path, Callable[[Mapping[str, Input]], Mapping[str, Any]]]
"""Where a sample is, and a function that reads its values."""


def _all_readers(data: Data) -> list[_Reader]:
    arrays = ((f"samples[{at}]", lambda _, sample=sample: sample) for at, sample in enumerate(data.arrays))
    return [*arrays, *(reader for path in data.paths for reader in _readers(path))]


def _readers(path: Path) -> Iterator[_Reader]:
    """Yield a reader for each sample at a path; raise FeedError if there is none."""
    if path.is_dir():
        yield from _readers_within(path)
        return
    if path.suffix == ".npz" and path.is_file():
        yield path, partial(read, path)
        return
    try:
        reading.open_regular(path).close()
    except FileNotFoundError:
        raise FeedError("there is no such file", where=path, remedy=_PATHS) from None
    except OSError as error:
        raise FeedError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    remedy = _OF_NPY if path.suffix == ".npy" else _PATHS
    raise FeedError("is neither an .npz file nor a directory", where=path, remedy=remedy)


_OF_NPY = (
    "an .npy file does not say of which input its array is: "
    "numpy.savez('inputs.npz', NAME=numpy.load('FILE.npy')) does, with the input's NAME"
)
_PATHS = "give an .npz file, a directory of them, or an ONNX test_data_set_* directory"


def _readers_within(folder: Path) -> Iterator[_Reader]:
    # by its name too: the data set of a model without inputs has output files only
    if folder.name.startswith("test_data_set_") or any(folder.glob("input_*.pb")):
        yield folder, partial(_read_data_set, folder)
        return
    files = _sorted(folder.glob("*.npz"))
    sets = _sorted(child for child in folder.glob("test_data_set_*") if child.is_dir())
    if not files and not sets:
        raise FeedError("holds no samples", where=folder, remedy=_PATHS)
    yield from ((file, partial(read, file)) for file in files)
    yield from ((child, partial(_read_data_set, child)) for child in sets)


def _sorted(paths: Iterator[Path]) -> list[Path]:
    """Sort by name, with numbers in names by value: 2 before 10."""
    return sorted(paths, key=lambda path: [int(p) if p.isdigit() else p for p in _PARTS.split(path.name)])


_PARTS = re.compile(r"(\d+)")


def _read_data_set(folder: Path, inputs: Mapping[str, Input]) -> Mapping[str, Any]:
    files = _sorted(folder.glob("input_*.pb"))
    if len(files) > len(inputs):
        problem = f"has {len(files)} inputs, and the model has {len(inputs)}"
        raise FeedError(problem, where=folder, remedy=_SAME_MODEL)
    pairs = zip(inputs.items(), files, strict=False)
    return {name: _read_pb(file, declared) for (name, declared), file in pairs}


_SAME_MODEL = "check that it belongs to this model"


def _read_pb(path: Path, declared: Input) -> Any:
    proto, convert = _OPTIONAL if declared.is_optional else _FORMATS[declared.structure]
    parsed = proto()
    try:
        parsed.ParseFromString(reading.read(path))
        return convert(parsed)
    except OSError as error:
        raise declared.error(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except (DecodeError, ValueError, TypeError) as error:
        raise declared.error(f"cannot be read ({error})", where=path, remedy=_SAME_MODEL) from error


def _element(proto: onnx.OptionalProto) -> Any:
    """Return the element of an optional; None if its fields are empty, as not all writers set `elem_type`."""
    is_full = any(descriptor.name.endswith("_value") for descriptor, _ in proto.ListFields())
    return numpy_helper.to_optional(proto) if is_full else None


_Format = tuple[Callable[[], Any], Callable[[Any], Any]]
_OPTIONAL: _Format = (onnx.OptionalProto, _element)
_FORMATS: dict[Structure, _Format] = {
    Structure.TENSOR: (onnx.TensorProto, numpy_helper.to_array),
    Structure.SEQUENCE: (onnx.SequenceProto, numpy_helper.to_list),
    Structure.OTHER: (onnx.MapProto, numpy_helper.to_dict),
}


def _coerced(inputs: Mapping[str, Input], values: Mapping[str, Any], where: str | Path) -> Feeds:
    """Return the values in the declared types; raise FeedError for a missing, unknown or unfit one."""
    refuse_wrong_names(values, inputs, where)
    return {name: coerce(inputs[name], value, where) for name, value in values.items()}


# Trials of a comparison: user samples, or synthetic ones with images in each possible range.


@dataclass(frozen=True, slots=True)
class Longer:
    """A synthetic sample whose open sizes are this many times as long as usual."""

    times: int
    sizes: Mapping[str, int]
    feeds: Feeds

    def in_words(self, factor: int = 1) -> str:
        """Return the sizes, times a factor."""
        return " and ".join(f"{name} = {factor * size:,}" for name, size in self.sizes.items())


@dataclass(frozen=True, slots=True)
class Trial:
    """Samples, their source, the names of synthetic inputs of unknown magnitude and of images of an unknown
    range, and longer samples.
    """

    samples: Iterable[Feeds]
    source: InputSource
    free: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    longer: Iterable[Longer] = ()


def trials(model: onnx.ModelProto | str | Path, data: Data) -> tuple[Trial, ...]:
    """Return the samples of `feeds` for a model; once per image range if images are synthetic and the graph
    implies no range. Raises as `feeds` does.
    """
    loaded, source = loading.load(model).model, input_source(data)
    if not source.is_synthetic:
        return (Trial(_samples(loaded, _path_of(model), data), source),)
    synthesis = Synthesis(loaded, data.dims, data.ranges)
    stated = set(synthesis.images.values())
    vague = frozenset(name for name, range_ in synthesis.images.items() if range_ is None)
    images = tuple(ImageRange) if vague else tuple(stated)
    is_mixed = not vague and len(stated) > 1  # images of both ranges
    sources = [source] if is_mixed or not images else [replace(source, images=one) for one in images]
    path = _path_of(model)
    longer = _longer(synthesis, loaded, path, of_source(data, sources[0])) if data.steps == 1 else ()
    return tuple(
        Trial(_samples(loaded, path, of_source(data, one)), one, synthesis.free, vague, longer)
        for one in sources
    )


LENGTHS = (32, 8)
"""The factors of open sizes, largest first: 64 tokens or frames become 2,048, which people run."""


def _longer(synthesis: Synthesis, model: ir.Model, path: str, data: Data) -> Iterator[Longer]:
    """Yield synthetic samples with long open sizes, longest first."""
    for times in LENGTHS:
        dims = synthesis.lengthened(times)
        if dims is not None:
            sizes = {name: size for name, size in dims.items() if name not in data.dims}
            yield Longer(times, sizes, next(_samples(model, path, replace(data, dims=dims))))


def of_source(data: Data, source: InputSource) -> Data:
    """Return the data that gives a trial with this source its samples."""
    seed = data.seed if source.seed is None else source.seed
    return replace(data, images=source.images or data.images, seed=seed)
