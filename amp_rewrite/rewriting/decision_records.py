"""Decisions as plain data: the one form that saved plans and the metadata of results share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from amp_rewrite.colouring.painting import Colour, Paint, Rule
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.rewriting import json_fields
from amp_rewrite.rewriting.cast_sites import CastSite, Origin
from amp_rewrite.rewriting.json_fields import COUNT, FLAG, NUMBER, TEXT, JsonFields, one_of, or_null

Record = Mapping[str, Any]


def of_paint(paint: Paint) -> Record:
    """A paint; `cause` is the position of a unit, or null."""
    return {"colour": paint.colour.value, "rule": paint.rule.value, "cause": paint.cause}


def paint_fields(unit: json_fields.JsonField) -> JsonFields:
    """What `paint` reads, where `unit` is the position of a unit."""
    return {"colour": one_of(Colour), "rule": one_of(Rule), "cause": or_null(unit)}


def paint(record: Record) -> Paint:
    """The paint that a checked record holds."""
    return Paint(Colour(record["colour"]), Rule(record["rule"]), record["cause"])


def of_entry(entry: Entry) -> Record:
    """An entry; of its evidence, what the reason has."""
    evidence = entry.evidence
    known = {name: getattr(evidence, name) for name in _EVIDENCE_DETAILS}
    return {
        "kind": entry.kind.value,
        "follow": entry.follow,
        "authority": evidence.authority.value,
        "reason": evidence.reason.value,
        **{name: value for name, value in known.items() if value not in ("", None)},
    }


_EVIDENCE_DETAILS: JsonFields = {
    **{name: json_fields.optional(TEXT) for name in ("subject", "half", "text")},
    **{name: json_fields.optional(NUMBER) for name in ("number", "limit")},
    **{name: json_fields.optional(COUNT) for name in ("nodes", "casts")},
}
ENTRY_FIELDS: JsonFields = {
    "kind": one_of(Kind),
    "follow": FLAG,
    "authority": one_of(Authority),
    "reason": one_of(Reason),
    **_EVIDENCE_DETAILS,
}
"""What `entry` reads."""


def entry(record: Record) -> Entry:
    """The entry that a checked record holds."""
    details = {name: record[name] for name in _EVIDENCE_DETAILS if name in record}
    evidence = Evidence(Authority(record["authority"]), Reason(record["reason"]), **details)
    return Entry(Kind(record["kind"]), evidence, record["follow"])


def of_cast_site(site: CastSite) -> Record:
    """Why a Cast stands, with units by position."""
    return {
        "origin": site.origin.value,
        "producer": site.producer,
        "consumers": list(site.consumers),
        "is_output": site.is_output,
    }


def cast_site(
    record: Record, node: ir.Node | None, names: tuple[str, ...], dtype: str, *, added: bool
) -> CastSite:
    """The site that a checked record holds, of the Cast `node`, which `names` name, to `dtype`."""
    return CastSite(
        node=node,
        names=names,
        dtype=dtype,
        origin=Origin(record["origin"]),
        producer=record["producer"],
        consumers=tuple(record["consumers"]),
        is_output=record["is_output"],
        added=added,
    )


def cast_site_fields(unit: json_fields.JsonField) -> JsonFields:
    """What `cast_site` reads, where `unit` is the position of a unit."""
    return {
        "origin": one_of(Origin),
        "producer": or_null(unit),
        "consumers": json_fields.list_of(unit, "a list of units' positions"),
        "is_output": FLAG,
    }
