"""The values inside a model: runs that give them out, a chunk at a time, so that memory stays bounded."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.errors import OutputError
from amp_rewrite.model import external_data, inlining, loading, writing
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Feeds, Runnable

CHUNK = 64
"""How many inner values the first run gives out; while they are small, each run gives out twice as many."""

_MOST = 1024
_SMALL = 1 << 28
"""Bounds of a chunk: as many values, and it grows no more once it takes this many bytes.

A session keeps all that it could give out until its run ends, so each chunk has a session of its own, and
the fewer there are, the better: with chunks of one size the time would grow with the square of the graph.
"""

_FLOATS = frozenset(("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"))

Values = Mapping[str, NDArray[Any]]
"""What a run made, by name."""


class InstrumentedModel:
    """A model that gives out what its main graph makes; its functions are inlined, as the rewrite does it.

    Runs raise MissingPackageError, ModelError and FeedError as all do, and OutputError where the folder of a
    model with external data cannot be written to.
    """

    def __init__(self, model: Runnable, device: Device) -> None:
        self._model = model
        self._device = device
        self._proto = _inlined(model)

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """The nodes of the main graph, in order."""
        return self._proto.graph.node

    @property
    def value_names(self) -> dict[str, None]:
        """The names of what these nodes make, in order."""
        return {name: None for node in self.nodes for name in node.output if name}

    def run(self, names: Iterable[str], feeds: Feeds) -> Values:
        """What one run makes of these values: those of them that are tensors of floats."""
        _give_out(self._proto.graph, names)
        with _beside(self._model, self._proto) as runnable:
            session = sessions.open_unoptimised_session(runnable, self._device)
            floats = {output.name for output in session.get_outputs() if output.type in _FLOATS}
            found = sessions.run_session(session, feeds, floats) if floats else {}
            # what is sparse is no array
            return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    def chunks(self, names: Iterable[str], feeds: Feeds) -> Iterator[Values]:
        """The same in several runs, each with as many values as fit into memory."""
        size, rest = CHUNK, iter(names)
        while chunk := list(itertools.islice(rest, size)):
            found = self.run(chunk, feeds)
            yield found
            size = _next_size(size, found.values())


def _next_size(size: int, values: Iterable[NDArray[Any]]) -> int:
    """Twice as many for the next chunk where this one was small, else as many as at first."""
    return min(2 * size, _MOST) if sum(value.nbytes for value in values) < _SMALL // 2 else CHUNK


def _inlined(model: Runnable) -> onnx.ModelProto:
    proto = _proto(model)
    if not proto.functions:
        return proto
    loaded = loading.load(model)
    inlining.inline(loaded.model)
    return writing.to_proto(loaded)


def _proto(model: Runnable) -> onnx.ModelProto:
    """A copy that is ours to change; external data stays outside."""
    if not isinstance(model, onnx.ModelProto):
        return loading.load_graph(Path(model))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _give_out(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Makes these values the outputs; what is said of their types stays."""
    known = {info.name: info for info in (*graph.value_info, *graph.output)}
    undeclared = {output.name for output in graph.output} - {info.name for info in graph.value_info}
    graph.value_info.extend(known[name] for name in undeclared)
    outputs = [known.get(name) or onnx.ValueInfoProto(name=name) for name in names]
    del graph.output[:]
    graph.output.extend(outputs)


@contextlib.contextmanager
def _beside(model: Runnable, proto: onnx.ModelProto) -> Generator[Runnable]:
    """The changed model; as a file beside the one that it was where that keeps tensors in files."""
    data = b"" if isinstance(model, onnx.ModelProto) else proto.SerializeToString()
    if isinstance(model, onnx.ModelProto) or external_data.KEY not in data:
        yield proto
        return
    beside = Path(model).with_name(f".amp-rewrite-{os.getpid()}.onnx")
    try:
        _write(beside, data)
        yield beside
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror or error}), and to look into a model with external data "
            "takes a file beside it",
            where=path,
            remedy="copy the model with its data to a folder that you may write to",
        ) from error
