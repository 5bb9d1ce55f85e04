"""Model-local functions: their calls become the nodes of their bodies, so that these can be coloured."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from amp_rewrite.model_io import root_cause


def inline(model: ir.Model) -> str | None:
    """Inlines all functions of `model`; returns a warning when that cannot be done.

    Then nothing has changed, and the calls stay opaque: float32, as are the functions themselves.
    """
    if not model.functions:
        return None
    try:
        trial = InlinePass()(model.clone()).model
    except Exception as error:  # a pass reports the many ways of an odd model in many ways
        return f"functions stay float32: they cannot be inlined ({root_cause(error)})"
    model.graph, kept = trial.graph, dict(trial.functions)
    model.functions.clear()
    model.functions.update(kept)
    return None
