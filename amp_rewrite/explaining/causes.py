"""The root causes of float32: every node that stays float32, grouped by its reason."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from amp_rewrite.colouring.painting import Rule
from amp_rewrite.policy.entries import authority_in_words, flag_of
from amp_rewrite.policy.evidence import OF_FINDINGS, Authority, in_words
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.rewriting.decisions import Decision, Decisions, Flops


@dataclass(frozen=True, slots=True)
class OptionChange:
    """One option to add or to drop: a pin (`keep_full`, `force_half`), or the list of an operator.

    `option` names the field of Pins, or is the value of a Kind; `subject` is the pattern or the operator.
    """

    option: str
    subject: str

    @property
    def flag(self) -> str:
        """The same on the command line, quoted for a shell."""
        return flag_of(self.option, shlex.quote(self.subject))


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes that were tried and help; or no change, and in `why` the reason, or advice.

    The changes `adds`, in place of the user's `drops`, bring more of `frees` nodes of the model into
    half; `flop_share` is these nodes' share of its arithmetic, from 0 to 1, None where that is not known.
    """

    adds: tuple[OptionChange, ...] = ()
    frees: int = 0
    flop_share: float | None = None
    drops: tuple[OptionChange, ...] = ()
    why: str = ""

    @property
    def is_tried(self) -> bool:
        """Return whether it has content: without a model to try changes on, it may be empty."""
        return bool(self.adds or self.drops or self.why)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags to add on the command line."""
        return tuple(change.flag for change in self.adds)

    @property
    def dropped_flags(self) -> tuple[str, ...]:
        """Return the flags to leave out on the command line."""
        return tuple(change.flag for change in self.drops)


@dataclass(frozen=True, slots=True)
class RootCause:
    """A reason for which nodes stay float32, and these nodes.

    `roots` are the units of origin, all for one reason, and `affected` those that stay float32 for it, one
    for each node, the roots' own included; both by position in `decisions`. `node_share` is the share of the
    affected nodes in all nodes that have float32, `flop_share` that of the arithmetic of the whole model,
    both from 0 to 1; the second is None where no arithmetic is known, and a share of what is known where
    `all_known` is False. The arithmetic of nodes that are partly half does not count; `partly` of the
    affected nodes are.
    """

    decisions: Decisions
    roots: tuple[int, ...]
    affected: tuple[int, ...]
    node_share: float
    flop_share: float | None
    partly: int = 0
    suggestion: Suggestion = Suggestion()
    all_known: bool = True

    @property
    def first(self) -> Decision:
        """The first root, as representative of all."""
        return self.decisions.all[self.roots[0]]

    @property
    def root_places(self) -> tuple[str, ...]:
        """The labels of the root nodes."""
        places = {self.decisions.nodes[unit]: self.decisions.all[unit].place for unit in self.roots}
        return tuple(places.values())

    @property
    def nodes(self) -> tuple[Hashable, ...]:
        """The nodes that stay float32 (see Decisions.nodes), in model order."""
        return tuple(self.decisions.nodes[unit] for unit in self.affected)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of the roots, each once."""
        return tuple(dict.fromkeys(self.decisions.all[unit].operator for unit in self.roots))

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        root = self.first
        return {
            "nodes": len(self.affected),
            "partly": self.partly,
            "node_share": self.node_share,
            "flop_share": self.flop_share,
            "operators": list(self.operators),
            "rule": root.rule.value,
            "kind": root.kind.value,
            "reason": in_words(root.evidence),
            "source": authority_in_words(root.evidence, root.kind),
            "flags": list(self.suggestion.flags),
            "leave_out": list(self.suggestion.dropped_flags),
            "frees": self.suggestion.frees,
            "frees_flop_share": self.suggestion.flop_share,
            "no_flag": self.suggestion.why,
            "roots": list(self.root_places),
            "affected": [self.decisions.all[unit].place for unit in self.affected],
        }


def find(decisions: Decisions, flops: Flops | None = None) -> tuple[RootCause, ...]:
    """Return every root cause of float32, by descending arithmetic, then number of nodes.

    Without `flops` only the number of nodes counts.
    """
    flop_counts = {node: count for node, count in (flops or {}).items() if count}
    unknown = {node for node, count in (flops or {}).items() if count is None}
    groups: dict[Hashable, list[int]] = defaultdict(list)
    origins = decisions.origins()
    for unit in _full_units(decisions):
        groups[_key(decisions.all[origins[unit]])].append(unit)
    nodes, in_half = len(set(decisions.nodes)), decisions.half_nodes
    total = sum(flop_counts.values())
    root_causes: list[RootCause] = []
    for units in groups.values():
        whole = [node for unit in units if (node := decisions.nodes[unit]) not in in_half]
        roots = dict.fromkeys(origins[unit] for unit in units)
        here = sum(flop_counts.get(node, 0) for node in whole)
        share = here / total if total and (here or unknown.isdisjoint(whole)) else None
        cause = RootCause(decisions, tuple(roots), tuple(units), len(units) / nodes, share)
        root_causes.append(replace(cause, partly=len(units) - len(whole), all_known=not unknown))
    return tuple(sorted(root_causes, key=lambda cause: (-(cause.flop_share or 0), -len(cause.affected))))


def _full_units(decisions: Decisions) -> list[int]:
    """Return a unit of each float32 node: the first that could be half by its schema, or the first.

    Units that the schema fixes to float32 do not count where another unit of the node is half: a Resize in
    half with its float32 scales is not kept in float32.
    """
    units: dict[Hashable, int] = {}
    in_half = decisions.half_nodes
    for unit, (node, decision) in enumerate(zip(decisions.nodes, decisions.all, strict=True)):
        bound = decision.evidence.authority is Authority.SCHEMA
        if decision.is_half or (bound and node in in_half):
            continue
        before = units.setdefault(node, unit)
        if decisions.all[before].evidence.authority is Authority.SCHEMA and not bound:
            units[node] = unit
    return sorted(units.values())


def _key(root: Decision) -> Hashable:
    """Return the key by which roots are grouped into one cause."""
    evidence = root.evidence
    if root.by_hand:
        return "by hand"
    if root.rule in (Rule.PRUNE, Rule.GATE):
        return root.rule
    if evidence.authority in OF_FINDINGS:
        return evidence.reason
    if evidence.authority in (Authority.PIN, Authority.IDIOM):
        return evidence
    if root.rule is Rule.LEFT and (root.kind is Kind.CLEAR or root.operator == "Cast"):
        return Kind.CLEAR
    return root.operator, root.kind, evidence
