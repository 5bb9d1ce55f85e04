"""An input that is to be made up, and what the model says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import Consumers, NodeInput
from amp_rewrite.running.inputs.model_inputs import Input
from amp_rewrite.running.inputs.synthetic_sizes import Shape, name_words

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input that is to be made up: its shape, where it goes, and its own stream of random numbers.

    `shapes` are those of all inputs, by value.
    """

    input: Input
    shape: Shape
    uses: tuple[NodeInput, ...]
    all_shapes: Mapping[ir.Value, Shape]
    consumers: Consumers
    random: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def dtype(self) -> ir.DataType:
        """The type of its elements."""
        return self.input.dtype or ir.DataType.UNDEFINED

    @property
    def words(self) -> frozenset[str]:
        """The words of the input's name."""
        return name_words(self.input.name)

    def full(self, value: float) -> Array:
        """That value everywhere."""
        return np.full(self.shape, value)

    def uniform(self, low: float, high: float) -> Array:
        """Numbers between the two, all as likely."""
        return self.random.uniform(low, high, self.shape)

    def reaches(self, ports: frozenset[tuple[str, int]]) -> bool:
        """Whether it gets to one of these ports, through movement and casts."""
        return any(port.key in ports for port in self.uses)

    def feeds_directly(self, port: NodeInput) -> bool:
        """Whether the port reads the input itself."""
        return port.input_at(port.index) is self.input.value

    def shape_of(self, value: ir.Value | None) -> Shape | None:
        """The shape of a value that another port reads; None when it is not known."""
        return _shape(value, self.all_shapes)

    @property
    def is_past(self) -> bool:
        """Whether it was computed before."""
        return _is_past(self.input.name, self.shape)

    @property
    def pasts(self) -> tuple[Shape, ...]:
        """The shapes of all inputs that were computed before: [batch, heads, length, head size]."""
        return tuple(s for v, s in self.all_shapes.items() if len(s) == 4 and _is_past(v.name or "", s))


def _is_past(name: str, shape: Shape) -> bool:
    """Keys, values and states have several axes; tables of cosines are cached too."""
    return bool(name_words(name) & {"past", "cache"}) and len(shape) >= 3


Rule = Callable[[InputSpec], Array | None]
"""Makes the values of an input that it fits; None for all others."""


def node_inputs(text: str, *indices: int) -> frozenset[tuple[str, int]]:
    """The ports of those indices of the operators that the text names."""
    return frozenset((operator, index) for operator in text.split() for index in indices)


def _shape(value: ir.Value | None, shapes: Mapping[ir.Value, Shape]) -> Shape | None:
    """The shape of a given, stored or declared value, also behind Cast and DequantizeLinear."""
    if value is None:
        return None
    if value in shapes:
        return shapes[value]
    stored = stored_as(value)
    if stored is not None:
        return tuple(stored.shape.numpy())
    if value.shape is not None and value.shape.is_static():
        return tuple(value.shape.numpy())
    node = value.producer()
    if node is None or node.op_type not in ("Cast", "DequantizeLinear", "Identity"):
        return None
    return _shape(node.inputs[0], shapes)
