"""Checks coverage rules: which hold, and which nodes break the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from amp_rewrite.coverage.ci_rules import EXACT, Baseline, CoverageRules, RuleResult, percent
from amp_rewrite.coverage.counts import Coverage, NodeCoverage, Precision
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.policy.open_sizes import Dims


def check(coverage: Coverage, rules: CoverageRules) -> tuple[RuleResult, ...]:
    """The result of every rule, in a fixed order.

    A share of nothing (a model without floats, or without the operator) breaks no rule, but a share of FLOPs
    none of which are known does. Raises OptionError for an operator that neither the model nor any schema
    has, and for a baseline that was counted with other dimensions.
    """
    _refuse_unknown(coverage, (*rules.require, *rules.forbid_half))
    return tuple(_results(coverage, rules))


def _results(coverage: Coverage, rules: CoverageRules) -> Iterator[RuleResult]:
    bounds = {"flops": rules.min_flops, "nodes": rules.min_nodes, "weights": rules.min_weights}
    for what, bound in bounds.items():
        if bound is not None:
            yield _share_of(coverage, what, f"min-{what} {bound:g}", bound)
    for operator, bound in rules.require.items():
        yield _share_of_operator(coverage, operator, f"require {operator}={bound:g}", bound)
    for operator in rules.forbid_half:
        yield _forbidden(coverage, operator)
    if rules.max_casts is not None:
        yield _casts(coverage, rules.max_casts)
    if rules.baseline is not None:
        yield from _against(coverage, rules.baseline, rules.tolerance)


_UNITS = {"flops": "FLOPs", "nodes": "nodes", "weights": "weight bytes"}


def _share_of(coverage: Coverage, what: str, rule: str, bound: float, note: str = "") -> RuleResult:
    """Whether the share of FLOPs, nodes or weights in half reaches a bound."""
    share = {"flops": coverage.flops, "nodes": coverage.nodes, "weights": coverage.weights}[what].share
    unknown = [node for node in coverage.unknown if node.precision is not Precision.OTHER]
    uncounted = len(unknown) if what == "flops" else 0
    ok = not uncounted if share is None else _reaches(share, bound)
    more = f", not counting {plural(uncounted, 'node')} with unknown FLOPs" if uncounted else ""
    names = _weights_not_in_half(coverage) if what == "weights" else _not_in_half(coverage.node_list)
    return _result(rule, ok, f"{percent(share)} of {_UNITS[what]} in half{more}{note}", names)


def _share_of_operator(
    coverage: Coverage, operator: str, rule: str, bound: float, note: str = ""
) -> RuleResult:
    """Whether the share of an operator's nodes in half reaches a bound."""
    nodes = [node for node in coverage.node_list if node.operator == operator]
    row = coverage.row(operator)
    share = row.nodes.share if row else None
    found = f"{percent(share)} of {plural(len(nodes), f'{operator} node')} in half{note}"
    return _result(rule, share is None or _reaches(share, bound), found, _not_in_half(nodes))


def _forbidden(coverage: Coverage, operator: str) -> RuleResult:
    halves = (Precision.HALF, Precision.MIXED)
    nodes = [n.name for n in coverage.node_list if n.operator == operator and n.precision in halves]
    found = f"{plural(len(nodes), f'{operator} node')} in half"
    return _result(f"forbid-half {operator}", not nodes, found, nodes)


def _casts(coverage: Coverage, bound: int) -> RuleResult:
    casts = sorted(coverage.casts, key=lambda cast: -(cast.moved or 0))
    found = f"{plural(len(casts), 'Cast')} between half and float32"
    return _result(f"max-casts {bound}", len(casts) <= bound, found, [cast.name for cast in casts])


def _against(coverage: Coverage, baseline: Baseline, tolerance: float) -> Iterator[RuleResult]:
    if dict(baseline.dims) != dict(coverage.dims):
        raise OptionError(
            f"counted with other dimensions ({_dims(baseline.dims)}) than now ({_dims(coverage.dims)})",
            where=baseline.where,
            remedy="give the same `dims`, or write a new one with `baselines.save`",
        )
    for what, before in baseline.shares.items():
        note = f", {percent(before)} before"
        yield _share_of(coverage, what, f"baseline {what}", before - tolerance, note)
    for operator, before in baseline.operators.items():
        note = f", {percent(before)} before"
        yield _share_of_operator(coverage, operator, f"baseline {operator}", before - tolerance, note)


def _result(rule: str, ok: bool, found: str, nodes: Sequence[str]) -> RuleResult:
    return RuleResult(rule, ok, found, () if ok else tuple(nodes))


def _reaches(share: float, bound: float) -> bool:
    return share >= bound - EXACT


def _not_in_half(nodes: Sequence[NodeCoverage]) -> list[str]:
    """The nodes that are not entirely in half; most FLOPs first."""
    found = [node for node in nodes if node.precision in (Precision.FULL, Precision.MIXED)]
    return [node.name for node in sorted(found, key=lambda node: -(node.flops or 0))]


def _weights_not_in_half(coverage: Coverage) -> list[str]:
    full = [weight for weight in coverage.weight_list if weight.precision is Precision.FULL]
    return [weight.name for weight in sorted(full, key=lambda weight: -weight.size)]


def _dims(dims: Dims) -> str:
    return ", ".join(f"{name}={size}" for name, size in dims.items()) or "none given"


def _refuse_unknown(coverage: Coverage, operators: Sequence[str]) -> None:
    """Raises OptionError for an operator that neither the model nor any schema has: it is probably misspelt,
    and no model could break a rule on it.
    """
    for operator in operators:
        domain, _, name = operator.rpartition(":")
        if coverage.row(operator) is None and name not in schema.known_operators(domain):
            contrib = [f"{CONTRIB}:{known}" for known in schema.known_operators(CONTRIB)]
            words = {*schema.known_operators(""), *contrib, *(row.operator for row in coverage.rows)}
            near = difflib.get_close_matches(operator, sorted(words), n=1)
            offer = (
                f"did you mean {near[0]}?" if near else "write it as in MatMul or com.microsoft:FusedMatMul"
            )
            raise OptionError(f"no operator is called {operator}", remedy=offer)
