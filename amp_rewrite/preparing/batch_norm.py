"""What a BatchNormalization in inference mode does to each channel, from what it stores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.preparing import stored_values
from amp_rewrite.preparing.stored_values import Doubles, StoredValues


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """What is done to each channel: `factor * (x - mean) + shift`; `factor` is `scale` over the deviation."""

    scale: Doubles
    factor: Doubles
    mean: Doubles
    shift: Doubles


def read(node: ir.Node, stored: StoredValues, channels: int) -> BatchNorm | None:
    """The statistics of a BatchNormalization of opset 7 or newer; its factor may be infinite or NaN.

    None where it trains, gives more than one output, or does not store one float32 number for each channel.
    """
    vectors = [vector(stored.tensor(value), channels) for value in node.inputs[1:]]
    known = [each for each in vectors if each is not None]
    if len(known) != len(vectors) or len(known) != _PARAMETERS or not _infers(node):
        return None
    scale, shift, mean, variance = known
    epsilon = node.attributes.get_float("epsilon", _EPSILON)
    return BatchNorm(scale, scale / np.sqrt(variance + epsilon), mean, shift)


_PARAMETERS = 4
_EPSILON = float(np.float32(1e-5))


def _infers(node: ir.Node) -> bool:
    """Whether a node normalises by what is stored, in the same way for all elements of a channel."""
    attributes = node.attributes
    types = {name: (attribute.type, attribute.is_ref()) for name, attribute in attributes.items()}
    modes = all(attributes[name].value == plain for name, plain in _PLAIN.items() if name in attributes)
    has_epsilon = types.get("epsilon", _FLOAT) == _FLOAT
    return has_epsilon and modes and not any(value.name for value in node.outputs[1:])


_FLOAT = (ir.AttributeType.FLOAT, False)
_PLAIN = {"training_mode": 0, "spatial": 1}
"""From opset 14 on, and before 9."""


def vector(tensor: ir.TensorProtocol | None, channels: int) -> Doubles | None:
    """The numbers of a stored float32 tensor, where it has one for each channel."""
    if (
        tensor is None
        or tensor.dtype != ir.DataType.FLOAT
        or tensor.shape.numpy() not in ((channels,), (1, channels))
    ):
        return None
    return stored_values.read(tensor).reshape(-1).astype(np.float64)
