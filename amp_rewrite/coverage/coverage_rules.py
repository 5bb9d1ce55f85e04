"""Rules that a CI job can set for a model's coverage, by flags or in a YAML file, and their evaluation.

min-flops: 0.95
min-nodes: 0.8
min-weights: 0.9
require:
  MatMul: 1.0
if-present: true   # required operators that the model lacks are no fault
forbid-half: [Softmax]
max-casts: 12
baseline: coverage.json   # beside this file
tolerance: 0.01
dims:
  batch: 4
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from amp_rewrite import arguments
from amp_rewrite.coverage.counts import Coverage, NodeCoverage, Precision, add
from amp_rewrite.errors import ListError, OptionError
from amp_rewrite.files import reading
from amp_rewrite.model import writing
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.schema import CONTRIB
from amp_rewrite.operators.catalogue import MOVERS
from amp_rewrite.operators.catalogue import names as names_of
from amp_rewrite.policy import yaml_fields
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.policy.operator_lists import near_operator
from amp_rewrite.rewriting import records
from amp_rewrite.text import plural, suggestion

TOLERANCE = 0.01
"""The default tolerance by which a share may fall below the baseline's: one percentage point."""

EXACT = 1e-9
"""Shares are quotients of integers: one that is closer than this to a bound has reached it."""

SHARE = "write a share from 0 to 1, as in 0.95"


@dataclass(frozen=True, slots=True)
class CoverageRules:
    """Rules for a coverage; None or empty is no rule. Shares are of floats, from 0 to 1.

    `require` sets the least share in half for an operator's nodes, fused ones included. It is broken where
    there are none, and so is a baseline with that operator, unless `if_present`. `forbid_half` names
    operators that must have no node in half. `baseline` is the file of an earlier coverage, below which no
    share may fall by more than `tolerance`, and `dims` are the sizes that open dimensions count with.
    """

    min_flops: float | None = None
    min_nodes: float | None = None
    min_weights: float | None = None
    require: Mapping[str, float] = field(default_factory=dict[str, float])
    forbid_half: tuple[str, ...] = ()
    max_casts: records.Count | None = None
    baseline: str | None = None
    tolerance: float = TOLERANCE
    if_present: bool = False
    dims: Mapping[str, records.Count] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        """Raise OptionError for a share outside 0 to 1: 95 would never be reached, -1 always."""
        names = ("min_flops", "min_nodes", "min_weights", "tolerance")
        shares = {name: share for name in names if (share := getattr(self, name)) is not None}
        for name, share in (*shares.items(), *self.require.items()):
            if not (arguments.is_number(share) and 0 <= share <= 1):
                number = f"{share:g}" if arguments.is_number(share) else arguments.describe(share)
                raise OptionError(f"{name} {number} is not a share", remedy=SHARE)
        if self.max_casts is not None:
            arguments.whole("max_casts", self.max_casts)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule: the rule, the finding, and the nodes (or weights) that break it."""

    rule: str
    ok: bool
    found: str
    nodes: tuple[str, ...] = ()


def percent(share: float | None) -> str:
    """Return a share as a percentage, never rounded up to 100 % or down to 0 %."""
    if share is None:
        return "n/a"
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    return f"{math.floor(share * 1000 + EXACT) / 10:.1f} %" if share >= 0.001 else "below 0.1 %"


def check(coverage: Coverage, rules: CoverageRules) -> tuple[RuleResult, ...]:
    """Return the result of every rule, in a fixed order.

    A model without floats breaks no rule on shares, but a share of FLOPs none of which are known does, and
    so does a required operator that the model lacks, unless `if_present`. Raises OptionError for an operator
    that neither the model nor any schema has, and for a baseline that cannot be read or was counted with
    other dimensions.
    """
    _refuse_unknown(coverage, (*rules.require, *rules.forbid_half))
    return tuple(_results(coverage, rules))


def _results(coverage: Coverage, rules: CoverageRules) -> Iterator[RuleResult]:
    bounds = {"flops": rules.min_flops, "nodes": rules.min_nodes, "weights": rules.min_weights}
    for what, bound in bounds.items():
        if bound is not None:
            yield _share_of(coverage, what, f"min-{what} {bound:g}", bound)
    for operator, bound in rules.require.items():
        nodes, names = _nodes_of(coverage, operator)
        yield _required(nodes, names, f"require {operator}={bound:g}", bound, rules)
    for operator in rules.forbid_half:
        nodes, names = _nodes_of(coverage, operator)
        broken = [node.name for node in nodes if node.precision in (Precision.HALF, Precision.MIXED)]
        finding = f"{plural(len(broken), f'{names} node')} in half"
        yield _result(f"forbid-half {operator}", not broken, finding, broken)
    if (most := rules.max_casts) is not None:
        casts = sorted(coverage.casts, key=lambda cast: -(cast.moved or 0))
        finding = f"{plural(len(casts), 'Cast')} between half and float32"
        yield _result(f"max-casts {most}", len(casts) <= most, finding, [cast.name for cast in casts])
    if rules.baseline is not None:
        yield from _against(coverage, load_baseline(Path(rules.baseline)), rules)


_UNITS = {"flops": "FLOPs", "nodes": "nodes", "weights": "weight bytes"}


def _share_of(coverage: Coverage, what: str, rule: str, bound: float, note: str = "") -> RuleResult:
    """Return whether the share of FLOPs, nodes or weights in half reaches a bound."""
    share = {"flops": coverage.flops, "nodes": coverage.nodes, "weights": coverage.weights}[what].share
    unknown = [node for node in coverage.unknown if node.precision is not Precision.OTHER]
    uncounted = len(unknown) if what == "flops" else 0
    ok = not uncounted if share is None else _reaches(share, bound)
    more = f", not counting {plural(uncounted, 'node')} with unknown FLOPs" if uncounted else ""
    names = _weights_not_in_half(coverage) if what == "weights" else _not_in_half(coverage.node_list)
    return _result(rule, ok, f"{percent(share)} of {_UNITS[what]} in half{more}{note}", names)


def _nodes_of(coverage: Coverage, operator: str) -> tuple[list[NodeCoverage], str]:
    """Return the nodes of an operator and of its fused forms, and the names of their operators as text."""
    fused = names_of(lambda each: operator in each.fuses.split(), CONTRIB)
    operators = (operator, *(f"{CONTRIB}:{name}" for name in sorted(fused)))
    nodes = [node for node in coverage.node_list if node.operator in operators]
    used = {node.operator for node in nodes}
    return nodes, " and ".join(name for name in operators if name in used) or operator


def _required(
    nodes: Sequence[NodeCoverage], names: str, rule: str, bound: float, rules: CoverageRules, note: str = ""
) -> RuleResult:
    """Return whether an operator is in the model, and the share of its nodes in half reaches a bound."""
    share = add((node.precision, 1) for node in nodes).share
    if share is None:
        finding = f"no {names} node has floats" if nodes else f"the model has no {names} node"
        remedy = "" if rules.if_present else "; if-present accepts that"
        return _result(rule, rules.if_present, f"{finding}{note}{remedy}", ())
    finding = f"{percent(share)} of {plural(len(nodes), f'{names} node')} in half{note}"
    return _result(rule, _reaches(share, bound), finding, _not_in_half(nodes))


def _against(coverage: Coverage, baseline: Baseline, rules: CoverageRules) -> Iterator[RuleResult]:
    """Yield the totals, and every operator that computes; each node is named once, at its operator."""
    if dict(baseline.dims) != dict(coverage.dims):
        raise OptionError(
            f"counted with other dimensions ({_dims(baseline.dims)}) than now ({_dims(coverage.dims)})",
            where=rules.baseline or "",
            remedy="give the same `dims`, or write a new one with `coverage_rules.save_baseline`",
        )
    operators = {name: row.nodes.share for name, row in baseline.operators.items() if name not in MOVERS}
    rows = list[RuleResult]()
    for operator, before in operators.items():
        if before is not None:
            nodes = [node for node in coverage.node_list if node.operator == operator]
            rule, note = f"baseline {operator}", f", {percent(before)} before"
            rows.append(_required(nodes, operator, rule, before - rules.tolerance, rules, note))
    named = {name for row in rows for name in row.nodes}
    for what, before in (("flops", baseline.flops), ("nodes", baseline.nodes), ("weights", baseline.weights)):
        if before.share is not None:
            note = f", {percent(before.share)} before"
            total = _share_of(coverage, what, f"baseline {what}", before.share - rules.tolerance, note)
            again = set[str]() if what == "weights" else named
            yield replace(total, nodes=tuple(name for name in total.nodes if name not in again))
            named.update(total.nodes)
    yield from rows


def _result(rule: str, ok: bool, finding: str, nodes: Sequence[str]) -> RuleResult:
    return RuleResult(rule, ok, finding, () if ok else tuple(nodes))


def _reaches(share: float, bound: float) -> bool:
    return share >= bound - EXACT


def _not_in_half(nodes: Sequence[NodeCoverage]) -> list[str]:
    """Return the nodes that are not entirely in half; most FLOPs first."""
    offenders = [node for node in nodes if node.precision in (Precision.FULL, Precision.MIXED)]
    return [node.name for node in sorted(offenders, key=lambda node: -(node.flops or 0))]


def _weights_not_in_half(coverage: Coverage) -> list[str]:
    full = [weight for weight in coverage.weight_list if weight.precision is Precision.FULL]
    return [weight.name for weight in sorted(full, key=lambda weight: -weight.size)]


def _dims(dims: Dims) -> str:
    return ", ".join(f"{name}={size}" for name, size in dims.items()) or "none given"


def _refuse_unknown(coverage: Coverage, operators: Sequence[str]) -> None:
    """Raise OptionError for an operator that neither the model nor any schema has: it is probably misspelt,
    and no model could break a rule on it.
    """
    for operator in operators:
        domain, _, name = operator.rpartition(":")
        if coverage.row(operator) is None and name not in schema.known_operators(domain):
            remedy = near_operator((domain, name), schema.known_operators)
            raise OptionError(f"there is no operator {operator}", remedy=remedy)


# Rules as text: in a file, or NAME=VALUE.

Settings = dict[str, Any]
"""Rules by name as texts, lists of texts, and mappings to texts; msgspec converts and checks them."""

NAMES = tuple(each.name.replace("_", "-") for each in fields(CoverageRules))
_OF_NAMES = {"require": "require=MatMul=0.95", "dims": "dims=batch=4"}
"""The rules with a name and a number, and an example of each."""
_BASELINE, _LIST = "baseline", "forbid-half"


def collect(sources: Iterable[Path]) -> CoverageRules:
    """Return the rules in files, and those written as NAME=VALUE (`min-flops=0.9`), which override.

    Raises ListError, which names the file, and OptionError for an unknown or malformed rule.
    """
    of_files, single = Settings(), Settings()
    for source in sources:
        settings = _rule(str(source))
        if settings is None and "=" in source.name and not source.exists():
            name = str(source).partition("=")[0]
            raise OptionError(f"there is no rule {name}", remedy=suggestion(name, NAMES))
        if settings is None:
            of_files = _merged(of_files, _content(source))
        else:
            _parsed(settings, f"rule {source}")
            (name,) = settings
            if name in single and name != _LIST and _merged(settings, single) != _merged(single, settings):
                raise OptionError(f"two rules {name}", remedy="give one")
            single = _merged(single, settings)
    return _parsed(_merged(of_files, single), "the rules")


def _content(path: Path) -> Settings:
    """Return the content of a file, with its baseline as a path relative to the file."""
    settings = dict(yaml_fields.read(path, NAMES, trusted=False).content)
    _parsed(settings, path)
    if _BASELINE in settings:
        settings[_BASELINE] = str(path.parent / settings[_BASELINE])
    return settings


def _rule(text: str) -> Settings | None:
    """Return a rule that is written as NAME=VALUE; None for anything else."""
    name, equals, value = text.partition("=")
    if name not in NAMES:
        return None
    if name in _OF_NAMES:
        of_name, _, number = value.rpartition("=")
        if not of_name:
            problem = f"rule {text} is not {name}=NAME=NUMBER"
            raise OptionError(problem, remedy=f"write it as in {_OF_NAMES[name]}")
        return {name: {of_name: number}}
    return {name: [value] if name == _LIST else value if equals else "true"}


def _merged(settings: Settings, later: Settings) -> Settings:
    """Return both, of which the later override; those of operators accumulate."""
    merged = {**settings, **later}
    for name in settings.keys() & later.keys():
        if isinstance(later[name], dict):
            merged[name] = {**settings[name], **later[name]}
        elif isinstance(later[name], list):
            merged[name] = [*settings[name], *later[name]]
    return merged


def _parsed(settings: Settings, where: str | Path) -> CoverageRules:
    by_field = {name.replace("-", "_"): value for name, value in settings.items()}
    try:
        return records.convert(by_field, CoverageRules, strict=False)
    except OptionError as error:
        name, _, problem = error.problem.partition(" ")
        name = name.replace("_", "-") if name in by_field else name
        raise ListError(f"{name} {problem}", file=where, remedy=error.remedy) from None
    except ValueError as error:
        problem = str(error).replace("_", "-").replace(" | null", "")
        raise ListError(problem, file=where, remedy=SHARE if "float" in problem else "") from None


# Baselines: the coverage in a committed file that later ones are compared with.

_UPDATE = "write it with `coverage_rules.save_baseline`"


class _Share(msgspec.Struct):
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None


class _RuleRow(msgspec.Struct):
    nodes: _Share


class Baseline(msgspec.Struct):
    """An earlier coverage, as it is in a file: shares in half, and the sizes that they were counted with."""

    flops: _Share
    nodes: _Share
    weights: _Share
    operators: dict[str, _RuleRow]
    dims: dict[str, records.Count]


def load_baseline(path: Path) -> Baseline:
    """Read a file that `save_baseline`, or `--json`, wrote. Raises OptionError for any other."""
    try:
        return records.parse(reading.read(path), Baseline)
    except FileNotFoundError as error:
        raise OptionError("there is no such baseline", where=path, remedy=_UPDATE) from error
    except OSError as error:
        raise OptionError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except ValueError as error:
        raise OptionError(f"is not a coverage baseline ({error})", where=path, remedy=_UPDATE) from error


def save_baseline(coverage: Coverage, path: Path) -> None:
    """Write the numbers that later coverages are compared with; raises OutputError."""
    writing.write_json(coverage.summary(), path)
