"""The bindings of If, Loop, Scan and SequenceMap: ports of a node and its bodies that carry the same value.

A loop-carried value is an input and an output of both the node and its body; a branch result is an output of
the node and of every branch. All values of a binding have the same type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.onnx_types.schema import TypeVar


@dataclass(frozen=True, slots=True)
class Binding:
    """Ports of a node and its bodies that carry the same value.

    `inputs` and `outputs` are ports of the node; `enters` and `leaves` are inputs and outputs of bodies, by
    graph and position. In a `mapped` binding, the values are sequences outside and their elements inside.
    """

    var: TypeVar
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    enters: tuple[tuple[ir.Graph, int], ...] = ()
    leaves: tuple[tuple[ir.Graph, int], ...] = ()
    mapped: bool = False


def bindings(node: ir.Node) -> tuple[Binding, ...] | None:
    """Return the bindings of a control-flow node of the default domain.

    None for any other node, and for one whose bodies are missing, invalid or do not match it: it is opaque.
    """
    if node.domain != "" or node.op_type not in _BINDINGS:
        return None
    body_bindings: list[Binding] = []
    try:
        for binding in _BINDINGS[node.op_type](node):
            if not _exists(binding):  # at once: a Scan can declare billions
                return None
            body_bindings.append(binding)
    except (KeyError, TypeError):
        return None
    return tuple(body_bindings)


def _exists(binding: Binding) -> bool:
    """Return whether all ports of a binding exist."""
    enters = all(0 <= i < len(body.inputs) for body, i in binding.enters)
    leaves = all(0 <= i < len(body.outputs) for body, i in binding.leaves)
    return enters and leaves and min((*binding.inputs, *binding.outputs), default=0) >= 0


def may_have_bodies(node: ir.Node) -> bool:
    """Return whether a node can have bodies: control flow, and any operator outside the default domain."""
    return node.op_type in _BINDINGS or node.domain != ""  # a test compares the table with onnx


def bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    """Return the graphs in a node's attributes, in the order of the attributes."""
    if not may_have_bodies(node):
        return ()
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            graphs.extend(attribute.as_graphs())
    return tuple(graphs)


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
    first = len(node.inputs) - len(body.inputs)  # the first input of Scan 8 is the sequence lengths
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
