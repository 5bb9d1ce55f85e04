"""What bounds decide: what is declared too large stays float32, and what is proven tame is not denied."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.bounds import bounding, declared, tame
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.policy.evidence import Evidence
from amp_rewrite.policy.options import Level, Options


def needs(facts: Facts, options: Options) -> bool:
    """Whether bounds decide anything of a model: for float16, of which the lists deny what overflows."""
    if facts.old_opset is not None:
        return False
    quickly = _frees(options) and bounding.is_quick(facts)
    return bool(options.ranges) or (quickly and any(True for _ in tame.candidates(facts)))


def _frees(options: Options) -> bool:
    return options.free and options.half is FLOAT16 and options.level is Level.DEFAULT


def decided(facts: Facts, root: ir.Graph, proven: Proven, options: Options) -> Facts:
    """The facts with what follows from bounds."""
    if facts.old_opset is not None:
        return facts
    found = declared.find(facts, root, proven, options.half)
    freed = tame.find(facts, proven, options.half) if _frees(options) else {}
    held = {unit: each for unit, each in found.items() if _counts(facts, unit, each)}
    return replace(facts, findings={**facts.findings, **held}, freed=freed)


def _counts(facts: Facts, unit: int, evidence: Evidence) -> bool:
    own = facts.findings.get(unit)
    return own is None or evidence.authority.outranks(own.authority)
