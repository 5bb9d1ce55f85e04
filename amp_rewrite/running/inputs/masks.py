"""The value of a mask that keeps everything: exporters mean either by 1."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.sizes import Consumers

_HUGE = -1e3
"""From here on a negative number masks: exporters write -1e4, -1e9, the lowest float32 or minus infinity."""


def kept(mask: ir.Value, consumers: Consumers) -> int:
    """Return 0 for a mask whose ones lead to a huge negative number, else 1."""
    todo = [(mask, 1)]
    for value, turned in todo:  # what 1 has become there
        for use in consumers.of(value):
            operands, output = list(use.node.inputs), use.node.outputs[0]
            if use.key == ("Where", 0) and any(map(_is_huge, operands[1:])):
                return turned if _is_huge(operands[2]) else 1 - turned
            if use.operator == "Mul" and any(map(_is_huge, operands)):
                return 1 - turned
            is_compared = use.operator == "Equal" and any(patterns.scalar(each) == 0 for each in operands)
            if use.operator == "Not" or is_compared or use.key == ("Sub", 1):
                todo.append((output, 1 - turned))
            elif use.operator in ("And", "Or"):
                todo.append((output, turned))
    return 1


def _is_huge(value: ir.Value | None) -> bool:
    constant = None if value is None else stored_as(patterns.source(value))
    return constant is not None and constant.size > 0 and bool(np.all(constant.numpy() <= _HUGE))
