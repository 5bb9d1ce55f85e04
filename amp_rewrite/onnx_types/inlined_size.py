"""Calls of model-local functions: how many nodes they come to, counted without inlining one."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import ModelError
from amp_rewrite.onnx_types import schema

MOST_NODES = 1_000_000
"""Nodes beyond which functions are not inlined: ten times the largest published models, and some minutes of
work and gigabytes of memory. A few functions that each call the one before twice come to any number.
"""


def refuse_too_many(model: ir.Model, kept: Collection[ir.OperatorIdentifier] = ()) -> None:
    """ModelError when inlining all functions but those that are `kept` would make more than MOST_NODES nodes.

    A model that has as many is its own measure. Functions that call themselves are let pass: they have no
    end, and cannot be inlined at all.
    """
    counted = count(model, kept)
    if counted is None or counted.nodes <= max(MOST_NODES, counted.written):
        return
    domain, name, _ = counted.worst
    raise ModelError(
        f"the model's functions come to {_number(counted.nodes)} nodes when they are inlined, "
        f"{schema.written(domain, name)} alone to {_number(counted.most)}, and {MOST_NODES:,} are the limit",
        remedy="rewrite it with `Options.keep_functions`, which leaves functions as they are",
    )


def total(model: ir.Model) -> int:
    """The nodes of a model, with those that its calls come to; functions that call themselves count once."""
    counted = count(model, ())
    return sum(map(_size, (model.graph, *model.functions.values()))) if counted is None else counted.nodes


@dataclass(frozen=True, slots=True)
class Count:
    """Nodes once all is inlined, and nodes as they stand; the function that comes to the most of them."""

    nodes: int
    written: int
    worst: ir.OperatorIdentifier
    most: int


def count(model: ir.Model, kept: Collection[ir.OperatorIdentifier]) -> Count | None:
    """None where functions call themselves.

    What nobody calls, and what stays, has its calls inlined all the same: it counts by itself.
    """
    inlined = model.functions.keys() - set(kept)
    called = {key: _calls(function, inlined) for key, function in model.functions.items()}
    try:
        order = tuple(graphlib.TopologicalSorter(called).static_order())
    except graphlib.CycleError:
        return None
    own = {key: _size(function) for key, function in model.functions.items()}
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for key in order:
        sizes[key] = own[key] + _added(called[key], sizes)
    at_first = _calls(model.graph, inlined)
    reached = _reached(at_first, called)
    loose = sum(size for key, size in sizes.items() if key not in reached)
    worst = max(sizes, key=sizes.__getitem__, default=("", "", ""))
    written = _size(model.graph)
    nodes = written + _added(at_first, sizes) + loose
    return Count(nodes, written + sum(own.values()), worst, sizes.get(worst, 0))


def _calls(holder: ir.Graph | ir.Function, of: Collection[ir.OperatorIdentifier]) -> _Calls:
    return Counter(key for node in holder.all_nodes() if (key := node.op_identifier()) in of)


_Calls = Counter[ir.OperatorIdentifier]


def _added(calls: _Calls, sizes: dict[ir.OperatorIdentifier, int]) -> int:
    """What calls add: each stands for the nodes of the function, and is one no more."""
    return sum(count * (sizes[key] - 1) for key, count in calls.items())


def _size(holder: ir.Graph | ir.Function) -> int:
    return sum(1 for _ in holder.all_nodes())


def _reached(
    calls: Iterable[ir.OperatorIdentifier], called: dict[ir.OperatorIdentifier, _Calls]
) -> set[ir.OperatorIdentifier]:
    found, ahead = set[ir.OperatorIdentifier](), list(calls)
    while ahead:
        key = ahead.pop()
        if key not in found:
            found.add(key)
            ahead.extend(called[key])
    return found


def _number(count: int) -> str:
    """A number for people; one beyond all sense as a power of two."""
    return f"{count:,}" if count < _BEYOND_SENSE else f"2^{count.bit_length() - 1} or more"


_BEYOND_SENSE = 10**15
