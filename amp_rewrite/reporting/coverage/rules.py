"""What a CI asks of a coverage, and which nodes break it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amp_rewrite import schema
from amp_rewrite.contrib import CONTRIB
from amp_rewrite.errors import OptionError
from amp_rewrite.reporting.coverage.counts import Counts, Coverage, Part
from amp_rewrite.reporting.coverage.precision import Precision
from amp_rewrite.reporting.sentences import plural

TOLERANCE = 0.01
"""How far a share may fall below that of a baseline: a point in a hundred, if nothing else is asked."""

_EXACT = 1e-9
"""Shares are quotients of whole numbers: what is nearer than this to a bound has reached it."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Shares that must not fall: of FLOPs, nodes and weights, and of the nodes of each operator.

    `where` names the file that they are from, `dims` the sizes that they were counted with.
    """

    where: str
    shares: Mapping[str, float]
    operators: Mapping[str, float]
    dims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked; what is None or empty is not. Shares are of floats, from 0 to 1.

    `require` asks for a share of an operator's nodes in half, `forbid_half` for none of them.
    """

    min_flops: float | None = None
    min_nodes: float | None = None
    min_weights: float | None = None
    require: Mapping[str, float] = field(default_factory=dict[str, float])
    forbid_half: tuple[str, ...] = ()
    max_casts: int | None = None
    baseline: Baseline | None = None
    tolerance: float = TOLERANCE


@dataclass(frozen=True, slots=True)
class Check:
    """One rule held against a model: what was asked, what was found, and the nodes that break it.

    For a rule on weights these are the weights.
    """

    rule: str
    ok: bool
    found: str
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"rule": self.rule, "ok": self.ok, "found": self.found, "nodes": list(self.nodes)}


def check(coverage: Coverage, rules: Rules) -> tuple[Check, ...]:
    """Every rule with its verdict, in a fixed order.

    A share of nothing (a model without floats, or without the operator) breaks no rule. Raises OptionError
    for an operator that neither the model nor any schema has, and for a baseline of other dimensions.
    """
    _refuse_unknown(coverage, (*rules.require, *rules.forbid_half))
    return tuple(_checks(coverage, rules))


def _checks(coverage: Coverage, rules: Rules) -> Iterator[Check]:
    for what, bound in (
        ("flops", rules.min_flops),
        ("nodes", rules.min_nodes),
        ("weights", rules.min_weights),
    ):
        if bound is not None:
            yield _at_least(coverage, what, bound)
    for operator, bound in rules.require.items():
        yield _required(coverage, operator, bound)
    for operator in rules.forbid_half:
        yield _forbidden(coverage, operator)
    if rules.max_casts is not None:
        yield _casts(coverage, rules.max_casts)
    if rules.baseline is not None:
        yield from _against(coverage, rules.baseline, rules.tolerance)


_UNITS = {"flops": "FLOPs", "nodes": "nodes", "weights": "weight bytes"}


def _counts(coverage: Coverage, what: str) -> Counts:
    return {"flops": coverage.flops, "nodes": coverage.nodes, "weights": coverage.weights}[what]


def _at_least(coverage: Coverage, what: str, bound: float) -> Check:
    counts = _counts(coverage, what)
    found = f"{percent(counts.share)} of {_UNITS[what]} in half"
    nodes = _in_the_way(coverage, what)
    return _verdict(f"min-{what} {bound:g}", _reaches(counts.share, bound), found, nodes)


def _required(coverage: Coverage, operator: str, bound: float) -> Check:
    parts = [part for part in coverage.parts if part.operator == operator]
    row = coverage.row(operator)
    share = row.nodes.share if row else None
    found = f"{percent(share)} of {plural(len(parts), f'{operator} node')} in half"
    return _verdict(f"require {operator}={bound:g}", _reaches(share, bound), found, _outside(parts))


def _forbidden(coverage: Coverage, operator: str) -> Check:
    halves = (Precision.HALF, Precision.MIXED)
    parts = [p for p in coverage.parts if p.operator == operator and p.precision in halves]
    found = f"{plural(len(parts), f'{operator} node')} in half"
    return _verdict(f"forbid-half {operator}", not parts, found, [part.name for part in parts])


def _casts(coverage: Coverage, bound: int) -> Check:
    casts = sorted(coverage.casts, key=lambda cast: -(cast.moved or 0))
    found = f"{plural(len(casts), 'Cast')} between half and float32"
    return _verdict(f"max-casts {bound}", len(casts) <= bound, found, [cast.name for cast in casts])


def _against(coverage: Coverage, baseline: Baseline, tolerance: float) -> Iterator[Check]:
    if dict(baseline.dims) != dict(coverage.dims):
        raise OptionError(
            f"counted with other dimensions ({_dims(baseline.dims)}) than now ({_dims(coverage.dims)})",
            where=baseline.where,
            remedy="give the same --dim, or write it anew with --update",
        )
    for what, before in baseline.shares.items():
        share = _counts(coverage, what).share
        found = f"{percent(share)} of {_UNITS[what]} in half, {percent(before)} before"
        nodes = _in_the_way(coverage, what)
        yield _verdict(f"baseline {what}", _reaches(share, before - tolerance), found, nodes)
    yield from (
        _fallen(coverage, operator, before, tolerance) for operator, before in baseline.operators.items()
    )


def _fallen(coverage: Coverage, operator: str, before: float, tolerance: float) -> Check:
    row = coverage.row(operator)
    share = row.nodes.share if row else None
    found = f"{percent(share)} of {operator} nodes in half, {percent(before)} before"
    nodes = _outside([part for part in coverage.parts if part.operator == operator])
    return _verdict(f"baseline {operator}", _reaches(share, before - tolerance), found, nodes)


def _in_the_way(coverage: Coverage, what: str) -> list[str]:
    """The nodes, or weights, that are not in half; the heaviest first."""
    if what != "weights":
        return _outside(coverage.parts)
    full = [weight for weight in coverage.stored if weight.precision is Precision.FULL]
    return [weight.name for weight in sorted(full, key=lambda weight: -weight.size)]


def _verdict(rule: str, ok: bool, found: str, nodes: Sequence[str]) -> Check:
    return Check(rule, ok, found, () if ok else tuple(nodes))


def _reaches(share: float | None, bound: float) -> bool:
    return share is None or share >= bound - _EXACT


def _outside(parts: Sequence[Part]) -> list[str]:
    """The nodes that are not all in half; most FLOPs first."""
    outside = [part for part in parts if part.precision in (Precision.FULL, Precision.MIXED)]
    return [part.name for part in sorted(outside, key=lambda part: -(part.flops or 0))]


def percent(share: float | None) -> str:
    """A share as people read it, never rounded up to all or down to nothing."""
    if share is None:
        return "none there"
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    return f"{math.floor(share * 1000 + _EXACT) / 10:.1f} %" if share >= 0.001 else "below 0.1 %"


def _dims(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in dims.items()) or "none given"


def _refuse_unknown(coverage: Coverage, operators: Sequence[str]) -> None:
    """A misspelt operator would be a rule that nothing can break."""
    for operator in operators:
        domain, _, name = operator.rpartition(":")
        if coverage.row(operator) is None and name not in schema.known_operators(domain):
            near = _near(coverage, operator)
            offer = f"did you mean {near}?" if near else "write it as in MatMul or com.microsoft:FusedMatMul"
            raise OptionError(f"no operator is called {operator}", remedy=offer)


def _near(coverage: Coverage, operator: str) -> str | None:
    theirs = [f"{CONTRIB}:{name}" for name in schema.known_operators(CONTRIB)]
    words = {*schema.known_operators(""), *theirs, *(row.operator for row in coverage.rows)}
    return next(iter(difflib.get_close_matches(operator, sorted(words), n=1)), None)
