"""Sums of which a root, a logarithm or a reciprocal is taken: all that they add up is to be positive.

degree = ReduceSum(A)         of an adjacency matrix, with 1 on its diagonal; a product with ones
Pow(degree, -0.5)             or Sqrt, Log, Reciprocal, a division by it
"""

from __future__ import annotations

import numpy as np

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.input_spec import node_inputs
from amp_rewrite.running.inputs.sizes import Consumers, NodeInput

_DEFINED = node_inputs("Sqrt Log", 0)
_DIVIDES = node_inputs("Reciprocal", 0) | node_inputs("Div", 1)
_REDUCED = node_inputs("ReduceSum ReduceMean", 0)
_MOST = 4
"""The most sums one behind the other."""
_FEW = 1 << 16
"""The most weights of a product that is taken for a sum; more are those of a layer."""


def needs_positive(consumers: Consumers, use: NodeInput) -> bool:
    """Whether what this node input reads is to be positive, for itself or for sums of it."""
    return _is_undefined_below_0(use) or _leads_on(consumers, use, _MOST)


def _leads_on(consumers: Consumers, use: NodeInput, left: int) -> bool:
    """Whether it is added up, and the sum is to be positive; a reciprocal may be of what is reduced."""
    if not left or not _is_added_up(use):
        return False
    is_reduced = use.operator != "Add"
    return any(
        _is_undefined_below_0(after)
        or (is_reduced and after.key in _DIVIDES)
        or _leads_on(consumers, after, left - 1)
        for after in consumers.of(use.node.outputs[0])
    )


def _is_undefined_below_0(use: NodeInput) -> bool:
    """A root, a logarithm, or a power whose exponent is unknown, negative or not an integer."""
    if use.key != ("Pow", 0):
        return use.key in _DEFINED
    exponent = stored_as(use.input_at(1))
    return exponent is None or bool(np.any(exponent.numpy() % 1) or np.any(exponent.numpy() < 0))


def _is_added_up(use: NodeInput) -> bool:
    """Whether a node adds up what it reads there, alone or to something else, with no negative weight."""
    if use.operator == "Einsum":
        return len(use.node.inputs) == 1
    if use.operator == "MatMul":
        weights = stored_as(use.input_at(1 - use.index))
        return weights is not None and weights.size <= _FEW and bool(np.all(weights.numpy() >= 0))
    return use.operator == "Add" or use.key in _REDUCED
