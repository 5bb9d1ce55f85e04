"""Weights that are also inputs of the model, so that callers may override them."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW


def warnings(model: ir.Model) -> tuple[str, ...]:
    """That most weights may be overridden, where that is so: PyTorch's `keep_initializers_as_inputs`.

    A few that may be are defaults of inputs, and meant. Below IR version 4 every weight is listed so.
    """
    weights = [value for value in model.graph.initializers.values() if value.dtype is ir.DataType.FLOAT]
    given = sum(value.is_graph_input() for value in weights)
    if model.ir_version < CONSTANT_INPUTS_BELOW or given <= max(_FEW, len(weights) // 2):
        return ()
    return (f"{given:,} of {len(weights):,} weights {_TOLD}",)


_FEW = 2
_TOLD = (
    "are inputs as well, so that callers may override them: no runtime folds those, and they are cast in "
    "every run; if nobody overrides them, make them constants first, by "
    "python -m onnxruntime.tools.remove_initializer_from_input"
)
