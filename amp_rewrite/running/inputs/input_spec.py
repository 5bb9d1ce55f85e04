"""An input that is to be made up, and what the model says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.destinations import Destinations, Port
from amp_rewrite.running.inputs.model_inputs import Input
from amp_rewrite.running.inputs.synthetic_sizes import Shape, words

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An input that is to be made up: its shape, where it goes, and its own stream of random numbers.

    `shapes` are those of all inputs, by value.
    """

    given: Input
    shape: Shape
    ports: tuple[Port, ...]
    shapes: Mapping[ir.Value, Shape]
    destinations: Destinations
    random: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def dtype(self) -> ir.DataType:
        """The type of its elements."""
        return self.given.dtype or ir.DataType.UNDEFINED

    @property
    def words(self) -> frozenset[str]:
        """The words of the input's name."""
        return words(self.given.name)

    def full(self, value: float) -> Array:
        """That value everywhere."""
        return np.full(self.shape, value)

    def within(self, low: float, high: float) -> Array:
        """Numbers between the two, all as likely."""
        return self.random.uniform(low, high, self.shape)

    def goes_to(self, ports: frozenset[tuple[str, int]]) -> bool:
        """Whether it gets to one of these ports, through movement and casts."""
        return any(port.place in ports for port in self.ports)

    def is_read_by(self, port: Port) -> bool:
        """Whether the port reads the input itself."""
        return port.other(port.index) is self.given.value

    def size(self, value: ir.Value | None) -> Shape | None:
        """The shape of a value that another port reads; None when it is not known."""
        return _shape(value, self.shapes)

    @property
    def is_past(self) -> bool:
        """Whether it was computed before."""
        return _is_past(self.given.name, self.shape)

    @property
    def pasts(self) -> tuple[Shape, ...]:
        """The shapes of all inputs that were computed before: [batch, heads, length, head size]."""
        return tuple(s for v, s in self.shapes.items() if len(s) == 4 and _is_past(v.name or "", s))


def _is_past(name: str, shape: Shape) -> bool:
    """Keys, values and states have several axes; tables of cosines are cached too."""
    return bool(words(name) & {"past", "cache"}) and len(shape) >= 3


Rule = Callable[[Wanted], Array | None]
"""Makes the values of an input that it fits; None for all others."""


def ports(text: str, *indices: int) -> frozenset[tuple[str, int]]:
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
