"""Which of several comparisons counts: the one whose inputs amplify rounding errors least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from amp_rewrite.running.verdict import NotJudged, Verdict

BETTER = 2.0
"""How many times smaller float32's noise is on clearly better-conditioned inputs."""

ALIVE = 2.0**-27
"""An eighth of float32's unit roundoff: less noise than this has no model that computes its outputs, but one
whose outputs are saturated (clipped, say) by inputs out of range.
"""


def best(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on the inputs with the least noise of float32, the first of equals; it names the others."""
    chosen = verdicts[0]
    for verdict in verdicts[1:]:
        if _is_better(verdict, chosen):
            chosen = verdict
    others = tuple(_not_judged(verdict) for verdict in verdicts if verdict is not chosen)
    return replace(chosen, not_judged=others)


def _is_better(verdict: Verdict, chosen: Verdict) -> bool:
    found, other = verdict.noise, chosen.noise
    if found is None or other is None or verdict.unproven:
        return False
    return ALIVE <= found <= other / BETTER


def _not_judged(verdict: Verdict) -> NotJudged:
    images = verdict.inputs.images.value if verdict.inputs.images else ""
    return NotJudged(images, verdict.error, verdict.noise, verdict.ok)
