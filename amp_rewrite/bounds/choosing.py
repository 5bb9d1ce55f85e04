"""Rules for operators that take elements of their inputs: Max, Min, Where."""

from __future__ import annotations

import math
from collections.abc import Mapping

from amp_rewrite.bounds import exact_copies
from amp_rewrite.bounds.bound import Bound, hull
from amp_rewrite.bounds.elementwise import norms_of, with_norms
from amp_rewrite.bounds.site import Rule, Site


def _largest(site: Site) -> Bound:
    bounds = site.bounds
    return Bound(max(b.low for b in bounds), max(b.high for b in bounds))


def _least(site: Site) -> Bound:
    bounds = site.bounds
    return Bound(min(b.low for b in bounds), min(b.high for b in bounds))


def _select(site: Site) -> Bound:
    a, b = _chosen(site, 1), _chosen(site, 2)
    found = with_norms(
        hull(a, b),
        norms_of(site, lambda axis, size: math.hypot(site.spread(1, axis, size), site.spread(2, axis, size))),
    )
    sums = [site.sums(port) for port, other in ((1, b), (2, a)) if other.low == other.high == 0]
    return found._replace(sums=min(sums, default=math.inf))


_COMPARED = {"Greater": True, "GreaterOrEqual": True, "Less": False, "LessOrEqual": False}


def _chosen(site: Site, port: int) -> Bound:
    """What is chosen at a port: where a comparison of it decides, only numbers on that side."""
    a, node = site.bound(port), exact_copies.maker(site.input(0), site.types, *_COMPARED)
    if node is None or not exact_copies.are_same(node.inputs[0], site.input(port), site.types):
        return a
    limit = site.at(node).bound(1)
    if _COMPARED[node.op_type] == (port == 1):
        return Bound(max(a.low, limit.low), a.high)
    return Bound(a.low, min(a.high, limit.high))


RULES: Mapping[str, Rule] = {"Max": _largest, "Min": _least, "Where": _select}
