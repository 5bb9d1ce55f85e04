"""Copies of a model that output other values: read once, with large weights in files."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.arguments import ExternalData
from amp_rewrite.model import external_data, inlining, loading, proto_traversal, serialization, writing
from amp_rewrite.model.loading import Loaded
from amp_rewrite.onnx_types import element_types
from amp_rewrite.process import startup
from amp_rewrite.rewriting import plan_files, widened_model
from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import rounded_name
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

LARGE = 1 << 24
"""Weights of more bytes than these go into a temporary file: each session would take a copy of them, and so
would each step on the way to it.
"""


@dataclass(frozen=True, slots=True)
class LightModel:
    """A model with its functions inlined, and with the types of its values; `fingerprint` identifies the
    original model (`plan_files.fingerprint`).
    """

    fingerprint: str
    loaded: Loaded

    @property
    def opset(self) -> int:
        """The version of the default domain that it imports."""
        return element_types.default_opset(self.loaded.model.graph.opset_imports)

    def edited(self, edit: Callable[[ir.Model], T]) -> tuple[T, onnx.ModelProto, Path | None]:
        """Edit a copy of the model; return what `edit` returns, the edited copy, and the folder that its data
        files are relative to, as runtimes require; None without any.
        """
        with startup.paused():
            copy = replace(self.loaded, model=inlining.copied(self.loaded.model))
            result = edit(copy.model)
            return result, *runnable_proto(copy)


T = TypeVar("T")


@contextlib.contextmanager
def light(model: Runnable) -> Generator[LightModel]:
    """Yield the model, for use within the context.

    Raises ModelError if it cannot be read, and OutputError if there is no room for a temporary file.
    """
    with tempfile.TemporaryDirectory() as folder:
        with startup.paused():
            readable = _load(model, Path(folder))
        yield readable


def _load(model: Runnable, folder: Path) -> LightModel:
    loaded = loading.load(model)
    fingerprint = plan_files.fingerprint(loaded.model.graph)
    inlining.inline(loaded.model)
    if widened_model.has_half(loaded.model, _NO_KERNELS):
        widened_model.widen(loaded.model, _NO_KERNELS, kept_io=())
    for value, kind in element_types.infer(loaded.model).items():
        value.type = kind
    if not loaded.external and external_data.size_of(loaded.model) > LARGE:
        writing.save(loaded, folder / "model.onnx", ExternalData("always"))
        loaded = loading.load(folder / "model.onnx")
    return LightModel(fingerprint, loaded)


_NO_KERNELS = (ir.DataType.BFLOAT16,)
"""Half types for which onnxruntime's CPU provider has few kernels: what has them is observed in float32."""


def runnable_proto(loaded: Loaded) -> tuple[onnx.ModelProto, Path | None]:
    """Return the protobuf of a model, and the folder that its data files are relative to, as runtimes
    require; None without any.
    """
    proto = serialization.to_proto(loaded)
    if not loaded.external:
        return proto, None
    folder = Path(os.path.commonpath([file.parent for file in loaded.external]))
    for graph in proto_traversal.graphs(proto.graph):
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == _LOCATION:
                    entry.value = os.path.relpath(entry.value, folder)
    return proto, folder


_LOCATION = "location"


@contextlib.contextmanager
def as_file(model: Runnable) -> Generator[Path]:
    """Yield the path of a model for other processes; one in memory is written once, for all tasks."""
    if not isinstance(model, onnx.ModelProto):
        yield Path(model).absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        writing.save(loading.load(model), path, ExternalData())
        yield path


# The values of a model, from runs that output them.

CHUNK = 64
"""The number of values that the first run outputs; the number doubles as long as they are small."""

_MOST = 1024
SMALL = 1 << 28
"""Bounds of a chunk: the most values, and the bytes from which the number no longer doubles.

A session keeps all its outputs until the run ends, so each chunk has its own session. Fewer are better: with
chunks of constant size the time would grow with the square of the graph.
"""

_FLOATS = frozenset(("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"))

Values = Mapping[str, NDArray[Any]]
"""Intermediate values of a run, by name."""


class InstrumentedModel:
    """A copy of a model that outputs the values of its main graph; its functions are inlined, as by the
    rewrite.

    Runs raise MissingPackageError, ModelError and FeedError.
    """

    def __init__(self, model: Runnable, device: Device, libraries: Libraries = ()) -> None:
        self._device, self._libraries = device, libraries
        self._loaded = loading.load(model)
        inlining.inline(self.model)
        self.outputs = tuple(value.name or "" for value in self.model.graph.outputs)

    @property
    def model(self) -> ir.Model:
        """The copy, for edits; its outputs are those of the last run, and `outputs` the names of its own."""
        return self._loaded.model

    @property
    def values(self) -> dict[str, ir.Value]:
        """The outputs of the nodes of the main graph by name, in order."""
        return {value.name: value for node in self.model.graph for value in node.outputs if value.name}

    def run(self, names: Iterable[str], feeds: Feeds) -> Values:
        """Return those of these values that are dense float tensors, from one run."""
        session = self._session(names, optimised=False)
        selection = {output.name for output in session.get_outputs() if output.type in _FLOATS}
        outputs = sessions.run_session(session, feeds, selection) if selection else {}
        # a sparse value is not an array
        return {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}

    def run_all(self, names: Iterable[str], feeds: Feeds) -> Mapping[str, Any]:
        """Return all of these values, inputs too, from one run that is optimised as in a comparison."""
        return sessions.run_session(self._session(names, optimised=True), feeds)

    def _session(self, names: Iterable[str], *, optimised: bool) -> Any:
        graph = self.model.graph
        given = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
        values = given | self.values
        graph.outputs[:] = [values[name] for name in names]
        proto, folder = runnable_proto(self._loaded)
        return sessions.open_session(proto, self._device, self._libraries, optimised=optimised, folder=folder)

    def chunks(self, names: Iterable[str], feeds: Feeds) -> Iterator[Values]:
        """Yield these values chunk by chunk, a run each; a chunk of small values doubles the next."""
        size, rest = CHUNK, iter(names)
        while chunk := list(itertools.islice(rest, size)):
            values = self.run(chunk, feeds)
            yield values
            is_small = sum(value.nbytes for value in values.values()) < SMALL // 2
            size = min(2 * size, _MOST) if is_small else CHUNK


def paired_values(
    before: InstrumentedModel, after: InstrumentedModel, names: Collection[str], feeds: Feeds
) -> Iterator[tuple[str, NDArray[Any], NDArray[Any] | None]]:
    """Yield those of these main-graph values that the first model has as float tensors, by name, with the
    same value in the second one; None where it is none there. A run of each model for each chunk.

    In an emulation that is the rounded value, which all consumers read.
    """
    there = after.values
    shared: dict[str, str] = {}
    for name in before.values:
        other = next((each for each in (rounded_name(name), name) if each in there), None)
        if other is not None and name in names:
            shared[name] = other
    for chunk in before.chunks(shared, feeds):
        actual = after.run([shared[name] for name in chunk], feeds) if chunk else {}
        yield from ((name, value, actual.get(shared[name])) for name, value in chunk.items())
