"""The outcome of a model in a zoo."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Status(enum.Enum):
    """The outcome of the rewrite of a model."""

    CLOSE = "PASS"
    UNCHANGED = "unchanged"
    NOT_COMPARED = "not compared"
    UNKNOWN = "inconclusive on made-up inputs"
    INCONCLUSIVE = "inconclusive"
    FAR = "FAIL"
    FAILED = "failed"

    @property
    def is_good(self) -> bool:
        """Whether there is a result without a known fault."""
        return self not in (Status.INCONCLUSIVE, Status.FAR, Status.FAILED)


@dataclass(frozen=True, slots=True)
class Row:
    """A model, by its name and path; its result, its report as JSON and its page, relative to the folder.

    `why` is the problem in one line, the warnings of a comparison that passes, or the reason for none.
    `error` is the largest of any output, `half` the share of nodes in half, `speedup` the predicted one, and
    `sizes` the bytes of both models; None if unknown.
    """

    name: str
    model: str
    status: Status
    why: str = ""
    result: str = ""
    report: str = ""
    page: str = ""
    seconds: float = 0.0
    half: float | None = None
    casts: int | None = None
    error: float | None = None
    speedup: float | None = None
    sizes: tuple[int, int] | None = None


def from_json(data: Mapping[str, Any]) -> Row:
    """Return the row with these fields; raise KeyError, TypeError or ValueError for any other data."""
    fields: dict[str, Any] = {**data, "status": Status(data["status"])}
    if fields["sizes"]:
        before, after = fields["sizes"]
        fields["sizes"] = (before, after)
    return Row(**fields)


def numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """Extract the numbers of a row from the JSON report of a rewrite."""
    nodes, verdict = report["nodes"], report["verification"] or {}
    floats = nodes["half"] + nodes["mixed"] + nodes["full"]
    errors = [output["error"] for output in verdict.get("outputs", ()) if output["error"] is not None]
    finite = [error for error in map(_number, errors) if error is not None]
    return {
        "half": (nodes["half"] + nodes["mixed"]) / floats if floats and report["changed"] else None,
        "casts": report["casts_added"],
        "error": max(finite, default=None) if len(finite) == len(errors) else None,
        "speedup": _number((report["prediction"] or {}).get("speedup")),
        "sizes": (report["size_before"], report["size_after"]),
    }


def _number(value: object) -> float | None:
    """Return a number of a report; None for text, which stands for a non-finite value."""
    return float(value) if isinstance(value, (int, float)) else None


def status_of(report: Mapping[str, Any]) -> tuple[Status, str]:
    """Return the status of a rewrite with a report, and the reason for it."""
    why = report["not_verified"] or ""
    if not report["ok"]:
        return Status.FAR, "; ".join(["the result is not valid", *map(str, report["broken"])])
    verdict = report["verification"] or {}
    if "outputs" in verdict:
        doubt = Status.UNKNOWN if verdict["is_made_up"] else Status.INCONCLUSIVE
        bad = doubt if why == "; ".join(verdict["unproven"]) else Status.FAR
        return (bad, why) if why else (Status.CLOSE, "; ".join(verdict["warnings"]))
    if report["changed"]:
        return Status.NOT_COMPARED, why
    return Status.UNCHANGED, _unchanged(report)


def _unchanged(report: Mapping[str, Any]) -> str:
    """Return the reason why a model is unchanged; empty where it has no float32."""
    if report["gated"]:
        return f"{report['half']} is predicted to be no faster"
    if (obstacle := report["obstacle"]) is None:
        return ""
    already = [f"it has {report['half']} already"] if obstacle["already"] else []
    return "; ".join([*already, obstacle["why"]] if obstacle["why"] else already)
