"""What an earlier rewrite of a model kept in float32 for what it saw in runs.

Nothing but a run shows it, and a second rewrite may make none.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.analysis.held import Held
from amp_rewrite.errors import ModelError
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.rewriting import annotations


def find(model: ir.Model) -> Held:
    """The evidence for it, by the names of values; none of decisions that are damaged, which `annotations`
    warns of.
    """
    if Authority.OBSERVATION.value not in model.metadata_props.get(annotations.KEY, ""):
        return {}
    try:
        decided = annotations.read(model)
    except ModelError:
        return {}
    kept = (decision for decision in (decided.all if decided else ()) if not decision.is_half)
    return {
        name: decision.entry.evidence
        for decision in kept
        if decision.entry.evidence.authority is Authority.OBSERVATION
        for name in decision.defs
    }
