"""Rules for onnxruntime's own operators that fuse what others spell out; keys have the domain in front."""

from __future__ import annotations

import math
from collections.abc import Mapping

from amp_rewrite.bounds.bound import UNKNOWN, Bound, interval, product, summed, symmetric, times
from amp_rewrite.bounds.elementwise import dip, total, with_norms
from amp_rewrite.bounds.normalising import LEAST_EPSILON
from amp_rewrite.bounds.site import Rule, Site


def _normalised(gamma: int, beta: int | None) -> Rule:
    """A norm along the last axis, of a sum of inputs: at most sqrt(n) * gamma + beta."""

    def rule(site: Site) -> Bound:
        weight = site.dims(gamma)
        count = weight[-1] if weight else None
        if not isinstance(count, int) or site.number("epsilon", 1e-12) < LEAST_EPSILON:
            return UNKNOWN
        scaled = times(math.sqrt(count) * summed(count), site.bound(gamma).most)
        has_bias = beta is not None and site.has(beta)
        offset = site.bound(beta).most if beta is not None and has_bias else 0.0
        norm = scaled + (site.spread(beta, 1, count) if beta is not None and has_bias else 0.0)
        return with_norms(symmetric(scaled + offset), [norm])

    return rule


def _total(*ports: int) -> Rule:
    """The sum of the inputs at these ports that are there, along the last axis as well."""

    def rule(site: Site) -> Bound:
        given = [port for port in ports if site.has(port)]
        shape = site.dims(ports[0])
        size = shape[-1] if shape else None
        found = total(*(site.bound(port) for port in given))
        return with_norms(found, [sum(site.spread(port, 1, size) for port in given) * summed(len(given))])

    return rule


def _gated(least: float) -> Rule:
    """x times a gate in [0, 1], of an input with a bias if there is one."""

    def rule(site: Site) -> Bound:
        a = _total(0, 1)(site)
        return with_norms(interval(dip(a.low, least), max(a.high, 0.0)), a.norms)

    return rule


def _quick_gelu(site: Site) -> Bound:
    return _gated(math.inf)(site) if site.number("alpha", 1.702) >= 0 else UNKNOWN


def _values(site: Site) -> Bound:
    """Averages of the values that are not of the past; with a bias or a past nothing is known."""
    past = any(site.has(port) for port in (3, 6, 7))
    return UNKNOWN if past else product(interval(0.0, 1 + 2**-8), site.bound(2))


_MS = "com.microsoft:"
RULES: Mapping[str, Rule] = {
    _MS + "BiasGelu": _gated(0.1701),
    _MS + "EmbedLayerNormalization": _normalised(5, 6),
    _MS + "FastGelu": _gated(0.1701),
    _MS + "Gelu": _gated(0.1701),
    _MS + "MultiHeadAttention": _values,
    _MS + "QuickGelu": _quick_gelu,
    _MS + "SkipLayerNormalization": _normalised(2, 3),
    _MS + "SkipSimplifiedLayerNormalization": _normalised(2, None),
}
FURTHER: Mapping[str, Mapping[int, Rule]] = {
    _MS + "SkipLayerNormalization": {3: _total(0, 1, 4)},
    _MS + "SkipSimplifiedLayerNormalization": {3: _total(0, 1, 3)},
}
"""The rules of outputs that are not the first, by position."""
