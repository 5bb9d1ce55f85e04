"""Traversal of onnx's protobuf messages: nested graphs, attributes and value declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def in_functions(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graphs nested in the nodes of a model's functions."""
    for function in proto.functions:
        for node in function.node:
            for body in bodies(node):
                yield from graphs(body)


def every_node(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a model: of all its graphs, of those nested in its functions, and of these."""
    for holder in (*graphs(proto.graph), *in_functions(proto), *proto.functions):
        yield from holder.node


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the graphs nested in it."""
    yield graph
    for attribute in attributes(graph.node):
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from graphs(attribute.g)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of a node, except those that refer to an attribute of a function."""
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            continue
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    """The attributes of these nodes."""
    for node in nodes:
        yield from node.attribute


def value_infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """The values that a graph declares: inputs, outputs, and values between them."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def unused_prefix(graph: onnx.GraphProto, wanted: str) -> str:
    """A beginning of names that no value of a graph or its bodies has: what is wanted, or longer."""
    nodes = (node for each in graphs(graph) for node in each.node)
    names = {name for node in nodes for name in (*node.input, *node.output)}
    while any(name.startswith(wanted) for name in names):
        wanted += "_"
    return wanted
