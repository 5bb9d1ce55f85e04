"""The intermediate values of a model, from runs that output them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model import inlining, loading
from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import rounded_name
from amp_rewrite.running.light_model import runnable_proto
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


Instrumented = Callable[[], tuple[InstrumentedModel, InstrumentedModel]]
"""A function that returns new copies of the original and of the rewritten model that output values."""


def shared_values(before: InstrumentedModel, after: InstrumentedModel) -> dict[str, str]:
    """Map the main-graph values that both models have to their names in the rewritten one, in order.

    In an emulation that is the rounded value, which all consumers read.
    """
    shared: dict[str, str] = {}
    there = after.values
    for name in before.values:
        for other in (rounded_name(name), name):
            if other in there:
                shared.setdefault(name, other)
    return shared
