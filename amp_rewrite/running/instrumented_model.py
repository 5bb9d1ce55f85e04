"""The intermediate values of a model, from runs that output them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.model import inlining, loading, serialization
from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import rounded_name
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

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
    """A model that outputs the values of its main graph; its functions are inlined, as by the rewrite.

    Runs raise MissingPackageError, ModelError and FeedError.
    """

    def __init__(self, model: Runnable, device: Device, libraries: Libraries = ()) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._proto = _inlined_copy(model)

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph, for edits."""
        return self._proto.graph

    @property
    def metadata(self) -> Sequence[onnx.StringStringEntryProto]:
        """The metadata of the model."""
        return self._proto.metadata_props

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """The nodes of the main graph, in order."""
        return self._proto.graph.node

    @property
    def value_names(self) -> dict[str, None]:
        """The names of the outputs of these nodes, in order."""
        return {name: None for node in self.nodes for name in node.output if name}

    def run(self, names: Iterable[str], feeds: Feeds) -> Values:
        """Return those of these values that are dense float tensors, from one run."""
        session = self._session(names, optimised=False)
        selection = {output.name for output in session.get_outputs() if output.type in _FLOATS}
        outputs = sessions.run_session(session, feeds, selection) if selection else {}
        # a sparse value is not an array
        return {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}

    def outputs(self, names: Iterable[str], feeds: Feeds) -> Mapping[str, Any]:
        """Return all of these values, from one run optimised as in a comparison."""
        return sessions.run_session(self._session(names, optimised=True), feeds)

    def _session(self, names: Iterable[str], *, optimised: bool) -> Any:
        _set_outputs(self._proto.graph, names)
        model = self._model
        return sessions.open_session(
            self._proto,
            self._device,
            self._libraries,
            optimised=optimised,
            folder=None if isinstance(model, onnx.ModelProto) else Path(model).parent.absolute(),
        )

    def chunks(self, names: Iterable[str], feeds: Feeds) -> Iterator[Values]:
        """Yield these values chunk by chunk, a run each; a chunk of small values doubles the next."""
        size, rest = CHUNK, iter(names)
        while chunk := list(itertools.islice(rest, size)):
            values = self.run(chunk, feeds)
            yield values
            is_small = sum(value.nbytes for value in values.values()) < SMALL // 2
            size = min(2 * size, _MOST) if is_small else CHUNK


def _inlined_copy(model: Runnable) -> onnx.ModelProto:
    """Return an editable copy with its functions inlined; external data stays in its files."""
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
    """Make these values the graph outputs, with their declared types."""
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    undeclared = {output.name for output in graph.output} - {info.name for info in graph.value_info}
    graph.value_info.extend(infos[name] for name in undeclared)
    outputs = [infos.get(name) or onnx.ValueInfoProto(name=name) for name in names]
    del graph.output[:]
    graph.output.extend(outputs)


@dataclass(frozen=True, slots=True)
class Models:
    """The original, the rewritten model, and the device and the libraries of both."""

    original: Runnable
    rewritten: Runnable
    device: Device
    libraries: Libraries

    def instrumented(self) -> tuple[InstrumentedModel, InstrumentedModel]:
        """Return new copies of both that output values."""
        return (
            InstrumentedModel(self.original, self.device, self.libraries),
            InstrumentedModel(self.rewritten, self.device, self.libraries),
        )


def shared_values(before: InstrumentedModel, after: InstrumentedModel) -> dict[str, str]:
    """Map the main-graph values that both models have to their names in the rewritten one, in order.

    In an emulation that is the rounded value, which all consumers read.
    """
    shared: dict[str, str] = {}
    there = after.value_names
    for name in before.value_names:
        for other in (rounded_name(name), name):
            if other in there:
                shared.setdefault(name, other)
    return shared
