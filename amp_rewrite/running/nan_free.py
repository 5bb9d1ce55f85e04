"""Values that cannot be NaN where the extremes of what they are computed from fit float16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from amp_rewrite.running.followers import Stored

_KEEP = frozenset(
    "Add AveragePool Clip Concat Conv GlobalAveragePool MatMul MaxPool Mul Relu Sigmoid Softmax Sub "
    "Tanh".split()
)
"""Operators whose output is finite where inputs are, if sums of their products do not leave float32."""

_LARGEST_SUM = 1e30
"""The largest sum of a stored tensor's magnitudes; times what fits float16, it is far within float32."""


def values(graph: onnx.GraphProto, is_known: Callable[[str], bool], tensors: Stored) -> frozenset[str]:
    """Those of a graph that are computed from tensors that are stored, and of values which are known: that
    are found not to fit where they do not, and to have a NaN where they have one.
    """
    stored: dict[str, bool] = {}

    def is_finite(name: str) -> bool:
        if not name or is_known(name):
            return True
        if name not in stored:
            stored[name] = name in tensors and _is_moderate(tensors[name])
        return stored[name]

    computed = (node for node in graph.node if node.domain == "" and node.op_type in _KEEP)
    return frozenset(node.output[0] for node in computed if all(map(is_finite, node.input)))


def _is_moderate(tensor: TensorProto) -> bool:
    """Whether a tensor is float32, and finite, and the sum of its magnitudes is not too large."""
    if tensor.data_type != TensorProto.FLOAT:
        return False
    total = np.abs(numpy_helper.to_array(tensor)).sum(dtype=np.float64)
    return bool(total <= _LARGEST_SUM)  # which NaN is not
