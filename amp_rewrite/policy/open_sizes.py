"""The sizes that open (symbolic or unknown) dimensions of a model's inputs count with: one rule for all.

1. the size that was given by name: `--dim`, `Options.dims`, `Data.dims`
2. the size in the first sample that was given: `--data`, else `--calibrate`
3. the model's declarations: a symbol has one size wherever it occurs
4. DEFAULT

Runs on synthetic inputs use smaller sizes where neither of the first two applies, to save time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.text import nearest

Dims = Mapping[str, int]
"""Sizes of open dimensions, by symbol or as `input:axis`; others count as DEFAULT."""

DEFAULT = 64
"""The default size of an open dimension: between a usual batch and a usual sequence. With 1, an
image would be a pixel, of which most convolutions make nothing, attention would cost nothing beside the
projections around it, and a prediction would count little but kernel launches.
"""


@dataclass(frozen=True, slots=True)
class GivenSizes:
    """Sizes of open dimensions that were given; `origin` completes the sentence "these sizes are ..."."""

    dims: Dims
    origin: str = "given by name"


NONE_GIVEN = GivenSizes({})


def given(name: str, sizes: object) -> GivenSizes:
    """Return the sizes in the option `name`; raises OptionError unless it maps names to sizes."""
    return sizes if isinstance(sizes, GivenSizes) else GivenSizes(arguments.sizes(name, sizes))


class OpenDimensions:
    """The open dimensions of a model's inputs and their sizes; `assumed` names those that are not in `dims`.

    Raises OptionError when `dims` names a dimension that is not open, or gives one axis two sizes.
    """

    def __init__(self, graph: ir.Graph, dims: Dims) -> None:
        spots = dict(_open(graph))
        by_symbol = {symbol: dims[name] for name, symbol in spots.items() if symbol and name in dims}
        self.known: Dims = {**by_symbol, **dims}  # a symbol has the same size in all inputs
        assumed: dict[str, None] = {}
        self._spots: dict[str, int] = {}
        for name, symbol in spots.items():
            size = self.known.get(name, self.known.get(symbol or ""))
            if size is None:
                assumed[symbol or name] = None
            self._spots[name] = DEFAULT if size is None else size
        symbols = dict.fromkeys(symbol for symbol in spots.values() if symbol)
        self._sizes: dict[str | None, int] = {symbol: self.known.get(symbol, DEFAULT) for symbol in symbols}
        self.assumed = tuple(assumed)
        refuse_wrong_sizes(dims, spots, OptionError)

    def given_shape(self, value: ir.Value) -> ir.Shape | None:
        """Return the shape of an input, or of another value with symbols of inputs, with the given sizes;
        other dimensions stay open. None where its rank is unknown.
        """
        if value.shape is None:
            return None
        return ir.Shape([self._given(f"{value.name}:{axis}", dim) for axis, dim in enumerate(value.shape)])

    def _given(self, spot: str, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
        if isinstance(dim, int):
            return dim
        return self.known.get(spot, self.known.get(dim.value or "", dim))

    def of_value(self, value: ir.Value) -> tuple[int | None, ...] | None:
        """Return the declared sizes of a value, with one for each dimension that an input has; None where its
        rank is unknown.
        """
        if value.shape is None:
            return None
        return tuple(
            dim
            if isinstance(dim, int)
            else self._spots.get(f"{value.name}:{axis}", self._sizes.get(dim.value))
            for axis, dim in enumerate(value.shape)
        )


def _open(graph: ir.Graph) -> Iterator[tuple[str, str | None]]:
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                yield f"{value.name}:{axis}", dim.value


def refuse_wrong_sizes(dims: Dims, spots: Mapping[str, str | None], error: type[AmpRewriteError]) -> None:
    """Raise `error` for a size of a dimension that is not open, and for two sizes of one axis.

    `spots` holds the open axes of the inputs as `input:axis`, each with its symbol if it has one.
    """
    names = list(dict.fromkeys(symbol or spot for spot, symbol in spots.items()))
    for name in dims:
        if name not in (*names, *spots):
            near = nearest(name, (*names, *spots))
            offer = f"did you mean {near}?" if near else f"it leaves open {', '.join(names) or 'nothing'}"
            raise error(f"the model has no open dimension '{name}'", remedy=offer)
    for spot, symbol in spots.items():
        if symbol and symbol in dims and spot in dims and dims[symbol] != dims[spot]:
            sizes = f"{symbol} = {dims[symbol]} and {spot} = {dims[spot]}"
            raise error(f"`dims` gives {spot} two sizes: {sizes}", remedy="give one of them")
