"""The rules that a CI job can set for a model's coverage, and the result of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.open_sizes import Dims

TOLERANCE = 0.01
"""How far a share may fall below that of the baseline by default: one percentage point."""

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

    `require` sets the least share in half for an operator's nodes, fused ones included, and is broken where
    there are none, unless `if_present`; `forbid_half` names operators that must have no node in half.
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
        """Raises OptionError for a share outside 0 to 1: 95 would never be reached, -1 always."""
        named = {name: share for name in SHARES if (share := getattr(self, name)) is not None}
        for name, share in (*named.items(), *self.require.items()):
            if not is_share(share):
                raise OptionError(f"{name} {_number(share)} is not a share", remedy=SHARE)
        if self.max_casts is not None:
            arguments.whole("max_casts", self.max_casts)


def is_share(given: object) -> bool:
    """Whether this is a number from 0 to 1."""
    return arguments.is_number(given) and 0 <= given <= 1


def _number(given: object) -> str:
    return f"{given:g}" if arguments.is_number(given) else arguments.shown(given)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule: the rule, what was found, and the nodes (or weights) that break it."""

    rule: str
    ok: bool
    found: str
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return {"rule": self.rule, "ok": self.ok, "found": self.found, "nodes": list(self.nodes)}


def percent(share: float | None) -> str:
    """A share as a percentage, never rounded up to 100 % or down to 0 %."""
    if share is None:
        return "n/a"
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    return f"{math.floor(share * 1000 + EXACT) / 10:.1f} %" if share >= 0.001 else "below 0.1 %"
