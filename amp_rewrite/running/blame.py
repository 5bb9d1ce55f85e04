"""Where did it go wrong? Both models with their inner values, node by node."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite import external, inlining, model_io, schema, writing
from amp_rewrite.errors import OutputError
from amp_rewrite.half import FLOAT16
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.emulation import emulated, rounded_name
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


@dataclass(frozen=True, slots=True)
class NodeError:
    """What a node of the original makes, compared with what the rewritten model has in its place.

    `error` is the relative L2 error of the value, `added` what of it the node adds to the worst of its
    inputs. `non_finite` counts values that are NaN or infinite in one of the two alone. `low` and `high`
    bound what the node reads in the rewritten model; None where none of it is finite, or was looked at.
    `readers` are the nodes that read the value; a node without a name goes by what it makes.
    """

    node: str
    operator: str
    value: str
    error: float
    added: float
    non_finite: int
    low: float | None
    high: float | None
    readers: tuple[str, ...]

    @property
    def keep_full(self) -> tuple[str, ...]:
        """What to keep in float32: the node, and its readers too where the value itself is beyond half."""
        return (self.node, *self.readers) if self.non_finite else (self.node,)


@dataclass(frozen=True, slots=True)
class Blame:
    """All nodes that could be compared, those that add most error first.

    `first_lost` is the first node in the order of the graph that makes something not finite.
    """

    nodes: tuple[NodeError, ...]
    first_lost: NodeError | None

    @property
    def worst(self) -> NodeError | None:
        """The node to look at: the first that is not finite, else the one that adds most error."""
        return self.first_lost or next(iter(self.nodes), None)


def blame(original: Runnable, rewritten: Runnable, feeds: Feeds, *, device: Device | None = None) -> Blame:
    """Runs both with all inner values of the main graph that exist in both, a chunk at a time.

    Functions of the original are inlined, as the rewrite does it, so that nodes have the names that pins
    take. Raises MissingPackageError, ModelError and FeedError as a run does, and OutputError where the
    folder of a model with external data cannot be written to.
    """
    where = device or sessions.best_device()
    before = _inlined(original)
    with emulated(rewritten, where) as runnable:
        after = _proto(runnable)
        shared = _shared(before, after)
        found = dict(_seen((name, value, value) for name, value in feeds.items()))
        size, rest = CHUNK, iter(shared)
        while names := list(itertools.islice(rest, size)):
            wanted = _run_with(original, before, names, feeds, where)
            got = _run_with(runnable, after, [shared[name] for name in names], feeds, where)
            found.update(_seen((name, wanted.get(name), got.get(shared[name])) for name in names))
            size = _next_size(size, wanted.values())
    errors = list(_errors(before, found))
    first = next((error for error in errors if error.non_finite), None)
    return Blame(tuple(sorted(errors, key=lambda e: (-e.non_finite, -e.added))), first)


def _next_size(size: int, values: Iterable[NDArray[Any]]) -> int:
    """Twice as many for the next chunk where this one was small, else as many as at first."""
    return min(2 * size, _MOST) if sum(value.nbytes for value in values) < _SMALL // 2 else CHUNK


def _inlined(model: Runnable) -> onnx.ModelProto:
    proto = _proto(model)
    if not proto.functions:
        return proto
    loaded = model_io.load(model)
    inlining.inline(loaded.model)
    return writing.to_proto(loaded)


def _proto(model: Runnable) -> onnx.ModelProto:
    """A copy that is ours to change; external data stays outside."""
    if not isinstance(model, onnx.ModelProto):
        return onnx.load(str(model), load_external_data=False)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _shared(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, str]:
    """The values that nodes of the main graph make, in order, and what they are called in the other model.

    In an emulation that is the value after rounding, as all its readers see it.
    """
    made = {name for node in after.graph.node for name in node.output}
    names = [name for node in before.graph.node for name in node.output if name]
    called = {name: next((n for n in (rounded_name(name), name) if n in made), "") for name in names}
    return {name: other for name, other in called.items() if other}


def _run_with(
    model: Runnable, proto: onnx.ModelProto, names: Sequence[str], feeds: Feeds, device: Device
) -> dict[str, Any]:
    """What a run makes of these values: those of them that are tensors of floats."""
    _give_out(proto.graph, names)
    with _beside(model, proto) as runnable:
        session = sessions.open_plain_session(runnable, device)
        floats = {output.name for output in session.get_outputs() if output.type in _FLOATS}
        return sessions.run_session(session, feeds, floats) if floats else {}


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
    if isinstance(model, onnx.ModelProto) or external.KEY not in data:
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


@dataclass(frozen=True, slots=True)
class _Seen:
    error: float
    non_finite: int
    low: float | None
    high: float | None


def _seen(values: Iterable[tuple[str, Any, Any]]) -> Iterator[tuple[str, _Seen]]:
    for name, wanted, got in values:
        seen = _see(wanted, got)
        if seen is not None:
            yield name, seen


def _see(wanted: Any, got: Any) -> _Seen | None:
    """How far a value is off, and what bounds it; None for what is no float tensor of one shape."""
    if not isinstance(wanted, np.ndarray) or not metrics.is_float(wanted):
        return None
    if not isinstance(got, np.ndarray) or got.shape != wanted.shape or not got.size:
        return None
    measured = metrics.measure(np.where(_is_mask(wanted, got), got, wanted), got)
    finite = got[np.isfinite(got)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    return _Seen(measured.relative_l2, measured.non_finite, low, high)


def _is_mask(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a fill far beyond float16 was brought into its range: that is no error, it was meant."""
    return (np.abs(wanted) > FLOAT16.largest) & (np.abs(got) >= FLOAT16.fill / 2) & np.isfinite(got)


def _named(node: onnx.NodeProto) -> str:
    return node.name or next((name for name in node.output if name), "")


def _readers(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    readers: dict[str, dict[str, None]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, {})[_named(node)] = None
    return {name: tuple(nodes) for name, nodes in readers.items()}


def _errors(before: onnx.ModelProto, found: Mapping[str, _Seen]) -> Iterator[NodeError]:
    readers = _readers(before.graph)
    for node in before.graph.node:
        read = [found[name] for name in node.input if name in found]
        entering = max((seen.error for seen in read), default=0.0)
        for name in node.output:
            seen = found.get(name)
            if seen is not None:
                yield NodeError(
                    node=_named(node),
                    operator=schema.written(node.domain, node.op_type),
                    value=name,
                    error=seen.error,
                    added=seen.error - entering,
                    non_finite=seen.non_finite if not any(r.non_finite for r in read) else 0,
                    low=min((r.low for r in read if r.low is not None), default=None),
                    high=max((r.high for r in read if r.high is not None), default=None),
                    readers=readers.get(name, ()),
                )
