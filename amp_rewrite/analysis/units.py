"""Units, the smallest parts of a model that change precision, and the dataflow between them.

A unit is (node, type variable): the ports of one node that must share an element type. Only float32
can change, so units exist for float32 alone; ports of every other type belong to no unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Alike, Spelled, WrittenNorm
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.onnx_types.schema import TypeVar


class Use(NamedTuple):
    """A use of a value: an input of a node, or an output of a graph."""

    holder: ir.Node | ir.Graph
    port: int


class Unit(NamedTuple):
    """The ports of `node` that share the type variable `var`, and float32 as their element type.

    `uses` are the ports by which it reads values, `defs` the values that it produces; for control flow both
    include the inputs and outputs of the bodies. `allowed` are the types that the schema lets `var` take.
    `dense` holds when no port is a sequence or an optional, `runs` when the target has a half kernel.
    """

    index: int  # pyright: ignore[reportIncompatibleMethodOverride] - in place of the method of tuples
    node: ir.Node
    var: TypeVar
    uses: tuple[Use, ...]
    defs: tuple[ir.Value, ...]
    allowed: frozenset[str]
    dense: bool = True
    runs: bool = True

    def __str__(self) -> str:
        return f"{self.node.name or self.node.op_type}.{self.var}"


@dataclass(frozen=True, slots=True)
class UnitGraph:
    """All units of a model and the dataflow between them, by position in `units`.

    `producer` is the unit that produces a value, `uses` are the units that read it, each with the port;
    `predecessors` and `successors` are the same between units. `ties` are groups of units that must have one
    colour. `by_operator` has the units of each operator type, whatever its domain. `nodes` are those of
    `root` and of all graphs nested in it, outer graphs first, as they are before any edit.

    `spelled` maps the units in idioms to their parts, and `alike` are the units that a runtime requires to
    have one type; each idiom also has an edge from the producer of its data to its result. `norms` are the
    written-out ones. `sized` are the shapes of values at the
    sizes set for open dimensions (Options.dims), and `on_cpu` the nodes that lost their kernels.
    """

    units: tuple[Unit, ...]
    producer: Mapping[ir.Value, int]
    uses: Mapping[ir.Value, Sequence[tuple[int, Use]]]
    predecessors: Sequence[Sequence[int]]
    successors: Sequence[Sequence[int]]
    ties: tuple[tuple[int, ...], ...]
    by_operator: Mapping[str, Sequence[int]]
    types: Types
    root: ir.Graph
    nodes: GraphNodes
    spelled: Mapping[int, Spelled] = field(default_factory=dict[int, Spelled])
    alike: tuple[Alike, ...] = ()
    norms: tuple[WrittenNorm, ...] = ()
    sized: Mapping[ir.Value, ir.Shape] = field(default_factory=dict[ir.Value, ir.Shape])
    on_cpu: frozenset[ir.Node] = frozenset()

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return the shape of a value at the sizes set for open dimensions, else as declared, or None."""
        return None if value is None else self.sized.get(value, value.shape)

    def dtype(self, value: ir.Value | None) -> ir.DataType:
        """Return the element type of a value; UNDEFINED if it is unknown."""
        kind = self.types.get(value) if value is not None else None
        return kind.dtype if kind is not None else ir.DataType.UNDEFINED

    def units_of(self, *operators: str) -> Iterator[Unit]:
        """Yield the units of these standard ONNX operators."""
        units = (self.units[unit] for operator in operators for unit in self.by_operator.get(operator, ()))
        yield from (unit for unit in units if not unit.node.domain)

    def nodes_of(self, *operators: str) -> Iterable[ir.Node]:
        """Return the nodes of these standard ONNX operators that have units, each once."""
        return dict.fromkeys(unit.node for unit in self.units_of(*operators))

    def producers(self, values: Iterable[ir.Value]) -> Iterator[int]:
        """Yield the units that produce these values."""
        yield from (self.producer[value] for value in values if value in self.producer)

    def of_nodes(self, nodes: Collection[ir.Node]) -> tuple[int, ...]:
        """Return the units of these nodes, in their order; a node may have several."""
        return tuple(unit.index for unit in self.units if unit.node in nodes) if nodes else ()


def value_of(use: Use) -> ir.Value | None:
    """Return the value that is read by a use; None for an empty optional input."""
    holder, port = use
    # isinstance takes twenty times as long: onnx-ir's classes are protocols
    return holder.inputs[port] if type(holder) is ir.Node else holder.outputs[port]


def values_of(unit: Unit) -> Iterator[ir.Value]:
    """Yield the values that a unit produces, and those that it reads, without omitted optional ones."""
    yield from unit.defs
    yield from (value for use in unit.uses if (value := value_of(use)) is not None)


def read_by(graph: UnitGraph, unit: int) -> Iterator[ir.Value]:
    """Return the values that a unit reads, without omitted optional ones."""
    return (value for use in graph.units[unit].uses if (value := value_of(use)) is not None)
