"""Synthetic floating-point inputs: normally distributed, except for masks, images, positive operands, and
what has a declared range.
"""

from __future__ import annotations

import numpy as np

from amp_rewrite.bounds import given
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.running.inputs import positive_sums, said_ranges
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
    images = said_ranges.said_range(spec) or spec.unsaid_images
    return spec.uniform(0.0, images.most)


def _normal(spec: InputSpec) -> Array:
    return spec.random.standard_normal(spec.shape)


RULES: tuple[Rule, ...] = (_past, _mask, _scales, _in_domain, _declared, _image, _normal)
"""The rules for floating-point inputs; the last one always applies."""


def is_image(spec: InputSpec) -> bool:
    """Whether an input is synthesised as an image."""
    before = RULES[: RULES.index(_image)]
    return given.is_image(spec.input.value, spec.shape) and all(rule(spec) is None for rule in before)
