"""What the rules for synthetic inputs know about an input: its shape, name and uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import Consumers, NodeInput
from amp_rewrite.running.inputs.input_source import ImageRange
from amp_rewrite.running.inputs.model_inputs import Input
from amp_rewrite.running.inputs.synthetic_size_rules import Shape, name_words

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input to synthesise: its shape, the node inputs that it reaches, and its random number generator.

    `all_shapes` has the shapes of all inputs of the model, `unsaid_images` is the range of images for which
    the graph does not say one, `declared` the range that the user declared, `sample` the position of the
    sample that it is for.
    """

    input: Input
    shape: Shape
    uses: tuple[NodeInput, ...]
    all_shapes: Mapping[ir.Value, Shape]
    consumers: Consumers
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    unsaid_images: ImageRange = ImageRange.UNIT
    declared: tuple[float, float] | None = None
    sample: int = 0

    @property
    def dtype(self) -> ir.DataType:
        """The element type."""
        return self.input.dtype or ir.DataType.UNDEFINED

    @property
    def words(self) -> frozenset[str]:
        """The words of the input's name."""
        return name_words(self.input.name)

    @property
    def length(self) -> int:
        """The size of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def is_single(self) -> bool:
        """Whether it has exactly one element."""
        return all(size == 1 for size in self.shape)

    def full(self, value: float) -> Array:
        """An array filled with `value`."""
        return np.full(self.shape, value)

    def uniform(self, low: float, high: float) -> Array:
        """Uniformly distributed random numbers."""
        return self.random.uniform(low, high, self.shape)

    def reaches(self, inputs: frozenset[tuple[str, int]]) -> bool:
        """Whether it reaches one of these node inputs, directly or moved and cast."""
        return any(use.key in inputs for use in self.uses)

    def feeds_directly(self, use: NodeInput) -> bool:
        """Whether this node input reads the input itself."""
        return use.input_at(use.index) is self.input.value

    def shape_of(self, value: ir.Value | None) -> Shape | None:
        """The shape of another value, also through Cast and DequantizeLinear; None if unknown."""
        if value is None:
            return None
        if value in self.all_shapes:
            return self.all_shapes[value]
        stored = stored_as(value)
        if stored is not None:
            return tuple(stored.shape.numpy())
        if value.shape is not None and value.shape.is_static():
            return tuple(value.shape.numpy())
        node = value.producer()
        if node is None or node.op_type not in ("Cast", "DequantizeLinear", "Identity"):
            return None
        return self.shape_of(node.inputs[0])

    @property
    def chooses(self) -> bool:
        """Whether it is the truth value that chooses the branch of an If."""
        return self.dtype == ir.DataType.BOOL and self.reaches(_CONDITION)

    @property
    def is_past(self) -> bool:
        """Whether it is state from previous steps, by its name."""
        return _is_past(self.input.name, self.shape)

    @property
    def pasts(self) -> tuple[Shape, ...]:
        """The shapes of all inputs with keys or values of the past: [batch, heads, length, head size]."""
        return tuple(s for v, s in self.all_shapes.items() if len(s) == 4 and _is_past(v.name or "", s))


_CONDITION = frozenset([("If", 0)])


def _is_past(name: str, shape: Shape) -> bool:
    """Keys, values and states have at least three axes; caches of cosine tables have fewer."""
    return bool(name_words(name) & {"past", "cache"}) and len(shape) >= 3


Rule = Callable[[InputSpec], Array | None]
"""Returns values for the inputs that it applies to, and None for all others."""


def node_inputs(operators: str, *indices: int) -> frozenset[tuple[str, int]]:
    """The keys of the inputs at these indices, for operators separated by spaces."""
    return frozenset((operator, index) for operator in operators.split() for index in indices)
