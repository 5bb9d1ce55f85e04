"""The number of nodes of a model after inlining its functions, computed without inlining them."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import ModelError
from amp_rewrite.onnx_types import schema

MOST_NODES = 1_000_000
"""Nodes beyond which functions are not inlined: ten times the largest published models, some minutes of work
and gigabytes of memory. The limit is needed, since the number is exponential in the depth of calls.
"""


def refuse_too_many(model: ir.Model, kept: Collection[ir.OperatorIdentifier] = ()) -> None:
    """Raises ModelError if inlining all functions except `kept` results in more than MOST_NODES nodes.

    A model that already has more nodes is accepted if inlining adds none, and so are recursive functions,
    which cannot be inlined at all.
    """
    counted = _count(model, kept)
    if counted is None or counted.nodes <= max(MOST_NODES, counted.written):
        return
    domain, name, _ = counted.worst
    raise ModelError(
        f"the model's functions come to {_shown(counted.nodes)} nodes when they are inlined, "
        f"{schema.written(domain, name)} alone to {_shown(counted.most)}, and {MOST_NODES:,} are the limit",
        remedy="rewrite it with `Options.keep_functions`, which leaves functions as they are",
    )


def node_count(model: ir.Model, kept: Collection[ir.OperatorIdentifier] = ()) -> int:
    """The nodes of a model and its functions after inlining all but `kept`; as written if recursive."""
    counted = _count(model, kept)
    return sum(map(_size, (model.graph, *model.functions.values()))) if counted is None else counted.nodes


@dataclass(frozen=True, slots=True)
class _Count:
    """The number of nodes after inlining, and as written; the largest function after inlining."""

    nodes: int
    written: int
    worst: ir.OperatorIdentifier
    most: int


def _count(model: ir.Model, kept: Collection[ir.OperatorIdentifier]) -> _Count | None:
    """None if functions are recursive.

    Functions that are kept or never called count as well, with the calls in them inlined.
    """
    inlined = model.functions.keys() - set(kept)
    calls = {key: _calls(function, inlined) for key, function in model.functions.items()}
    try:
        order = tuple(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError:
        return None
    own = {key: _size(function) for key, function in model.functions.items()}
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for key in order:
        sizes[key] = own[key] + _added(calls[key], sizes)
    from_graph = _calls(model.graph, inlined)
    reached = set(from_graph)
    for key in reversed(order):  # callers first
        reached.update(calls[key] if key in reached else ())
    remaining = sum(size for key, size in sizes.items() if key not in reached)
    worst = max(sizes, key=sizes.__getitem__, default=("", "", ""))
    written = _size(model.graph)
    nodes = written + _added(from_graph, sizes) + remaining
    return _Count(nodes, written + sum(own.values()), worst, sizes.get(worst, 0))


_Calls = Counter[ir.OperatorIdentifier]


def _calls(holder: ir.Graph | ir.Function, of: Collection[ir.OperatorIdentifier]) -> _Calls:
    return Counter(key for node in holder.all_nodes() if (key := node.op_identifier()) in of)


def _added(calls: _Calls, sizes: dict[ir.OperatorIdentifier, int]) -> int:
    """How many nodes inlining these calls adds: those of the function, less the call itself."""
    return sum(count * (sizes[key] - 1) for key, count in calls.items())


def _size(holder: ir.Graph | ir.Function) -> int:
    return sum(1 for _ in holder.all_nodes())


def _shown(count: int) -> str:
    """The number as text; an enormous one as a power of two."""
    return f"{count:,}" if count < _ENORMOUS else f"2^{count.bit_length() - 1} or more"


_ENORMOUS = 10**15
