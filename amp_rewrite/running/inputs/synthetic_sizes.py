"""The shapes of synthetic inputs: a size for each dimension that the model leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_rewrite.errors import FeedError
from amp_rewrite.flops.open_dimensions import refuse_wrong_sizes
from amp_rewrite.running.inputs.consumers import Consumers
from amp_rewrite.running.inputs.model_inputs import Input
from amp_rewrite.running.inputs.synthetic_size_rules import RULES, Key, OpenDim, Shape, size_of


def shapes(inputs: Sequence[Input], dims: Mapping[str, int], consumers: Consumers) -> dict[str, Shape]:
    """The shape of every input of known rank, by name; a symbol has the same size everywhere.

    `dims` gives sizes by symbol or as `input:axis`. Raises FeedError if it has a name that is not open, or
    two sizes for one axis.
    """
    open_dims = list(_open_dims(inputs, consumers))
    refuse_wrong_sizes(dims, {d.label: d.symbol for d in open_dims}, FeedError)
    labelled = {(d.input.name, d.axis): dims[d.label] for d in open_dims if d.label in dims}
    found: dict[Key, int] = {d.key: dims[d.label] for d in open_dims if d.label in dims}
    found |= {symbol: dims[symbol] for d in open_dims if (symbol := d.symbol) and symbol in dims}
    for rule in RULES:
        for dim in open_dims:
            size = None if dim.key in found else rule(dim, found)
            if size is not None:
                found[dim.key] = size
    return {
        i.name: tuple(labelled.get((i.name, axis), size_of(i, axis, found, 1)) for axis in range(len(i.dims)))
        for i in inputs
        if i.dims is not None
    }


def open_sizes(inputs: Sequence[Input], dims: Mapping[str, int], consumers: Consumers) -> dict[str, int]:
    """The size of every open dimension in `shapes`, by its name in `dims`."""
    found = shapes(inputs, dims, consumers)
    return {d.symbol or d.label: found[d.input.name][d.axis] for d in _open_dims(inputs, consumers)}


def _open_dims(inputs: Sequence[Input], consumers: Consumers) -> Iterator[OpenDim]:
    for declared in inputs:
        for axis, dim in enumerate(declared.dims or ()):
            if not isinstance(dim, int):
                yield OpenDim(declared, axis, dim, inputs, consumers)
