"""Masks of scores: values so large that a softmax makes 0 or 1 of them, whatever they are exactly.

A stored value beyond half's range may be clamped where it ends in softmaxes alone. What adds it to scores, or
puts it in their place, keeps it as large; so does a product with integers, or with numbers near 1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.numbered import Node, Numbered
from amp_rewrite.onnx_facts.operators import (
    ALL,
    ATTENTION_RESULTS,
    FIRST,
    LARGEST_MASK_SCALE,
    MASK_CARRIERS,
    SOFTMAX_PORTS,
)

_MOST_ELEMENTS = 1 << 20
"""Elements up to which a stored factor is read."""

_INTEGERS = frozenset(
    int(getattr(TensorProto, name))
    for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)


class Masks:
    """The readers of the values of a model, followed to the softmaxes that they end in."""

    def __init__(self, model: Numbered) -> None:
        self._model = model

    def is_mask(self, number: int) -> bool:
        """Whether a value ends in softmaxes alone."""
        waiting, reached, ends = [number], {number}, False
        while waiting:
            value = waiting.pop()
            if value in self._leaving:
                return False
            for node, port in self._readers.get(value, ()):
                if port == SOFTMAX_PORTS.get(node.operator) and node.count <= ATTENTION_RESULTS:
                    ends = True
                elif node.operator[1] not in ("Shape", "Size"):
                    if node.operator[0] or not self._carries(node, port):
                        return False
                    made = {*range(node.first, node.first + node.count)} - reached
                    reached |= made
                    waiting += made
        return ends

    def _carries(self, node: Node, port: int) -> bool:
        name, inputs = node.operator[1], node.inputs
        if name == "Mul":
            return self._is_scale(inputs[1 - port]) or self._is_whole(inputs[1 - port])
        if name == "Div":
            return port == 0 and self._is_scale(inputs[1])
        return port in MASK_CARRIERS.get(name, ())

    def _is_scale(self, number: int) -> bool:
        """Whether a value is stored, and near 1."""
        array = self._array(number)
        if array is None:
            return False
        sizes = np.abs(array.astype(np.float32))
        return bool(((sizes >= 1 / LARGEST_MASK_SCALE) & (sizes <= LARGEST_MASK_SCALE)).all())

    def _is_whole(self, number: int) -> bool:
        """Whether the elements of a value are integers by what makes them."""
        model, waiting, reached = self._model, [number], {number}
        while waiting:
            value = waiting.pop()
            node, name = model.makers[value], ""
            if model.kinds[value] in _INTEGERS:
                continue
            if node is None:
                array = self._array(value)
                if array is None or not np.array_equal(array, np.rint(array.astype(np.float32))):
                    return False
                continue
            name = node.operator[1]
            ports = FIRST if name == "Cast" else ALL if name == "Mul" else MASK_CARRIERS.get(name)
            if node.operator[0] or ports is None:
                return False
            before = {each for port, each in enumerate(node.inputs) if port in ports} - reached
            reached |= before
            waiting += before
        return True

    def _array(self, number: int) -> np.ndarray | None:
        """A stored value of at most a million elements; None for any other."""
        tensor = self._model.stored.get(number)
        is_small = isinstance(tensor, TensorProto) and np.prod(tensor.dims, dtype=float) <= _MOST_ELEMENTS
        if not is_small or tensor.data_type == TensorProto.STRING:
            return None
        return tensors.whole(tensor, self._model.folder)

    @functools.cached_property
    def _leaving(self) -> frozenset[int]:
        """The values that leave the model or a body."""
        roots = self._model.roots
        bodies = (body for node in self._nodes() for body in node.bodies or ())
        numbers = [number for _, number in self._model.outputs]
        return frozenset(roots[each] for each in (*numbers, *(v for body in bodies for v in body.outputs)))

    @functools.cached_property
    def _readers(self) -> Mapping[int, list[tuple[Node, int]]]:
        readers: dict[int, list[tuple[Node, int]]] = {}
        for node in self._nodes():
            for port, value in enumerate(node.inputs):
                readers.setdefault(value, []).append((node, port))
        return readers

    def _nodes(self) -> Iterator[Node]:
        """All nodes, each once, but for the Casts that values are read through."""
        model = self._model
        made = (number for number, root in enumerate(model.roots) if root == number)
        return (
            node for number in made if (node := model.makers[number]) is not None and node.first == number
        )
