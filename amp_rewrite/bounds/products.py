"""Rules for products and convolutions: Cauchy-Schwarz, norms of weights, and averages."""

from __future__ import annotations

import math
from collections.abc import Mapping

from amp_rewrite.bounds.bound import (
    UNKNOWN,
    Bound,
    hull,
    interval,
    loosened,
    product,
    summed,
    symmetric,
    times,
    widened,
)
from amp_rewrite.bounds.elementwise import with_norms
from amp_rewrite.bounds.known import Dim, Dims, Matrix
from amp_rewrite.bounds.site import NOTHING, Rule, Site
from amp_rewrite.model.constants import dims


def _matmul(site: Site) -> Bound:
    right, left_matrix = site.matrix_of(1), site.matrix_of(0)
    if right is not None:
        return _by_weight(site, 0, 1, right)
    if left_matrix is not None:
        vector = site.rank(1) == 1
        bound = _by_weight(site, 1, 1 if vector else 2, left_matrix.transposed)
        return bound if vector else bound._replace(norms=(math.inf, *bound.norms))
    return _of_two(site)


def _by_weight(site: Site, data: int, axis: int, weight: Matrix) -> Bound:
    """Bound x @ W, where the rows of x lie along axis -`axis`."""
    norm, norms = site.norm(data, axis), weight.norms
    slack = summed(norms.rows)
    most = min(times(norm, norms.column_l2), times(site.bound(data).most, norms.column_l1)) * slack
    if not norm < math.inf:
        return symmetric(most)
    error = (slack - 1) * norms.frobenius  # of |x| |W|, whose norm is not bounded by that of x W
    return with_norms(symmetric(most), [times(norm, weight.spectral + error)])


def _of_two(site: Site) -> Bound:
    """Bound the product of two computed matrices; rows of attention weights average the other operand."""
    a, b = site.bound(0), site.bound(1)
    terms = _terms(site)
    slack = summed(terms)
    vector = site.rank(1) == 1
    if a.sums < math.inf:
        average = product(interval(0.0, a.sums * slack), b)
        return average if vector else with_norms(average, [times(site.norm(1, 1), a.sums) * slack])
    most = times(site.norm(0, 1), site.norm(1, 1 if vector else 2)) * slack
    return symmetric(most)


def _terms(site: Site) -> int | None:
    """Return the length of the contracted axis; None if it is unknown."""
    first, second = site.dims(0), site.dims(1)
    sizes = [shape[-at] for shape, at in ((first, 1), (second, 2)) if shape is not None and len(shape) >= at]
    return next((size for size in sizes if isinstance(size, int)), None)


def _gemm(site: Site) -> Bound:
    is_transposed = site.integer("transA", 0) == 1
    weight = site.matrix_of(1)
    if weight is None:
        a, b = site.norm(0, 2 if is_transposed else 1), site.norm(1, 1 if site.integer("transB", 0) else 2)
        bound = symmetric(times(a, b) * summed(_terms(site)))
    else:
        operand = weight.transposed if site.integer("transB", 0) else weight
        bound = _by_weight(site, 0, 2 if is_transposed else 1, operand)
    return _offset(site, _times(bound, site.number("alpha", 1.0)), site.number("beta", 1.0))


def _times(bound: Bound, factor: float) -> Bound:
    multiple = product(bound, interval(factor, factor))
    return with_norms(multiple, [times(norm, abs(factor)) for norm in bound.norms])


def _offset(site: Site, bound: Bound, factor: float) -> Bound:
    """Add the third input, times a factor."""
    if not site.has(2):
        return bound
    offset = product(site.bound(2), interval(factor, factor))
    whole = _accumulate(bound, offset, _terms(site))
    out = site.out()
    size = out[-1] if out else None
    slack = summed(_terms(site))
    norms = [norm + times(site.spread(2, 1, size), abs(factor)) * slack for norm in bound.norms[:1]]
    return with_norms(whole, norms)


def _accumulate(bound: Bound, offset: Bound, terms: int | None) -> Bound:
    """Return the interval of a sum plus an offset that may be the initial value of its accumulator."""
    whole = widened(bound.low + offset.low, bound.high + offset.high)
    return loosened(whole, times(offset.most, summed(terms) - 1))


def _filter(site: Site) -> tuple[tuple[int, ...], Matrix | None]:
    """Return the shape of a stored filter, and the filter as a matrix with a row for each index of its first
    axis; None for a filter that is not stored.
    """
    tensor = site.stored(1)
    shape = dims(tensor) if tensor is not None else ()
    if len(shape) < 3 or 0 in shape:
        return shape, None
    return shape, site.matrix(1, shape[0], math.prod(shape[1:]))


def _convolution(site: Site) -> Bound:
    """Bound a convolution with filters as rows of a matrix: by their L1 norms, or the norms of patches."""
    shape, weight = _filter(site)
    if weight is None:
        return UNKNOWN
    slack = summed(weight.norms.columns)
    channels = site.norm(0, site.rank(0) - 1) if site.rank(0) > 1 else math.inf
    patch = channels * math.sqrt(math.prod(shape[2:]))
    most = min(times(site.bound(0).most, weight.norms.row_l1), times(patch, weight.norms.row_l2)) * slack
    return _with_bias(site, symmetric(most), weight.norms.columns)


def _transposed_convolution(site: Site) -> Bound:
    """Bound a transposed convolution of any stride: an output sums at most one filter per input channel."""
    shape, weight = _filter(site)
    if weight is None:
        return UNKNOWN
    taps = math.prod(shape[2:])
    most = times(site.bound(0).most, weight.norms.column_l1 * taps) * summed(shape[0] * taps)
    return _with_bias(site, symmetric(most), shape[0] * taps)


def _with_bias(site: Site, bound: Bound, terms: int) -> Bound:
    return _accumulate(bound, site.bound(2), terms) if site.has(2) else bound


def _einsum(site: Site) -> Bound:
    """Bound the products of elements; of a contracted letter, their sum by its size, or by the norms."""
    equation = site.text("equation", "").replace(" ", "")
    operands, _, right = equation.partition("->")
    terms = operands.split(",")
    if "." in equation or not right or any(len(set(term)) < len(term) for term in terms) or len(terms) > 2:
        return UNKNOWN
    product_range = site.bound(0) if len(terms) == 1 else product(site.bound(0), site.bound(1))
    summed_over = set("".join(terms)) - set(right)
    if not summed_over:
        return Bound(product_range.low, product_range.high)
    sizes = [_size_of(site, terms, letter) for letter in summed_over]
    count = math.prod(size for size in sizes if size is not None) if None not in sizes else None
    most = times(product_range.most, count) * summed(count) if count is not None else math.inf
    if len(terms) == 2 and len(summed_over) == 1:
        most = min(most, _scalar_products(site, terms, next(iter(summed_over))) * summed(count))
    return symmetric(most)


def _size_of(site: Site, terms: list[str], letter: str) -> int | None:
    """Return the size of a letter; a size of 1 is broadcast to that of the other operand."""
    sizes = [_size_in(site.dims(port), term, letter) for port, term in enumerate(terms) if letter in term]
    larger = [size for size in sizes if isinstance(size, int) and size != 1]
    return larger[0] if larger else (1 if all(size == 1 for size in sizes) else None)


def _size_in(shape: Dims | None, term: str, letter: str) -> Dim:
    return shape[term.index(letter)] if shape and len(shape) == len(term) else None


def _scalar_products(site: Site, terms: list[str], letter: str) -> float:
    """Return the product of the norms of both operands along a common letter."""
    if not all(letter in term for term in terms):
        return math.inf
    sizes = [_size_in(site.dims(port), term, letter) for port, term in enumerate(terms)]
    if sizes[0] is None or sizes[0] != sizes[1]:
        return math.inf
    first, second = (site.norm(port, len(term) - term.index(letter)) for port, term in enumerate(terms))
    return times(first, second)


def _attention(site: Site) -> Bound:
    """Bound the averages of the values: ONNX's Attention, with queries, keys and values as inputs."""
    values = hull(site.bound(2), site.bound(5)) if site.has(5) else site.bound(2)
    return hull(product(interval(0.0, 1 + 2**-8), values), NOTHING)


RULES: Mapping[str, Rule] = {
    "Attention": _attention,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
