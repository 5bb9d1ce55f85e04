"""The bindings of If, Loop, Scan and SequenceMap: which values of a node and its bodies are one value.

A loop-carried value is the node's input, the body's input, the body's output and the node's output at
once; a branch result is an output of every branch and of the node. Each such binding has one type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.onnx_types.schema import TypeVar


@dataclass(frozen=True, slots=True)
class Binding:
    """Ports that carry one value in and out of bodies.

    `inputs` and `outputs` count the node's ports; `enters` and `leaves` name a body's graph and the
    position among its inputs or outputs. A `mapped` binding has sequences outside, their elements inside.
    """

    var: TypeVar
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    enters: tuple[tuple[ir.Graph, int], ...] = ()
    leaves: tuple[tuple[ir.Graph, int], ...] = ()
    mapped: bool = False


def bindings(node: ir.Node) -> tuple[Binding, ...] | None:
    """The bindings of a control-flow node of the default domain; None for any other node, and for one whose
    bodies are missing, are no graphs or do not fit it: it is opaque.
    """
    if node.domain != "" or node.op_type not in _BINDINGS:
        return None
    found: list[Binding] = []
    try:
        for binding in _BINDINGS[node.op_type](node):
            if not _exists(binding):  # at the first: a Scan can speak of thousands of millions
                return None
            found.append(binding)
    except (KeyError, TypeError):
        return None
    return tuple(found)


def _exists(binding: Binding) -> bool:
    """Whether there are the ports of which a binding speaks."""
    enters = all(0 <= i < len(body.inputs) for body, i in binding.enters)
    leaves = all(0 <= i < len(body.outputs) for body, i in binding.leaves)
    return enters and leaves and min((*binding.inputs, *binding.outputs), default=0) >= 0


def may_hold(node: ir.Node) -> bool:
    """Whether a node can have bodies: control flow, and any operator outside the default domain."""
    return node.op_type in _BINDINGS or node.domain != ""  # a test holds the table to what onnx defines


def bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    """The graphs among a node's attributes, in the order in which they are stored."""
    if not may_hold(node):
        return ()
    attributes = node.attributes
    held = [a for a in attributes.values() if a.type in _GRAPHS and not a.is_ref()]
    return tuple(graph for attribute in held for graph in _graphs(attribute))


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _graphs(attribute: ir.Attr) -> Iterable[ir.Graph]:
    single = attribute.type == ir.AttributeType.GRAPH
    return (attribute.as_graph(),) if single else attribute.as_graphs()


def _if(node: ir.Node) -> Iterator[Binding]:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    for i in range(len(node.outputs)):
        yield Binding(TypeVar("V", i), outputs=(i,), leaves=tuple((branch, i) for branch in branches))


def _loop(node: ir.Node) -> Iterator[Binding]:
    body = node.attributes["body"].as_graph()
    carried = len(body.inputs) - 2
    for i in range(len(body.outputs) - 1):
        stays = i < carried
        yield Binding(
            TypeVar("V", i),
            inputs=(i + 2,) if stays else (),
            outputs=(i,),
            enters=((body, i + 2),) if stays else (),
            leaves=((body, i + 1),),
        )


def _scan(node: ir.Node) -> Iterator[Binding]:
    body = node.attributes["body"].as_graph()
    scanned = node.attributes["num_scan_inputs"].as_int()
    first = len(node.inputs) - len(body.inputs)  # Scan 8 has the sequence lengths in front
    carried = len(body.inputs) - scanned
    for i in range(len(body.inputs)):
        stays = i < carried
        yield Binding(
            TypeVar("V", i),
            inputs=(i + first,),
            outputs=(i,) if stays else (),
            enters=((body, i),),
            leaves=((body, i),) if stays else (),
        )
    for i in range(carried, len(body.outputs)):
        yield Binding(TypeVar("scanned", i - carried), outputs=(i,), leaves=((body, i),))


def _sequence_map(node: ir.Node) -> Iterator[Binding]:
    body = node.attributes["body"].as_graph()
    for i in range(len(body.inputs)):
        yield Binding(TypeVar("S", i), inputs=(i,), enters=((body, i),), mapped=True)
    for i in range(len(body.outputs)):
        yield Binding(TypeVar("out", i), outputs=(i,), leaves=((body, i),), mapped=True)


_BINDINGS = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
