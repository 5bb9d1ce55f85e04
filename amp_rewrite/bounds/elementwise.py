"""Rules for arithmetic on elements: sums and products of intervals, and of norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.bounds import exact_copies
from amp_rewrite.bounds.bound import (
    ELEMENTWISE,
    LEAST,
    MOST,
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
from amp_rewrite.bounds.site import Rule, Site

SWISH = 0.2785
"""How far below 0 x * sigmoid(x) can be, of any x."""
GATE_ERROR = 2.0**-22
"""What a computed gate can differ by from the true one, whatever its size: four times float32's roundoff."""


def with_norms(found: Bound, norms: Iterable[float]) -> Bound:
    """The bound with these norms, rounded up, and no element above the least of them.

    A norm that float32 does not hold bounds nothing, as elements may be infinite; at the end it is left out.
    """
    kept = [_upwards(norm) for norm in norms]
    while kept and not kept[-1] < math.inf:
        kept.pop()
    if not kept:
        return found
    least = min(kept)
    return Bound(max(found.low, -least), min(found.high, least), tuple(kept), found.sums)


def _upwards(norm: float) -> float:
    if norm == 0:
        return 0.0
    return max(norm * ELEMENTWISE, LEAST) if norm < MOST else math.inf


def norms_of(site: Site, along: Callable[[int, int | str | None], float]) -> list[float]:
    """What `along` says for every axis of the output, from its number (counted from the end) and its size."""
    out = site.out()
    return [] if out is None else [along(axis, out[-axis]) for axis in range(1, len(out) + 1)]


def _add(site: Site) -> Bound:
    a, b = site.bound(0), site.bound(1)
    found = widened(a.low + b.low, a.high + b.high)
    return with_norms(
        found, norms_of(site, lambda axis, size: site.spread(0, axis, size) + site.spread(1, axis, size))
    )


def _subtract(site: Site) -> Bound:
    a, b = site.bound(0), site.bound(1)
    found = widened(a.low - b.high, a.high - b.low)
    reduced = exact_copies.maker(site.input(1), site.types, "ReduceMean", "ReduceMax")
    if reduced is not None and _is_of(reduced, site):
        if reduced.op_type == "ReduceMax":
            return interval(found.low, 0.0)
        return with_norms(found, _centred(site, reduced))
    return with_norms(
        found, norms_of(site, lambda axis, size: site.spread(0, axis, size) + site.spread(1, axis, size))
    )


def _is_of(reduced: ir.Node, site: Site) -> bool:
    """Whether a reduction that keeps its axes is of the first input."""
    same = exact_copies.are_same(reduced.inputs[0], site.input(0), site.types)
    return same and reduced.attributes.get_int("keepdims", 1) == 1


def _centred(site: Site, reduced: ir.Node) -> list[float]:
    """Norms of data from which their mean was taken: along the one axis that was reduced they do not grow."""
    axes = site.at(reduced).axes()
    rank = site.rank(0)
    if axes is None or len(axes) != 1 or not rank:
        return []
    along = -axes[0] if axes[0] < 0 else rank - axes[0]
    return [site.norm(0, axis) * summed(None) if axis == along else math.inf for axis in range(1, rank + 1)]


def _multiply(site: Site) -> Bound:
    normalised = site.normalised()
    if normalised is not None:
        return normalised
    a, b = site.bound(0), site.bound(1)
    if exact_copies.are_same(site.input(0), site.input(1), site.types):
        return _square(a)
    found = product(a, b)
    gated = a if _is_gate(site.input(1), site.input(0)) else b if _is_gate(*site.node.inputs) else None
    if gated is not None:
        found = interval(max(found.low, dip(gated.low, SWISH)), found.high)
    found = with_norms(found, norms_of(site, lambda axis, size: _scaled(site, axis, size)))
    return found._replace(sums=_weighed(site))


def _square(a: Bound) -> Bound:
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return widened(times(least, least), times(a.most, a.most))


def _is_gate(gate: ir.Value | None, data: ir.Value | None) -> bool:
    """Whether a value is the sigmoid of the other one."""
    node = gate.producer() if gate is not None else None
    return node is not None and not node.domain and node.op_type == "Sigmoid" and node.inputs[0] is data


def dip(low: float, least: float) -> float:
    """The least that x times a gate of it can be, of x from `low` on, where it is never below -`least`."""
    return max(min(low, 0.0), -least * ELEMENTWISE + min(low, 0.0) * GATE_ERROR)


def _scaled(site: Site, axis: int, size: int | str | None) -> float:
    return min(
        times(site.spread(0, axis, size), site.bound(1).most),
        times(site.bound(0).most, site.spread(1, axis, size)),
    )


def _weighed(site: Site) -> float:
    """The sum of rows that are multiplied by numbers of at least 0."""
    pairs = ((site.sums(0), site.bound(1)), (site.sums(1), site.bound(0)))
    return min((times(sums, b.high) * ELEMENTWISE for sums, b in pairs if b.low >= 0), default=math.inf)


def _divide(site: Site) -> Bound:
    normalised = site.normalised()
    if normalised is not None:
        return normalised
    inverse = reciprocal(site.bound(1))
    found = product(site.bound(0), inverse)
    return with_norms(
        found, norms_of(site, lambda axis, size: times(site.spread(0, axis, size), inverse.most))
    )


def reciprocal(a: Bound) -> Bound:
    """The interval of 1 / x; nothing bounds it where x may be 0, of either sign."""
    return widened(1 / a.high, 1 / a.low) if a.low > 0 or a.high < 0 else UNKNOWN


def _power(site: Site) -> Bound:
    exponents = site.numbers(1)
    a = site.bound(0)
    if exponents is None or len(exponents) != 1:
        return UNKNOWN
    exponent = exponents[0]
    if exponent == 2:
        return _square(a)
    if exponent > 0 and exponent == int(exponent) and int(exponent) % 2:
        return widened(_raised(a.low, exponent), _raised(a.high, exponent))
    low = _raised(max(a.low, 0.0), exponent)
    high = _raised(a.most if exponent == int(exponent) else max(a.high, 0.0), exponent)
    if exponent >= 0:
        return widened(low if a.low >= 0 else 0.0, high)
    return widened(0.0, low) if a.low > 0 else UNKNOWN


def _raised(base: float, exponent: float) -> float:
    if math.isinf(base):
        return 0.0 if exponent < 0 else base
    try:
        return float(base**exponent)
    except OverflowError:
        return math.copysign(math.inf, base)
    except ZeroDivisionError:
        return math.inf


def _sum(site: Site) -> Bound:
    return total(*site.bounds)


def total(*bounds: Bound) -> Bound:
    """The interval of a sum in any order; of three terms the error is relative to their magnitudes."""
    found = widened(sum(b.low for b in bounds), sum(b.high for b in bounds))
    error = summed(len(bounds)) - 1
    return found if len(bounds) < 3 else loosened(found, times(sum(b.most for b in bounds), error))


def _mean(site: Site) -> Bound:
    found = hull(*site.bounds)
    return loosened(found, times(found.most, summed(len(site.bounds)) - 1))


def _modulo(site: Site) -> Bound:
    return symmetric(site.bound(1).most)


RULES: Mapping[str, Rule] = {
    "Add": _add,
    "Div": _divide,
    "Mean": _mean,
    "Mod": _modulo,
    "Mul": _multiply,
    "Pow": _power,
    "Sub": _subtract,
    "Sum": _sum,
}
