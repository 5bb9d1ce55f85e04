"""Inputs that are images, and the range that the graph takes them to have."""

from __future__ import annotations

import numpy as np

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.image_range import ImageRange
from amp_rewrite.running.inputs.input_spec import InputSpec
from amp_rewrite.running.inputs.sizes import NodeInput


def said_range(spec: InputSpec) -> ImageRange | None:
    """The range that the graph takes an image to have, by the first constant that it subtracts or scales by;
    None if it says nothing.
    """
    found = (_said_by(use) for use in spec.uses)
    return next((said for said in found if said is not None), None)


def _said_by(use: NodeInput) -> ImageRange | None:
    """A mean, a divisor or a bound of more than two is for 0..255, and so is a factor of less than 0.1:
    1/255, 1/127.5 and the inverse of its usual standard deviations (57 to 59) are.
    """
    constant = _constant(use)
    if constant is None:
        return None
    if use.operator == "Mul" and constant < _FACTOR:
        return ImageRange.BYTES
    large = constant > _LARGE and use.operator != "Mul"
    return ImageRange.BYTES if large else ImageRange.UNIT


_FACTOR, _LARGE = 0.1, 2.0


def _constant(use: NodeInput) -> float | None:
    """The largest magnitude of the stored operand that says something of the range; None if there is none."""
    at = _OPERANDS.get(use.key)
    stored = None if at is None else stored_as(use.input_at(at))
    if stored is None or not stored.size:
        return None
    found = float(np.abs(stored.numpy().astype(np.float64)).max())
    return found if np.isfinite(found) and found else None


_OPERANDS = {
    ("Add", 0): 1,
    ("Add", 1): 0,
    ("BatchNormalization", 0): 3,
    ("Clip", 0): 2,
    ("Div", 0): 1,
    ("Min", 0): 1,
    ("Mul", 0): 1,
    ("Mul", 1): 0,
    ("Sub", 0): 1,
    ("Sub", 1): 0,
}
"""For the node inputs that read an image: where the node has its constant."""
