"""Products in half of bounded operands over an open size: long inputs may overflow half."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.intervals import times
from amp_rewrite.model.patterns import source
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema


def find(graph: UnitGraph, is_half: Callable[[int], bool]) -> Mapping[ir.Node, str]:
    """Return the products in half over an open size of an input, but for those of attention weights, each
    with the symbol of that size.
    """
    symbols = {str(size) for value in graph.root.inputs for size in value.shape or () if _is_open(size)}
    units = graph.units_of("MatMul", "Einsum") if symbols else ()
    products: dict[ir.Node, str] = {}
    for node in (unit.node for unit in units if is_half(unit.index)):
        shapes = [list(graph.shape(value) or ()) for value in node.inputs]
        is_product = len(shapes) == 2 and all(shapes) and not _averages(node)
        sizes = _contracted(node, *shapes) if is_product else []
        names = [str(size) for size in sizes if str(size) in symbols]
        if names and all(map(_is_open, sizes)):
            products[node] = names[0]
    return products


def _is_open(size: object) -> bool:
    return isinstance(size, ir.SymbolicDim) and size.value is not None


def _averages(node: ir.Node) -> bool:
    """Return whether an operand is a softmax, rearranged or not: its rows sum to 1."""
    makers = (source(value).producer() for value in node.inputs if value is not None)
    return any(maker is not None and maker.op_type == "Softmax" for maker in makers)


_Sizes = list["int | ir.SymbolicDim"]


def _contracted(node: ir.Node, left: _Sizes, right: _Sizes) -> _Sizes:
    """Return the sizes of the contracted axes."""
    if node.op_type == "MatMul":
        return [left[-1], right[-2] if len(right) > 1 else right[-1]]
    terms, _, result = schema.text(node, "equation").replace(" ", "").partition("->")
    letters = zip(terms.replace(",", ""), (*left, *right), strict=False) if "." not in terms else ()
    return [size for letter, size in letters if letter not in result]


def warnings(products: Mapping[ir.Node, str], proven: Proven, half: Half) -> Iterator[str]:
    """Yield a warning that names the product that overflows half with the fewest terms; none if no operands
    are bounded, or the sums are.
    """
    terms = {node: half.largest / most for node in products if 0 < (most := _most(node, proven)) < math.inf}
    first = min(terms, key=terms.__getitem__, default=None)
    if first is not None and terms[first] < 1 << 31:  # no axis is longer
        name, symbol = first.name or first.outputs[0].name, products[first]
        yield (
            f"{first.op_type} '{name}' adds up {symbol}, which is open: from {terms[first]:,.0f} on it may "
            f"overflow {half.name}; give the size with `Options.dims`"
        )


def _most(node: ir.Node, proven: Proven) -> float:
    """Return the bound of a term of a product; infinity without one, or if the product is bounded."""
    left, right = (proven.of(value) for value in node.inputs)
    return math.inf if proven.of(node.outputs[0]).most < math.inf else times(left.most, right.most)
