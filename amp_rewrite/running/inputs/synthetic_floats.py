"""Floats made up: normal, but for masks, images, and what must be positive."""

from __future__ import annotations

import numpy as np

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import NodeInput
from amp_rewrite.running.inputs.input_spec import Array, InputSpec, Rule, node_inputs


def _past(wanted: InputSpec) -> Array | None:
    return wanted.full(0) if wanted.is_past else None


def _float_mask(wanted: InputSpec) -> Array | None:
    """A mask that is added before a softmax is 0 where all is seen; one that multiplies is 1."""
    if wanted.reaches(_ADDED_MASKS):
        return wanted.full(0)
    if "mask" not in wanted.words:
        return None
    sums = (port.node.outputs[0] for port in wanted.uses if port.operator == "Add")
    behind = (port for total in sums for port in wanted.consumers.of(total))
    return wanted.full(0 if any(port.operator == "Softmax" for port in behind) else 1)


_ADDED_MASKS = frozenset(
    (("Attention", 3), ("com.microsoft:Attention", 5), ("com.microsoft:MultiHeadAttention", 5))
)


def _scales(wanted: InputSpec) -> Array | None:
    """Twice as large, behind batch and channels."""
    scales = wanted.reaches(node_inputs("Resize", 2) | node_inputs("Upsample", 1)) and len(wanted.shape) == 1
    return np.where(np.arange(wanted.shape[0]) < 2, 1.0, 2.0) if scales else None


def _in_domain(wanted: InputSpec) -> Array | None:
    """Numbers that the functions they go to are defined for; those with the narrowest domain first."""
    places = {port.key for port in wanted.uses}
    ranges = (bounds for ports_, bounds in _DOMAINS if places & ports_)
    bounds = next(ranges, _POSITIVE if any(map(_is_root, wanted.uses)) else None)
    return wanted.uniform(*bounds) if bounds is not None else None


_POSITIVE = (0.1, 1.0)
_DOMAINS: tuple[tuple[frozenset[tuple[str, int]], tuple[float, float]], ...] = (
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
"""The ports that take some numbers only, and bounds of those: shares, variances, denominators."""


def _is_root(port: NodeInput) -> bool:
    """Whether it is raised to a power that is no whole number, or that is not known."""
    if port.key != ("Pow", 0):
        return False
    exponent = stored_as(port.input_at(1))
    return exponent is None or bool(np.any(exponent.numpy() % 1))


def _image(wanted: InputSpec) -> Array | None:
    channels = {wanted.shape[1], wanted.shape[3]} if len(wanted.shape) == 4 else set[int]()
    return wanted.uniform(0.0, 1.0) if channels & {1, 3} else None


def _normal(wanted: InputSpec) -> Array:
    return wanted.random.standard_normal(wanted.shape)


RULES: tuple[Rule, ...] = (_past, _float_mask, _scales, _in_domain, _image, _normal)
"""What a float input may be; the last rule fits all."""
