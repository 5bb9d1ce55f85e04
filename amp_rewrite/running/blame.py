"""Where did it go wrong? Both models with their inner values, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.half import FLOAT16
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.emulation import emulated, rounded_name
from amp_rewrite.running.sessions import Device, Feeds, Runnable

CHUNK = 64
"""How many inner values one run gives out: what bounds the memory, whatever the size of the graph."""


@dataclass(frozen=True, slots=True)
class NodeError:
    """What a node of the original makes, compared with what the rewritten model has in its place.

    `error` is the relative L2 error of the value, `added` what of it the node adds to the worst of its
    inputs. `non_finite` counts values that are finite in the original only. `low` and `high` bound what the
    node reads in the rewritten model. `readers` are the nodes that read the value; a node without a name
    goes by what it makes.
    """

    node: str
    operator: str
    value: str
    error: float
    added: float
    non_finite: int
    low: float
    high: float
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

    Raises MissingPackageError, ModelError and FeedError as a run does.
    """
    where = device or sessions.best_device()
    before = _proto(original)
    with emulated(rewritten, where) as runnable:
        after = _proto(runnable)
        shared = _shared(before, after)
        found: dict[str, _Seen] = {}
        for names in _chunks(list(shared)):
            wanted = _run_with(original, before, names, feeds, where)
            got = _run_with(runnable, after, [shared[name] for name in names], feeds, where)
            compared = ((name, _see(wanted[name], got[shared[name]])) for name in names)
            found.update((name, seen) for name, seen in compared if seen is not None)
    errors = list(_errors(before, found))
    first = next((error for error in errors if error.non_finite), None)
    return Blame(tuple(sorted(errors, key=lambda e: (-e.non_finite, -e.added))), first)


def _chunks(names: list[str]) -> Iterator[list[str]]:
    return (names[start : start + CHUNK] for start in range(0, len(names), CHUNK))


def _proto(model: Runnable) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    return onnx.load(str(model), load_external_data=False)


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
    """One run that gives out these values as well."""
    opened = onnx.ModelProto()
    opened.CopyFrom(proto)
    have = {output.name for output in opened.graph.output}
    opened.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    if isinstance(model, onnx.ModelProto) or not _is_external(proto):
        return sessions.run(opened, feeds, device)
    beside = Path(model).with_name(f".{Path(model).name}.blame")
    try:
        beside.write_bytes(opened.SerializeToString())
        return sessions.run(beside, feeds, device)
    finally:
        beside.unlink(missing_ok=True)


def _is_external(proto: onnx.ModelProto) -> bool:
    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer)


@dataclass(frozen=True, slots=True)
class _Seen:
    error: float
    non_finite: int
    low: float
    high: float


def _see(wanted: Any, got: Any) -> _Seen | None:
    """How far a value is off, and what bounds it; None for what is no float tensor of one shape."""
    if not isinstance(wanted, np.ndarray) or wanted.dtype.kind != "f":
        return None
    if not isinstance(got, np.ndarray) or got.shape != wanted.shape or not got.size:
        return None
    measured = metrics.measure(np.where(_is_mask(wanted, got), got, wanted), got)
    finite = got[np.isfinite(got)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)
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
                    operator=f"{node.domain}:{node.op_type}" if node.domain else node.op_type,
                    value=name,
                    error=seen.error,
                    added=seen.error - entering,
                    non_finite=seen.non_finite if not any(r.non_finite for r in read) else 0,
                    low=min((r.low for r in read), default=np.nan),
                    high=max((r.high for r in read), default=np.nan),
                    readers=readers.get(name, ()),
                )
