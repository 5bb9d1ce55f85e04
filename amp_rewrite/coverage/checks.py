"""Rules held against a coverage: which are kept, and which nodes break the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from amp_rewrite.coverage.counts import Counts, Coverage, Part
from amp_rewrite.coverage.precision import Precision
from amp_rewrite.coverage.rules import EXACT, Baseline, Check, Rules, percent
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.flops.opened import Dims
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB


def check(coverage: Coverage, rules: Rules) -> tuple[Check, ...]:
    """Every rule with its verdict, in a fixed order.

    A share of nothing (a model without floats, or without the operator) breaks no rule; FLOPs of which none
    are known do. Raises OptionError for an operator that neither the model nor any schema has, and for a
    baseline of other dimensions.
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
    found = _found(coverage, what)
    return _verdict(
        f"min-{what} {bound:g}", _holds(coverage, what, bound), found, _in_the_way(coverage, what)
    )


def _found(coverage: Coverage, what: str) -> str:
    """The share, and how much of the arithmetic it does not know of."""
    unknown = _unknown(coverage) if what == "flops" else 0
    more = f", not counting {plural(unknown, 'node')} whose FLOPs are not known" if unknown else ""
    return f"{percent(_counts(coverage, what).share)} of {_UNITS[what]} in half{more}"


def _holds(coverage: Coverage, what: str, bound: float) -> bool:
    """Whether a share reaches a bound; of FLOPs of which none are known, though there are some, none does."""
    share = _counts(coverage, what).share
    if share is None and what == "flops" and _unknown(coverage):
        return False
    return _reaches(share, bound)


def _unknown(coverage: Coverage) -> int:
    """How many nodes work on floats nobody knows how much."""
    return sum(part.flops is None and part.precision is not Precision.OTHER for part in coverage.parts)


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
            remedy="give the same `dims`, or write it anew with `baselines.save`",
        )
    for what, before in baseline.shares.items():
        found = f"{_found(coverage, what)}, {percent(before)} before"
        nodes = _in_the_way(coverage, what)
        yield _verdict(f"baseline {what}", _holds(coverage, what, before - tolerance), found, nodes)
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
    return share is None or share >= bound - EXACT


def _outside(parts: Sequence[Part]) -> list[str]:
    """The nodes that are not all in half; most FLOPs first."""
    outside = [part for part in parts if part.precision in (Precision.FULL, Precision.MIXED)]
    return [part.name for part in sorted(outside, key=lambda part: -(part.flops or 0))]


def _dims(dims: Dims) -> str:
    return ", ".join(f"{name}={size}" for name, size in dims.items()) or "none given"


def _refuse_unknown(coverage: Coverage, operators: Sequence[str]) -> None:
    """OptionError for an operator that neither the model nor any schema has: a rule for it would be one that
    nothing can break.
    """
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
