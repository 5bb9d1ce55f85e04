"""The intermediate values of a model, from runs that output them in chunks, to bound the memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.errors import OutputError
from amp_rewrite.model import external_data, inlining, loading, serialization
from amp_rewrite.running import witness_sessions
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.sessions import Device, Feeds, Runnable

CHUNK = 64
"""The number of values that the first run outputs; the number doubles as long as they are small."""

_MOST = 1024
SMALL = 1 << 28
"""Bounds of a chunk: the most values, and the bytes from which the number no longer doubles.

A session keeps all its outputs until the run ends, so each chunk has its own session. Fewer are better: with
chunks of constant size the time would grow with the square of the graph.
"""

_FLOATS = frozenset(("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"))
_INDICES = frozenset(("tensor(int64)",))

Values = Mapping[str, NDArray[Any]]
"""Intermediate values of a run, by name."""


class InstrumentedModel:
    """A model that outputs the values of its main graph; its functions are inlined, as by the rewrite.

    Runs raise MissingPackageError, ModelError and FeedError, and OutputError if the folder of a model with
    external data is not writable.
    """

    def __init__(self, model: Runnable, device: Device, libraries: Libraries = ()) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._proto = _inlined_copy(model)

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """The nodes of the main graph, in order."""
        return self._proto.graph.node

    @property
    def value_names(self) -> dict[str, None]:
        """The names of the outputs of these nodes, in order."""
        return {name: None for node in self.nodes for name in node.output if name}

    def run(self, names: Iterable[str], feeds: Feeds) -> Values:
        """The values called `names`, from one run; only those that are dense float tensors."""
        return self._run(names, feeds, _FLOATS, optimised=False)

    def indices(self, names: Iterable[str], feeds: Feeds) -> Values:
        """The values called `names` that are indices, from one run as a comparison makes it: optimised."""
        return self._run(names, feeds, _INDICES, optimised=True)

    def _run(self, names: Iterable[str], feeds: Feeds, types: Container[str], *, optimised: bool) -> Values:
        _set_outputs(self._proto.graph, names)
        with _runnable(self._model, self._proto) as runnable:
            session = witness_sessions.open_session(
                runnable, self._device, self._libraries, optimised=optimised
            )
            wanted = {output.name for output in session.get_outputs() if output.type in types}
            found = witness_sessions.run_session(session, feeds, wanted) if wanted else {}
            # a sparse value is not an array
            return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    def chunks(self, names: Iterable[str], feeds: Feeds) -> Iterator[Values]:
        """The same from several runs: the next run has twice as many values if this one's were small."""
        size, rest = CHUNK, iter(names)
        while chunk := list(itertools.islice(rest, size)):
            found = self.run(chunk, feeds)
            yield found
            is_small = sum(value.nbytes for value in found.values()) < SMALL // 2
            size = min(2 * size, _MOST) if is_small else CHUNK


def _inlined_copy(model: Runnable) -> onnx.ModelProto:
    """A copy without functions that may be modified; external data stays outside."""
    if isinstance(model, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
    else:
        proto = loading.load_graph(Path(model))
    if not proto.functions:
        return proto
    loaded = loading.load(model)
    inlining.inline(loaded.model)
    return serialization.to_proto(loaded)


def _set_outputs(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Makes these values the outputs, with the types that the model declares for them."""
    known = {info.name: info for info in (*graph.value_info, *graph.output)}
    undeclared = {output.name for output in graph.output} - {info.name for info in graph.value_info}
    graph.value_info.extend(known[name] for name in undeclared)
    outputs = [known.get(name) or onnx.ValueInfoProto(name=name) for name in names]
    del graph.output[:]
    graph.output.extend(outputs)


@contextlib.contextmanager
def _runnable(model: Runnable, proto: onnx.ModelProto) -> Generator[Runnable]:
    """The modified model; a temporary file beside the original if that has external data."""
    data = b"" if isinstance(model, onnx.ModelProto) else proto.SerializeToString()
    if isinstance(model, onnx.ModelProto) or external_data.KEY not in data:
        yield proto
        return
    path = Path(model).with_name(f".amp-rewrite-{os.getpid()}.onnx")
    try:
        _write(path, data)
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror or error}); observing a model with external data requires "
            "a temporary file beside it",
            where=path,
            remedy="copy the model with its data to a writable folder",
        ) from error
