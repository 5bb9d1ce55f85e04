"""Descriptions of Casts for reports: where a value is produced in one type and used in another.

`plan` decides on Casts, and `cast_insertion` places them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.rewriting.plan import PlannedCast
from amp_rewrite.rewriting.records import Count


class Origin(enum.Enum):
    """The origin of a value that is cast: a UNIT, an INPUT of a graph, a STORED tensor, or ANOTHER node,
    which has no float32.
    """

    UNIT = "unit"
    INPUT = "input"
    STORED = "stored"
    ANOTHER = "another"


class CastSite(msgspec.Struct, frozen=True):
    """An existing or planned Cast: a value is produced in one type and used in another.

    `names` are the known ones of the value, of the Cast and of its output. `producer` and `consumers` are
    positions in the decisions; `is_output` says whether the output of the Cast is an output of the model, and
    `added` whether the rewrite adds the Cast.
    """

    names: tuple[str, ...]
    dtype: str
    origin: Origin
    producer: Count | None
    consumers: tuple[Count, ...]
    is_output: bool
    added: bool

    @property
    def output(self) -> str:
        """The name of the Cast's output, which tells Casts apart."""
        return self.names[-1] if self.names else ""

    def of_units(self, places: Mapping[int | None, int]) -> CastSite:
        """Return the site with other positions; units without one are left out."""
        consumers = tuple(places[unit] for unit in self.consumers if unit in places)
        return msgspec.structs.replace(self, producer=places.get(self.producer), consumers=consumers)


def of(
    graph: UnitGraph, casts: Sequence[PlannedCast], cast_nodes: Sequence[ir.Node] = ()
) -> Iterator[CastSite]:
    """Yield the sites of the Casts in the model, then of the planned ones, in order.

    `cast_nodes` has a node for each planned Cast once they are inserted.
    """
    yield from _existing(graph, casts)
    for cast, node in zip(casts, cast_nodes or [None] * len(casts), strict=True):
        yield _planned(graph, cast, node)


def _existing(graph: UnitGraph, casts: Iterable[PlannedCast]) -> Iterator[CastSite]:
    """Yield the sites of the Casts in the model with float32 as their input or output type.

    Uses that move to the output of a planned Cast (`casts`) do not count.
    """
    existing_casts = dict.fromkeys(graph.units[unit].node for unit in graph.by_operator.get("Cast", ()))
    redirected_uses = {use for cast in casts for use in cast.uses} if existing_casts else set[Use]()
    for node in existing_casts:
        value = node.inputs[0] if not node.domain else None
        if value is not None:
            output = node.outputs[0]
            consumers = (unit for unit, use in graph.uses.get(output, ()) if use not in redirected_uses)
            ports = (port for port, value in enumerate(graph.root.outputs) if value is output)
            yield CastSite(
                names=_names(value, node, output),
                dtype=_element(node),
                origin=_origin(graph, value),
                producer=graph.producer.get(value),
                consumers=tuple(dict.fromkeys(consumers)),
                is_output=any(Use(graph.root, port) not in redirected_uses for port in ports),
                added=False,
            )


def _planned(graph: UnitGraph, cast: PlannedCast, node: ir.Node | None) -> CastSite:
    units = {use: unit for unit, use in graph.uses.get(cast.value, ())}
    output = f"{cast.value.name or 'value'}__{element_type_name(cast.dtype)}"
    return CastSite(
        names=_names(node.inputs[0], node, node.outputs[0]) if node else (*_names(cast.value), output),
        dtype=element_type_name(cast.dtype),
        origin=_origin(graph, cast.value),
        producer=graph.producer.get(cast.value),
        consumers=tuple(dict.fromkeys(units[use] for use in cast.uses if use in units)),
        is_output=any(use.holder is graph.root for use in cast.uses),
        added=True,
    )


def _names(*items: ir.Value | ir.Node | None) -> tuple[str, ...]:
    """Return the distinct names of these, without those that have none."""
    return tuple(dict.fromkeys(thing.name for thing in items if thing is not None and thing.name))


def _origin(graph: UnitGraph, value: ir.Value) -> Origin:
    if value in graph.producer:
        return Origin.UNIT
    producer, type_ = value.producer(), graph.types.get(value)
    if type_ is None or type_.dtype != ir.DataType.FLOAT:
        return Origin.ANOTHER
    if producer is None:
        return Origin.STORED if value.is_initializer() else Origin.INPUT
    return Origin.STORED if producer.op_type == "Constant" else Origin.ANOTHER


def _element(node: ir.Node) -> str:
    """Return the element type of a Cast's output; an empty string if it is not declared."""
    typed = schema.of(node)
    dtype = None if typed is None else schema.declared(node, typed)
    return "" if dtype is None else element_type_name(dtype)
