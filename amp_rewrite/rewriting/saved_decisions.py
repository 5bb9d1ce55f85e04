"""The decisions that a saved plan holds, for a reader who has the plan and not the model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from amp_rewrite.rewriting import decision_records
from amp_rewrite.rewriting.cast_sites import CastSite
from amp_rewrite.rewriting.decision_records import Record
from amp_rewrite.rewriting.decisions import Decision, Decisions
from amp_rewrite.rewriting.plan_files import SavedPlan


@dataclass(frozen=True, slots=True)
class Saved:
    """Decisions, and the FLOPs of their nodes by Decision.node; none where the plan does not say."""

    decisions: Decisions
    flops: Mapping[Hashable, int]


def of(saved: SavedPlan) -> Saved:
    """The decisions of a plan."""
    nodes = tuple(_nodes(saved.units))
    rows = list(zip(nodes, saved.units, strict=True))
    units = tuple(_decision(node, row) for node, row in rows)
    casts = tuple(map(_cast_site, saved.casts))
    flops: dict[Hashable, int] = {node: row["flops"] for node, row in rows if row["flops"] is not None}
    return Saved(Decisions(units, casts), flops)


def _nodes(rows: tuple[Record, ...]) -> Iterator[int]:
    """A number for the node of each row: the units of one stand together, each with another variable."""
    number, seen, last = 0, set[str](), None
    for row in rows:
        this = row["node"], row["operator"], row["defs"]
        if this != last or row["variable"] in seen:
            number, seen = number + 1, set()
        last = this
        seen.add(row["variable"])
        yield number


def _decision(node: int, row: Record) -> Decision:
    return Decision(
        node=node,
        operator=row["operator"],
        name=row["node"] or "",
        defs=tuple(row["defs"]),
        variable=row["variable"],
        paint=decision_records.paint(row),
        entry=decision_records.entry(row),
    )


def _cast_site(row: Record) -> CastSite:
    value, to = row["value"] or "", row["to"]
    return decision_records.cast_site(row, None, (value, f"{value}__{to}"), to, added=True)
