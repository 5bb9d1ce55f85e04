"""Where did it go wrong? Both models with their inner values, node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.analysis import unit_building
from amp_rewrite.colouring import patterns
from amp_rewrite.model import inlining, loading
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.onnx_types import schema, shape_inference
from amp_rewrite.rewriting import tidy
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.emulation import emulated, rounded_name
from amp_rewrite.running.intermediate_values import Inside
from amp_rewrite.running.sessions import Device, Feeds, Runnable


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

    def to_keep(self, names: Collection[str]) -> tuple[str, ...]:
        """Those of `names` to keep in float32: the node, and its readers too where the value itself is beyond
        half, or where the node is none of them (one that stores the value).
        """
        alone = self.node in names and not self.non_finite
        found = (self.node,) if alone else (self.node, *self.readers)
        return tuple(name for name in dict.fromkeys(found) if name in names)


@dataclass(frozen=True, slots=True)
class Blame:
    """All nodes that could be compared, those that add most error first.

    `first_lost` is the first node in the order of the graph that makes something not finite; `keep_full` are
    the pins that keep what `worst` is about in float32, none where no pin can.
    """

    nodes: tuple[NodeError, ...]
    first_lost: NodeError | None
    keep_full: tuple[str, ...] = ()

    @property
    def worst(self) -> NodeError | None:
        """The node to look at: the first that is not finite, else the one that adds most error."""
        return self.first_lost or next(iter(self.nodes), None)


def blame(original: Runnable, rewritten: Runnable, feeds: Feeds, *, device: Device | None = None) -> Blame:
    """Runs both with all inner values of the main graph that exist in both, a chunk at a time.

    Functions of the original are inlined, so that nodes have the names that pins take. Raises what
    `inner_values.Inside` raises.
    """
    where = device or sessions.best_device()
    before = Inside(original, where)
    with emulated(rewritten, where) as runnable:
        after = Inside(runnable, where)
        shared = _shared(before, after)
        seen = dict(_seen((name, value, value) for name, value in feeds.items()))
        for wanted in before.chunks(shared, feeds):
            got = after.run([shared[name] for name in wanted], feeds)
            seen.update(_seen((name, value, got.get(shared[name])) for name, value in wanted.items()))
    errors = list(_errors(before.nodes, seen))
    first = next((error for error in errors if error.non_finite), None)
    found = Blame(tuple(sorted(errors, key=lambda e: (-e.non_finite, -e.added))), first)
    return replace(found, keep_full=tuple(_pins(original, found.worst)))


def _pins(original: Runnable, worst: NodeError | None) -> Iterator[str]:
    """What `--keep-full` takes to keep the worst node in float32: it names nodes that have float32 alone."""
    if worst is None:
        return
    model = loading.load(original).model
    inlining.inline(model)
    types = shape_inference.types(model)
    tidy.bypass(model, types)
    names = patterns.pinnable(unit_building.build(model, types))
    for name in worst.to_keep(names):
        yield patterns.pattern_for(name, names)


def _shared(before: Inside, after: Inside) -> dict[str, str]:
    """The values that nodes of the main graph make, in order, and what they are called in the other model.

    In an emulation that is the value after rounding, as all its readers see it.
    """
    made = after.made
    called = {name: next((n for n in (rounded_name(name), name) if n in made), "") for name in before.made}
    return {name: other for name, other in called.items() if other}


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


def _readers(nodes: Iterable[onnx.NodeProto]) -> dict[str, tuple[str, ...]]:
    readers: dict[str, dict[str, None]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, {})[_named(node)] = None
    return {name: tuple(nodes) for name, nodes in readers.items()}


def _errors(nodes: Sequence[onnx.NodeProto], found: Mapping[str, _Seen]) -> Iterator[NodeError]:
    readers = _readers(nodes)
    for node in nodes:
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
