"""Traversal of onnx's protobuf messages: nested graphs, attributes and value declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def in_functions(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs nested in the nodes of a model's functions."""
    for function in proto.functions:
        for node in function.node:
            for body in bodies(node):
                yield from graphs(body)


def every_node(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model's graphs and functions, and of all graphs nested in them."""
    for holder in (*graphs(proto.graph), *in_functions(proto), *proto.functions):
        yield from holder.node


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the graphs nested in it."""
    yield graph
    for attribute in attributes(graph.node):
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from graphs(attribute.g)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of a node, except references to an attribute of a function."""
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            continue
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    """Yield the attributes of these nodes."""
    for node in nodes:
        yield from node.attribute


def value_infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield the values that a graph declares: inputs, outputs, and intermediate values."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
