"""What an earlier rewrite of a model kept in float32 for what it saw in runs.

Nothing but a run shows it, and a second rewrite may make none.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.analysis.observed import Held
from amp_rewrite.errors import ModelError
from amp_rewrite.policy.entries import Entry, Kind
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.rewriting import annotations


def find(model: ir.Model) -> Held:
    """The evidence for it, by the names of values; none of decisions that are damaged, which `annotations`
    warns of. What a list denied is among it: where a comparison failed, bounds no longer free it.
    """
    if not any(told in model.metadata_props.get(annotations.KEY, "") for told in _TOLD):
        return {}
    try:
        decided = annotations.read(model)
    except ModelError:
        return {}
    kept = (decision for decision in (decided.all if decided else ()) if not decision.is_half)
    return {
        name: decision.entry.evidence for decision in kept if _holds(decision.entry) for name in decision.defs
    }


_TOLD = (Authority.OBSERVATION.value, f'"{Kind.DENY.value}"')
"""What the metadata has where there may be anything to find."""


def _holds(entry: Entry) -> bool:
    denied = entry.kind is Kind.DENY and entry.authority is Authority.LIST
    return denied or entry.authority is Authority.OBSERVATION
