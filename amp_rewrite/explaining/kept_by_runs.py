"""How much stays float32 by what runs showed: in this rewrite, and in an earlier one of the same model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from amp_rewrite.analysis.held import Held
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.rewriting.report import Report


def counted(report: Report, painting: Painting, before: Held) -> Report:
    """The report with these counts; `before` is what the earlier rewrite saw."""
    earlier = {id(evidence) for evidence in before.values()}
    now = [entry.evidence for entry in painting.entries if id(entry.evidence) not in earlier]
    reasons = Counter(evidence.reason for evidence in now)
    faint = (evidence for evidence in now if evidence.reason is Reason.FAINT_OUTPUT)
    return replace(
        report,
        observed=reasons[Reason.OBSERVED_OVERFLOW],
        sensitive=reasons[Reason.SENSITIVE],
        earlier=len(painting.entries) - len(now),
        faint={evidence.subject: evidence.number or 0.0 for evidence in faint},
    )
