"""Where Casts stand: what makes a value in one type, and what reads it in another."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.rewriting.plan import PlannedCast


class Origin(enum.Enum):
    """Where a value that is cast comes from.

    A UNIT, an INPUT of a graph, a STORED tensor, or ANOTHER node, in which float32 has no part.
    """

    UNIT = "unit"
    INPUT = "input"
    STORED = "stored"
    ANOTHER = "another"


@dataclass(frozen=True, slots=True)
class CastSite:
    """Where a Cast stands, or is to stand: a value is made in one type and read in another.

    `names` are those of the value, of the Cast and of what it makes, as far as they are known; `node` tells
    the Cast from other nodes, None before there is one. `maker` and `readers` are positions among the
    decisions; `leaves` holds when what the Cast makes is an output of the model, and `added` when the Cast
    was not in the model that was given.
    """

    node: Hashable
    names: tuple[str, ...]
    dtype: str
    origin: Origin
    producer: int | None
    consumers: tuple[int, ...]
    is_output: bool
    added: bool


def of(graph: UnitGraph, casts: Sequence[PlannedCast], placed: Sequence[ir.Node] = ()) -> Iterator[CastSite]:
    """The Casts that the model has, then those that are planned, in their order.

    `placed` has a node for each of the planned ones once they stand.
    """
    yield from existing(graph, casts)
    for cast, node in zip(casts, placed or [None] * len(casts), strict=True):
        yield planned(graph, cast, node)


def existing(graph: UnitGraph, casts: Iterable[PlannedCast]) -> Iterator[CastSite]:
    """The Casts that the model has, where one side of them is float32.

    What is to read the result of one of `casts`, those that are planned, reads theirs no longer.
    """
    own = dict.fromkeys(graph.units[unit].node for unit in graph.by_operator.get("Cast", ()))
    moved = {site for cast in casts for site in cast.uses} if own else set[Use]()
    for node in own:
        value = node.inputs[0] if not node.domain else None
        if value is not None:
            made = node.outputs[0]
            readers = (unit for unit, site in graph.uses.get(made, ()) if site not in moved)
            ports = (port for port, value in enumerate(graph.root.outputs) if value is made)
            yield CastSite(
                node=node,
                names=names(value, node, made),
                dtype=element(node),
                origin=_origin(graph, value),
                producer=graph.producer.get(value),
                consumers=tuple(dict.fromkeys(readers)),
                is_output=any(Use(graph.root, port) not in moved for port in ports),
                added=False,
            )


def planned(graph: UnitGraph, cast: PlannedCast, node: ir.Node | None = None) -> CastSite:
    """A Cast that is to be added, and its node once it stands."""
    units = {site: unit for unit, site in graph.uses.get(cast.value, ())}
    return CastSite(
        node=node,
        names=(*names(cast.value), f"{cast.value.name or 'value'}__{element_type_name(cast.dtype)}"),
        dtype=element_type_name(cast.dtype),
        origin=_origin(graph, cast.value),
        producer=graph.producer.get(cast.value),
        consumers=tuple(dict.fromkeys(units[site] for site in cast.uses if site in units)),
        is_output=any(site.holder is graph.root for site in cast.uses),
        added=True,
    )


def names(*named: ir.Value | ir.Node | None) -> tuple[str, ...]:
    """The names of these, each once; what has none is left out."""
    return tuple(dict.fromkeys(thing.name for thing in named if thing is not None and thing.name))


def _origin(graph: UnitGraph, value: ir.Value) -> Origin:
    if value in graph.producer:
        return Origin.UNIT
    maker, kind = value.producer(), graph.types.get(value)
    if kind is None or kind.dtype != ir.DataType.FLOAT:
        return Origin.ANOTHER
    if maker is None:
        return Origin.STORED if value.is_initializer() else Origin.INPUT
    return Origin.STORED if maker.op_type == "Constant" else Origin.ANOTHER


def element(node: ir.Node) -> str:
    """The element type that a Cast gives; nothing where it does not say."""
    to = node.attributes.get("to")
    if to is None or to.is_ref():
        return ""
    if to.type == ir.AttributeType.STRING:  # before opset 6
        known = to.as_string() in ir.DataType.__members__
        return element_type_name(ir.DataType[to.as_string()]) if known else ""
    return element_type_name(ir.DataType(to.as_int()))
