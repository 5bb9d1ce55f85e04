"""Synthetic floating-point inputs: normally distributed, except for masks, images, positive operands, and
what has a declared range.
"""

from __future__ import annotations

import numpy as np

from amp_rewrite.bounds import given
from amp_rewrite.model.constants import stored_as
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.running.inputs import positive_sums
from amp_rewrite.running.inputs.consumers import NodeInput
from amp_rewrite.running.inputs.input_source import ImageRange
from amp_rewrite.running.inputs.input_spec import Array, InputSpec, Rule, node_inputs


def _past(spec: InputSpec) -> Array | None:
    return spec.full(0) if spec.is_past else None


def _mask(spec: InputSpec) -> Array | None:
    """0 for a mask that is added before a softmax, 1 for one that is multiplied."""
    if spec.reaches(_ADDED_MASKS):
        return spec.full(0)
    if "mask" not in spec.words:
        return None
    sums = (use.node.outputs[0] for use in spec.uses if use.operator == "Add")
    behind = (use for total in sums for use in spec.consumers.of(total))
    return spec.full(0 if any(use.operator == "Softmax" for use in behind) else 1)


_ADDED_MASKS = (
    node_inputs("Attention", 3)
    | node_inputs("com.microsoft:Attention", 5)
    | node_inputs("com.microsoft:MultiHeadAttention", 5)
)


def _scales(spec: InputSpec) -> Array | None:
    """Scales of 2 for all axes but batch and channels."""
    if not spec.reaches(_SCALES) or len(spec.shape) != 1:
        return None
    return np.where(np.arange(spec.length) < 2, 1.0, 2.0)


_SCALES = node_inputs("Resize", 2) | node_inputs("Upsample", 1)


def _in_domain(spec: InputSpec) -> Array | None:
    """Numbers in the domain of the functions that they reach; the narrowest domain first."""
    for inputs, (low, high) in _DOMAINS:
        if spec.reaches(inputs):
            return spec.uniform(low, high)
    narrow = any(positive_sums.needs_positive(spec.consumers, use) for use in spec.uses)
    return spec.uniform(*_POSITIVE) if narrow else None


_POSITIVE = (0.1, 1.0)
_DOMAINS = (
    (node_inputs("Acosh", 0), (1.1, 2.0)),
    (
        node_inputs("Acos Asin Atanh", 0)
        | node_inputs("NonMaxSuppression", 3, 4)
        | node_inputs("Dropout", 1),
        (0.1, 0.9),
    ),
    (
        node_inputs("Sqrt Log Reciprocal", 0) | node_inputs("Div", 1) | node_inputs("BatchNormalization", 4),
        _POSITIVE,
    ),
)
"""Node inputs with a restricted domain, and bounds within it: ratios, variances, denominators."""


def _declared(spec: InputSpec) -> Array | None:
    """Numbers in the range that the user declared, where half holds them: what it does not stays float32."""
    if spec.declared is None or not max(map(abs, spec.declared)) <= FLOAT16.largest:
        return None
    return spec.uniform(*spec.declared)


def _image(spec: InputSpec) -> Array | None:
    """An image in the range that the graph says; in `unsaid_images` where it says nothing."""
    if not given.is_image(spec.input.value, spec.shape):
        return None
    images = said_range(spec) or spec.unsaid_images
    return spec.uniform(0.0, images.most)


def _normal(spec: InputSpec) -> Array:
    return spec.random.standard_normal(spec.shape)


RULES: tuple[Rule, ...] = (_past, _mask, _scales, _in_domain, _declared, _image, _normal)
"""The rules for floating-point inputs; the last one always applies."""


def is_image(spec: InputSpec) -> bool:
    """Whether an input is synthesised as an image."""
    before = RULES[: RULES.index(_image)]
    return given.is_image(spec.input.value, spec.shape) and all(rule(spec) is None for rule in before)


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
