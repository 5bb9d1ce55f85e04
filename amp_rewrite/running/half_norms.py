"""Norms whose statistics are float32, and whose mean, scale and shift are half before they are applied.

So does onnxruntime's WebGPU provider (version 0.4.0: `LayerNorm`, `InstanceNorm`): a mean that is large
beside the deviation costs digits.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.running.half_steps import Steps, sizes


def layer_norm(steps: Steps) -> ir.Value | None:
    """LayerNormalization; None where its statistics are outputs."""
    if len(steps.node.outputs) > 1:
        return None
    value, scale = steps.given(0), steps.given(1)
    bias = steps.third()
    kept = {name: steps.number(name, None) for name in ("axis", "epsilon", "stash_type")}
    inverse = steps.op("LayerNormalization", value, scale, bias, outputs=3, **kept)
    mean = steps.made[-1].outputs[1]
    centred = steps.rounded(steps.op("Sub", value, steps.rounded(mean)))
    made = steps.op("Mul", steps.times(centred, steps.rounded(inverse)), scale)
    return made if bias is None else steps.op("Add", steps.rounded(made), bias)


def simplified_layer_norm(steps: Steps) -> ir.Value | None:
    """SimplifiedLayerNormalization, as onnxruntime has it; None where its statistics are outputs."""
    if len(steps.node.outputs) > 1:
        return None
    value, scale = steps.given(0), steps.given(1)
    kept = {name: steps.number(name, None) for name in ("axis", "epsilon", "stash_type")}
    inverse = steps.op("SimplifiedLayerNormalization", value, scale, outputs=2, **kept)
    return steps.op("Mul", steps.times(value, steps.rounded(inverse)), scale)


def instance_norm(steps: Steps) -> ir.Value | None:
    """InstanceNormalization, one product and one sum per element; None where the rank is not known."""
    value, rank = steps.given(0), len(sizes(steps.inputs[0]) or ())
    if rank < 3:
        return None
    channels = [1, -1, *[1] * (rank - 2)]
    scale, bias = (steps.shaped(steps.given(port), channels) for port in (1, 2))
    mean = steps.op("GlobalAveragePool", value)
    squares = steps.op("GlobalAveragePool", steps.op("Mul", value, value))
    variance = steps.op("Sub", squares, steps.op("Mul", mean, mean))
    deviation = steps.op("Sqrt", steps.op("Add", variance, steps.floats(steps.number("epsilon", 1e-5))))
    factor = steps.op("Div", scale, deviation)
    shift = steps.op("Sub", bias, steps.op("Mul", mean, factor))
    return steps.op("Add", steps.times(value, steps.rounded(factor)), steps.rounded(shift))
