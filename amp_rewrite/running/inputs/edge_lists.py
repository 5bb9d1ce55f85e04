"""Graphs as inputs: a list of edges is an integer input with two rows, of which the model takes one."""

from __future__ import annotations

from collections.abc import Iterable

from amp_rewrite.running.inputs.consumers import Consumers
from amp_rewrite.running.inputs.model_inputs import Input

_ROWS = 2
_TAKES_ROWS = frozenset((("Gather", 0), ("Slice", 0), ("Split", 0), ("Squeeze", 0)))


def counts_items(declared: Input, axis: int, inputs: Iterable[Input], consumers: Consumers) -> bool:
    """Whether an axis counts nodes or edges: that of the edges, and the first of a table beside them."""
    if _is_edge_list(declared, consumers):
        return axis == 1
    is_table = axis == 0 and len(declared.dims or ()) <= 2  # with three axes, it may count graphs
    return is_table and any(_is_edge_list(other, consumers) for other in inputs)


def _is_edge_list(declared: Input, consumers: Consumers) -> bool:
    dims = declared.dims or ()
    if len(dims) != 2 or dims[0] != _ROWS or isinstance(dims[1], int):
        return False
    is_integer = declared.dtype is not None and declared.dtype.is_integer()
    return is_integer and any(use.key in _TAKES_ROWS for use in consumers.of(declared.value))
