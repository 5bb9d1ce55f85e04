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

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from amp_rewrite import arguments
from amp_rewrite.coverage.counts import Coverage, NodeCoverage, Precision, add
from amp_rewrite.errors import OptionError
from amp_rewrite.files import reading
from amp_rewrite.model import writing
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.policy import yaml_fields
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.policy.yaml_fields import Field
from amp_rewrite.rewriting import records
from amp_rewrite.text import plural

TOLERANCE = 0.01
"""The default tolerance by which a share may fall below the baseline's: one percentage point."""

EXACT = 1e-9
"""Shares are quotients of integers: one that is closer than this to a bound has reached it."""

SHARES = ("min_flops", "min_nodes", "min_weights", "tolerance")
SHARE = "write a share from 0 to 1, as in 0.95"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Shares that must not fall: of FLOPs, nodes and weights, and of the nodes of each operator.

    `where` names the file that they come from, `dims` the sizes that they were counted with.
    """

    where: str
    shares: Mapping[str, float]
    operators: Mapping[str, float]
    dims: Dims


@dataclass(frozen=True, slots=True)
class CoverageRules:
    """Rules for a coverage; None or empty is no rule. Shares are of floats, from 0 to 1.

    `require` sets the least share in half for an operator's nodes, fused ones included. It is broken where
    there are none, and so is a baseline with that operator, unless `if_present`. `forbid_half` names
    operators that must have no node in half.
    """

    min_flops: float | None = None
    min_nodes: float | None = None
    min_weights: float | None = None
    require: Mapping[str, float] = field(default_factory=dict[str, float])
    forbid_half: tuple[str, ...] = ()
    max_casts: int | None = None
    baseline: Baseline | None = None
    tolerance: float = TOLERANCE
    if_present: bool = False

    def __post_init__(self) -> None:
        """Raise OptionError for a share outside 0 to 1: 95 would never be reached, -1 always."""
        shares = {name: share for name in SHARES if (share := getattr(self, name)) is not None}
        for name, share in (*shares.items(), *self.require.items()):
            if not is_share(share):
                raise OptionError(f"{name} {_number(share)} is not a share", remedy=SHARE)
        if self.max_casts is not None:
            arguments.whole("max_casts", self.max_casts)


def is_share(value: object) -> bool:
    """Return whether this is a number from 0 to 1."""
    return arguments.is_number(value) and 0 <= value <= 1


def _number(value: object) -> str:
    return f"{value:g}" if arguments.is_number(value) else arguments.describe(value)


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
    that neither the model nor any schema has, and for a baseline that was counted with other dimensions.
    """
    _refuse_unknown(coverage, (*rules.require, *rules.forbid_half))
    return tuple(_results(coverage, rules))


def _results(coverage: Coverage, rules: CoverageRules) -> Iterator[RuleResult]:
    bounds = {"flops": rules.min_flops, "nodes": rules.min_nodes, "weights": rules.min_weights}
    for what, bound in bounds.items():
        if bound is not None:
            yield _share_of(coverage, what, f"min-{what} {bound:g}", bound)
    for operator, bound in rules.require.items():
        yield _required(coverage, operator, bound, rules)
    for operator in rules.forbid_half:
        yield _forbidden(coverage, operator)
    if rules.max_casts is not None:
        yield _casts(coverage, rules.max_casts)
    if rules.baseline is not None:
        yield from _against(coverage, rules.baseline, rules)


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


FUSED_FORMS = {
    "Conv": "FusedConv NhwcConv NhwcFusedConv",
    "MatMul": "FusedMatMul FusedMatMulActivation TransposeMatMul GemmFastGelu MatMulNBits MatMulBnb4",
    "Gemm": "FusedGemm",
    "Gelu": "BiasGelu FastGelu QuickGelu BiasSplitGelu",
    "Softmax": "BiasSoftmax",
    "Attention": "Attention MultiHeadAttention GroupQueryAttention PackedAttention PackedMultiHeadAttention",
    "LayerNormalization": "SkipLayerNormalization EmbedLayerNormalization",
    "RMSNormalization": "SimplifiedLayerNormalization SkipSimplifiedLayerNormalization",
    "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
    "GroupNormalization": "GroupNorm SkipGroupNorm",
}
"""The fused operators of onnxruntime that contain another one; rules on that one count them as well."""


def _nodes_of(coverage: Coverage, operator: str) -> tuple[list[NodeCoverage], str]:
    """Return the nodes of an operator and of its fused forms, and the names of their operators as text."""
    operators = (operator, *(f"{CONTRIB}:{fused}" for fused in FUSED_FORMS.get(operator, "").split()))
    nodes = [node for node in coverage.node_list if node.operator in operators]
    used = {node.operator for node in nodes}
    return nodes, " and ".join(name for name in operators if name in used) or operator


def _required(coverage: Coverage, operator: str, bound: float, rules: CoverageRules) -> RuleResult:
    """Return whether an operator is in the model, and the share of its nodes in half reaches a bound."""
    nodes, names = _nodes_of(coverage, operator)
    rule, share = f"require {operator}={bound:g}", add((node.precision, 1) for node in nodes).share
    if share is None:
        finding = f"no {operator} node has floats" if nodes else f"the model has no {operator} node"
        return _absent(rule, finding, rules)
    return _share_of_nodes(nodes, names, share, rule, bound)


def _absent(rule: str, finding: str, rules: CoverageRules) -> RuleResult:
    """Return the result of a rule on an operator that the model lacks."""
    return _result(rule, rules.if_present, finding if rules.if_present else f"{finding}; {_ACCEPTED}", ())


_ACCEPTED = "if-present accepts that"


def _share_of_nodes(
    nodes: Sequence[NodeCoverage], names: str, share: float | None, rule: str, bound: float, note: str = ""
) -> RuleResult:
    """Return whether the share of nodes in half reaches a bound; a share of nothing does."""
    finding = f"{percent(share)} of {plural(len(nodes), f'{names} node')} in half{note}"
    return _result(rule, share is None or _reaches(share, bound), finding, _not_in_half(nodes))


def _forbidden(coverage: Coverage, operator: str) -> RuleResult:
    halves, (nodes, names) = (Precision.HALF, Precision.MIXED), _nodes_of(coverage, operator)
    broken = [node.name for node in nodes if node.precision in halves]
    finding = f"{plural(len(broken), f'{names} node')} in half"
    return _result(f"forbid-half {operator}", not broken, finding, broken)


def _casts(coverage: Coverage, bound: int) -> RuleResult:
    casts = sorted(coverage.casts, key=lambda cast: -(cast.moved or 0))
    finding = f"{plural(len(casts), 'Cast')} between half and float32"
    return _result(f"max-casts {bound}", len(casts) <= bound, finding, [cast.name for cast in casts])


def _against(coverage: Coverage, baseline: Baseline, rules: CoverageRules) -> Iterator[RuleResult]:
    if dict(baseline.dims) != dict(coverage.dims):
        raise OptionError(
            f"counted with other dimensions ({_dims(baseline.dims)}) than now ({_dims(coverage.dims)})",
            where=baseline.where,
            remedy="give the same `dims`, or write a new one with `coverage_rules.save_baseline`",
        )
    for what, before in baseline.shares.items():
        note = f", {percent(before)} before"
        yield _share_of(coverage, what, f"baseline {what}", before - rules.tolerance, note)
    for operator, before in baseline.operators.items():
        rule, row = f"baseline {operator}", coverage.row(operator)
        if row is None:
            yield _absent(rule, f"the model has no {operator} node, that of {baseline.where} has", rules)
            continue
        note, bound = f", {percent(before)} before", before - rules.tolerance
        nodes = [node for node in coverage.node_list if node.operator == operator]
        yield _share_of_nodes(nodes, operator, row.nodes.share, rule, bound, note)


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
            contrib = [
                f"{CONTRIB}:{contrib_operator}" for contrib_operator in schema.known_operators(CONTRIB)
            ]
            words = {*schema.known_operators(""), *contrib, *(row.operator for row in coverage.rows)}
            near = difflib.get_close_matches(operator, sorted(words), n=1)
            offer = (
                f"did you mean {near[0]}?" if near else "write it as in MatMul or com.microsoft:FusedMatMul"
            )
            raise OptionError(f"no operator is called {operator}", remedy=offer)


Settings = dict[str, Any]
"""Fields of CoverageRules by name, where `baseline` is a path, and `dims`; absent ones are not set."""


def rules_of(settings: Settings, baseline: Baseline | None) -> CoverageRules:
    """Return the rules of settings, with a baseline that was read."""
    rules = {name: value for name, value in settings.items() if name not in ("baseline", "dims")}
    return CoverageRules(**rules, baseline=baseline)


def _merge(settings: Settings, others: Settings) -> Settings:
    """Return these settings where there are any, else the others; those of operators accumulate."""
    return {**others, **{name: _over(value, others.get(name)) for name, value in settings.items()}}


def _over(value: Any, fallback: Any) -> Any:
    if isinstance(fallback, dict):
        return {**fallback, **value}
    if isinstance(fallback, tuple):
        return tuple(dict.fromkeys((*fallback, *value)))
    return value


def collect(sources: Iterable[Path]) -> Settings:
    """Return the rules in files, and those written as NAME=VALUE (`min-flops=0.9`), which override.

    Raises ListError, which names file and line, and OptionError for a rule that is given twice.
    """
    rules, single = Settings(), Settings()
    for source in sources:
        if (rule := _rule(source)) is None:
            rules = _merge(load(source), rules)
            continue
        name, value = rule
        if name in single and _conflicts(single[name], value):
            raise OptionError(f"two rules {name.replace('_', '-')}", remedy="give one")
        single = _merge({name: value}, single)
    return _merge(single, rules)


def _conflicts(earlier: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return any(earlier.get(key, number) != number for key, number in value.items())
    return not (isinstance(value, tuple) or earlier == value)


def _rule(source: Path) -> tuple[str, Any] | None:
    """Return the field and the value of a rule that is written as NAME=VALUE; None for a file."""
    name, equals, text = str(source).partition("=")
    if name not in _READERS:
        if equals and not source.exists():
            raise OptionError(f"there is no rule {name}", remedy=yaml_fields.near(name, _READERS))
        return None
    key, value = _node(name), _node(text if equals else "true")
    if name in _OF_NAMES:
        of_name, _, number = text.rpartition("=")
        if not of_name:
            remedy = f"write it as in {_OF_NAMES[name]}"
            raise OptionError(f"rule {source} is not {name}=NAME=NUMBER", remedy=remedy)
        value = yaml.MappingNode("", [(_node(of_name), _node(number))])
    return name.replace("-", "_"), _READERS[name](Field(Path(f"rule {source}"), key, name, value))


def _node(text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


_OF_NAMES = {"require": "require=MatMul=0.95", "dims": "dims=batch=4"}
"""The rules with a name and a number, and an example of each."""


def load(path: Path) -> Settings:
    """Return the rules of a file. Raises ListError, which names file and line."""
    top = yaml_fields.parse(path, tuple(_READERS), trusted=False)
    fields = yaml_fields.fields(path, top, tuple(_READERS))
    return {field.name.replace("-", "_"): _READERS[field.name](field) for field in fields}


def _share(field: Field) -> float:
    text = _scalar(field).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise field.error(f"{field.name} is not a number", SHARE) from None
    if text.endswith("%") and 0 <= number <= 100:
        raise field.error(f"{field.name} is a percentage", f"write it as {number / 100:.12g}")
    if not 0 <= number <= 1:
        raise field.error(f"{field.name} is {number:g}", SHARE)
    return number


def _truth(field: Field) -> bool:
    text = _scalar(field)
    if text not in ("true", "false"):
        raise field.error(f"{field.name} is not a truth value", "write true or false")
    return text == "true"


def _count(field: Field) -> int:
    text = _scalar(field)
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise field.error(
            f"{field.name} is not a whole number of at most {_DIGITS} digits", "write it as in 12"
        )
    return int(text)


_DIGITS = 18
"""Numbers of this many digits fit into the 64 bits of an ONNX dimension."""


def _scalar(field: Field) -> str:
    return field.value.value if isinstance(field.value, yaml.ScalarNode) else ""


def _mapping(parse: Callable[[Field], Any]) -> Callable[[Field], dict[str, Any]]:
    def mapping(field: Field) -> dict[str, Any]:
        if not isinstance(field.value, yaml.MappingNode):
            raise field.error(f"{field.name} is not a mapping", "write NAME: NUMBER below it, one per line")
        return {inner.name: parse(inner) for inner in yaml_fields.fields(field.file, field.value)}

    return mapping


def _names(field: Field) -> tuple[str, ...]:
    if yaml_fields.is_text(field.value):
        return (yaml_fields.text(field),)
    rows = field.value.value if isinstance(field.value, yaml.SequenceNode) else ()
    if not rows or not all(map(yaml_fields.is_text, rows)):
        raise field.error(f"{field.name} is not a list of operators", f"write {field.name}: [Softmax]")
    return tuple(row.value for row in rows)


def _path(field: Field) -> Path:
    folder = field.file.parent if field.line else Path()
    return folder / yaml_fields.text(field)


_READERS: Mapping[str, Callable[[Field], Any]] = {
    "min-flops": _share,
    "min-nodes": _share,
    "min-weights": _share,
    "require": _mapping(_share),
    "if-present": _truth,
    "forbid-half": _names,
    "max-casts": _count,
    "baseline": _path,
    "tolerance": _share,
    "dims": _mapping(_count),
}


# Baselines: the coverage in a committed file that later ones are compared with.

_UPDATE = "write it with `coverage_rules.save_baseline`"
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)] | None


class _CountsRecord(msgspec.Struct):
    share: _Share


class _OperatorRecord(msgspec.Struct):
    nodes: _CountsRecord


class _BaselineRecord(msgspec.Struct):
    flops: _CountsRecord
    nodes: _CountsRecord
    weights: _CountsRecord
    operators: dict[str, _OperatorRecord]
    dims: dict[str, records.Count]


def load_baseline(path: Path) -> Baseline:
    """Read a file that `save`, or `--json`, wrote. Raises OptionError for any other."""
    try:
        content = records.parse(reading.read(path), _BaselineRecord)
    except FileNotFoundError as error:
        raise OptionError("there is no such baseline", where=path, remedy=_UPDATE) from error
    except OSError as error:
        raise OptionError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except ValueError as error:
        raise OptionError(f"is not a coverage baseline ({error})", where=path, remedy=_UPDATE) from error
    shares = {"flops": content.flops, "nodes": content.nodes, "weights": content.weights}
    operators = {name: row.nodes for name, row in content.operators.items()}
    return Baseline(str(path), _without_null(shares), _without_null(operators), content.dims)


def _without_null(counts: Mapping[str, _CountsRecord]) -> dict[str, float]:
    return {name: row.share for name, row in counts.items() if row.share is not None}


def save_baseline(coverage: Coverage, path: Path) -> None:
    """Write the numbers that later coverages are compared with; raises OutputError."""
    writing.write_json(coverage.summary(), path)
