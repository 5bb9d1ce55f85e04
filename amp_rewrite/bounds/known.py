"""The environment of the propagation: bounds, sizes and types of values, and norms of stored tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from amp_rewrite.bounds import stored_bounds
from amp_rewrite.bounds.bound import UNKNOWN, Bound
from amp_rewrite.bounds.stored_bounds import MatrixNorms
from amp_rewrite.model.constants import dims, stored_as
from amp_rewrite.onnx_types.element_types import Types

Dim = int | str | None
Dims = tuple[Dim, ...]
WIDE = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE))
"""The element types for which rules of arithmetic hold."""


@dataclass(slots=True)
class Matrix:
    """A stored matrix, possibly transposed: its norms, and a lazy bound of its singular values."""

    tensor: ir.TensorProtocol
    norms: MatrixNorms
    is_transposed: bool = False
    _spectral: float | None = None

    @property
    def spectral(self) -> float:
        """An upper bound of the largest singular value."""
        if self._spectral is None:
            norms = self.norms.transposed if self.is_transposed else self.norms
            self._spectral = stored_bounds.spectral_norm_of(self.tensor, norms)
        return self._spectral

    @property
    def transposed(self) -> Matrix:
        """The transpose."""
        return Matrix(self.tensor, self.norms.transposed, not self.is_transposed, self._spectral)


@dataclass(slots=True)
class Known:
    """The bounds of all values so far, their types, and cached measurements of stored tensors."""

    bounds: dict[ir.Value, Bound]
    variable: frozenset[ir.Value]
    types: Types
    quotients: Mapping[ir.Node, Bound] = field(default_factory=dict[ir.Node, Bound])
    tensors: dict[ir.Value, Bound] = field(default_factory=dict[ir.Value, Bound])
    stored_norms: dict[tuple[ir.Value, int], float] = field(default_factory=dict[tuple[ir.Value, int], float])
    _stored: dict[ir.Value, ir.TensorProtocol | None] = field(
        default_factory=dict[ir.Value, "ir.TensorProtocol | None"]
    )
    shapes: dict[ir.Value, Dims | None] = field(default_factory=dict[ir.Value, "Dims | None"])
    matrices: dict[tuple[ir.Value, int, int], Matrix | None] = field(
        default_factory=dict[tuple[ir.Value, int, int], "Matrix | None"]
    )

    def of(self, value: ir.Value | None) -> Bound:
        """Return the bound of a value; a stored one is measured at the first call."""
        if value is None:
            return UNKNOWN
        bound = self.bounds.get(value)
        if bound is None:
            bound = self.bounds[value] = self._measured(value)
        return bound

    def _measured(self, value: ir.Value) -> Bound:
        tensor = self.stored(value)
        if tensor is None:
            return UNKNOWN
        if value not in self.tensors:
            self.tensors[value] = stored_bounds.of_tensor(tensor)
        return self.tensors[value]

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of a tensor; None for other values, or if it is unknown."""
        kind = self.types.get(value)
        return kind.dtype if isinstance(kind, ir.TensorType) else None

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the sizes of a value's axes, symbolic ones by name; None if its rank is unknown."""
        if value is None:
            return None
        try:
            return self.shapes[value]
        except KeyError:
            return self.shapes.setdefault(value, _dims(value))

    def stored_norm(self, value: ir.Value, axis: int) -> float:
        """Return the largest L2 norm of a stored tensor along its axis -`axis`; infinity for other values."""
        tensor = self.stored(value)
        if tensor is None:
            return math.inf
        if (value, axis) not in self.stored_norms:
            self.stored_norms[value, axis] = stored_bounds.norm_of(tensor, axis)
        return self.stored_norms[value, axis]

    def stored(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a stored value that no caller can override."""
        if value is None or value in self.variable:
            return None
        if value not in self._stored:
            self._stored[value] = stored_as(value)
        return self._stored[value]

    def matrix(self, value: ir.Value | None, rows: int, columns: int) -> Matrix | None:
        """Return the norms of a stored tensor as a matrix of that shape."""
        tensor = self.stored(value)
        if value is None or tensor is None:
            return None
        key = value, rows, columns
        if key not in self.matrices:
            norms = stored_bounds.of_matrix(tensor, rows, columns)
            self.matrices[key] = None if norms is None else Matrix(tensor, norms)
        return self.matrices[key]


def _dims(value: ir.Value) -> Dims | None:
    if value.shape is None:
        tensor = stored_as(value)
        return None if tensor is None else dims(tensor)
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
