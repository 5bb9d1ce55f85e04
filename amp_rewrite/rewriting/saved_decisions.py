"""The decisions that a saved plan holds, for a reader who has the plan and not the model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.cast_sites import CastSite, Origin
from amp_rewrite.rewriting.decisions import Decision, Decisions
from amp_rewrite.rewriting.plan_files import SavedPlan

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """Decisions, and the FLOPs of their nodes by Decision.node; none where the plan does not say."""

    decisions: Decisions
    flops: Mapping[Hashable, int]


def of(saved: SavedPlan) -> Saved:
    """What a plan says.

    A plan of an earlier version of this tool has no FLOPs, and does not say why its Casts stand.
    """
    nodes = tuple(_nodes(saved.units))
    rows = list(zip(nodes, saved.units, strict=True))
    units = tuple(_decision(node, row) for node, row in rows)
    casts = tuple(_crossing(row) for row in saved.casts if "readers" in row)
    flops: dict[Hashable, int] = {node: row["flops"] for node, row in rows if row.get("flops") is not None}
    return Saved(Decisions(units, casts), flops)


def _nodes(rows: tuple[Row, ...]) -> Iterator[int]:
    """A number for the node of each row: the units of one stand together, each with another variable."""
    number, seen, last = 0, set[str](), None
    for row in rows:
        this = row["node"], row["operator"], row.get("makes")
        if this != last or row["variable"] in seen:
            number, seen = number + 1, set()
        last = this
        seen.add(row["variable"])
        yield number


def _decision(node: int, row: Row) -> Decision:
    return Decision(
        node=node,
        operator=row["operator"],
        name=row["node"] or "",
        defs=tuple(row.get("makes", [])),
        variable=row["variable"],
        paint=plan_files.paint(row),
        entry=plan_files.entry(row),
    )


def _crossing(row: Row) -> CastSite:
    value = row["value"] or ""
    dtype = "float32" if row["to"] == "float" else row["to"]
    return CastSite(
        node=None,
        names=(value, f"{value}__{dtype}"),
        dtype=dtype,
        origin=Origin(row["origin"]),
        producer=row["maker"],
        consumers=tuple(row["readers"]),
        is_output=row["leaves"],
        added=True,
    )
