"""The open (symbolic or unknown) dimensions of a model's inputs, and a size for each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.errors import AmpRewriteError, OptionError

Dims = Mapping[str, int]
"""Sizes of open dimensions, by symbol or as `input:axis`; others count as ASSUMED."""

ASSUMED = 1
"""The size of an open dimension that is not given: FLOPs are then per sample, per token."""


class OpenDimensions:
    """The open dimensions of a model's inputs and their sizes; `assumed` names those that are not in `dims`.

    Raises OptionError when `dims` names what is not open, or gives one axis two sizes.
    """

    def __init__(self, graph: ir.Graph, dims: Dims) -> None:
        spots = dict(_open(graph))
        given = {symbol: dims[name] for name, symbol in spots.items() if symbol and name in dims}
        known = {**given, **dims}  # a symbol has the same size in all inputs
        assumed: dict[str, None] = {}
        self._spots: dict[str, int] = {}
        for name, symbol in spots.items():
            size = known.get(name, known.get(symbol or ""))
            if size is None:
                assumed[symbol or name] = None
            self._spots[name] = ASSUMED if size is None else size
        symbols = dict.fromkeys(symbol for symbol in spots.values() if symbol)
        self._sizes = {symbol: known.get(symbol, ASSUMED) for symbol in symbols}
        self.assumed = tuple(assumed)
        refuse_wrong_sizes(dims, spots, OptionError)

    def of_symbol(self, symbol: str | None) -> int | None:
        """The size of a symbol; None for one that is not a dimension of an input."""
        return self._sizes.get(symbol) if symbol else None

    def of_input(self, value: ir.Value) -> list[int] | None:
        """The dimensions of an input, with a size for each; None where its rank is unknown."""
        if value.shape is None:
            return None
        return [
            dim if isinstance(dim, int) else self._spots[f"{value.name}:{axis}"]
            for axis, dim in enumerate(value.shape)
        ]


def _open(graph: ir.Graph) -> Iterator[tuple[str, str | None]]:
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                yield f"{value.name}:{axis}", dim.value


def refuse_wrong_sizes(dims: Dims, spots: Mapping[str, str | None], error: type[AmpRewriteError]) -> None:
    """Raises `error` for a size of a dimension that is not open, and for two sizes of one axis.

    `spots` holds the open axes of the inputs as `input:axis`, each with its symbol if it has one.
    """
    names = list(dict.fromkeys(symbol or spot for spot, symbol in spots.items()))
    for name in dims:
        if name not in (*names, *spots):
            near = difflib.get_close_matches(name, (*names, *spots), n=1)
            offer = f"did you mean {near[0]}?" if near else f"it leaves open {', '.join(names) or 'nothing'}"
            raise error(f"the model has no open dimension '{name}'", remedy=offer)
    for spot, symbol in spots.items():
        if symbol and symbol in dims and spot in dims and dims[symbol] != dims[spot]:
            sizes = f"{symbol} = {dims[symbol]} and {spot} = {dims[spot]}"
            raise error(f"`dims` gives {spot} two sizes: {sizes}", remedy="give one of them")
