"""The batch that a recurrent layer is for, where the model stores its initial state."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as

LAYERS = ("LSTM", "GRU", "RNN")
_STATES = (5, 6)
"""The inputs that are the initial hidden state, and the cell of an LSTM."""
STATE_INPUTS = frozenset((layer, index) for layer in LAYERS for index in _STATES)
"""These by operator."""


def batch_axis(layer: ir.Node) -> int:
    """The axis of the batch, in data and states: [sequence, batch, features] and [directions, batch, hidden],
    or first, as `layout` says.
    """
    return 0 if layer.attributes.get_int("layout", 0) else 1


def stored_batch(layer: ir.Node) -> int | None:
    """The size of the batch of the state that a layer begins with; None where the model stores none."""
    if layer.op_type not in LAYERS or layer.domain:
        return None
    stored = (stored_as(layer.inputs[index]) for index in _STATES if index < len(layer.inputs))
    shapes = (state.shape.numpy() for state in stored if state is not None)
    return next((int(shape[batch_axis(layer)]) for shape in shapes if len(shape) == _RANK), None)


_RANK = 3
