"""Values that onnxruntime keeps with their channels in blocks (NCHWc), reduced as they are.

What a convolution makes on a CPU is in blocks of 8 or 16 channels. onnxruntime reorders it for other nodes
that read it; a reduction of all elements needs no order. Where the last block is not full, zeros fill it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import onnx

from amp_rewrite.model import proto_traversal
from amp_rewrite.running.value_reductions import PREFIX

_LARGEST_BLOCK = 16
"""The channels of a block: 16 with AVX-512, else 8."""

_ENOUGH = 8
"""The convolutions from which on it pays to open two sessions for the one that is used."""


def are_likely(graph: onnx.GraphProto) -> bool:
    """Whether a model has enough convolutions for a session that reduces their values in blocks; onnxruntime
    keeps none in blocks whose weights are dequantised.
    """
    dequantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    convolutions = (node for node in graph.node if node.op_type == "Conv" and node.domain == "")
    return sum(node.input[1] not in dequantised for node in convolutions) >= _ENOUGH


def reduce(graph: onnx.GraphProto, checked: Container[str]) -> frozenset[str] | None:
    """Has reductions that were added to a graph read blocks, once onnxruntime has optimised it.

    Each comes right behind the node that makes what it reads. Of values whose last block is not full, only
    those are read that are `checked` for zeros: onnxruntime has names of its own for what it moves.
    Returns the names of values one of whose extremes, if it is 0, may be a zero that fills a
    block. None if no value is reduced in blocks.
    """
    readers, fits = _readers(graph), _zero_filled(graph.node) & _signed(graph.node)
    uncertain, sources = set[str](), dict[str, str]()
    for reorder in (node for node in graph.node if node.op_type == "ReorderOutput"):
        name, source = reorder.output[0], reorder.input[0]
        is_full = _channels(reorder) % _LARGEST_BLOCK == 0
        if (is_full or (source in fits and name in checked)) and all(map(_is_reduction, readers[name])):
            sources[name] = source
            uncertain |= set() if is_full else {name}
    _read_instead(graph, sources)
    return frozenset(uncertain) if sources else None


def _channels(reorder: onnx.NodeProto) -> int:
    return next(each.i for each in reorder.attribute if each.name == "channels")


def _is_reduction(reader: onnx.NodeProto | None) -> bool:
    """Whether a reader is a reduction that was added, of all elements; it is None for the graph's outputs."""
    return reader is not None and _is_added(reader) and reader.op_type in _REDUCTIONS


_REDUCTIONS = {"ReduceMax", "ReduceMin", "ReduceSum"}


def _is_added(node: onnx.NodeProto) -> bool:
    return node.output[0].startswith(PREFIX)


def _readers(graph: onnx.GraphProto) -> Mapping[str, Sequence[onnx.NodeProto | None]]:
    found = defaultdict[str, list[onnx.NodeProto | None]](list)
    for node in graph.node:
        for name in _reads(node):
            found[name].append(node)
    for entry in graph.output:
        found[entry.name].append(None)
    return found


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node and its bodies read."""
    inner = chain.from_iterable(map(proto_traversal.graphs, proto_traversal.bodies(node)))
    return chain(node.input, *(each.input for body in inner for each in body.node))


def _zero_filled(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The values whose last block is filled by zeros, as weights are."""
    found = set[str]()
    for node in nodes:
        keeps = _activation(node) in _OF_ZERO if _is_conv(node) else node.op_type in _KEEP_ZEROS
        if keeps and found.issuperset(_filling(node)):
            found.update(node.output)
    return found


def _filling(node: onnx.NodeProto) -> Sequence[str]:
    """The inputs whose filling tells what fills the output; of a product with stored numbers too, which
    onnxruntime makes a convolution with a group for each channel, and fills with ones.
    """
    if not _is_conv(node):
        return node.input
    is_grouped = any(each.i > 1 for each in node.attribute if each.name == "group")
    return [*node.input[: 1 if is_grouped else 0], *node.input[_ADDED:]]


def _signed(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The values which are likely to have elements of both signs, so that zeros beside them show nowhere."""
    found = set[str]()
    for node in nodes:
        is_sum = node.op_type in ("Add", "Sum") and not found.isdisjoint(node.input)
        if is_sum or (_is_conv(node) and not _activation(node)):
            found.update(node.output)
    return found


def _is_conv(node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" and node.domain == _DOMAIN


_DOMAIN = "com.microsoft.nchwc"

_ADDED = 3
"""The input of a convolution in blocks that is added to what it makes."""

_OF_ZERO = {b"", b"Relu", b"LeakyRelu", b"Tanh"}
"""The activations within a convolution that make 0 of 0; of none, the first."""

_KEEP_ZEROS = {"Add", "AveragePool", "MaxPool", "Mul", "Relu", "Sum", "Tanh"}


def _activation(node: onnx.NodeProto) -> bytes:
    return next((each.s for each in node.attribute if each.name == "activation"), b"")


def _read_instead(graph: onnx.GraphProto, sources: Mapping[str, str]) -> None:
    """Has nodes read the sources of values, which nobody makes then."""
    kept = [node for node in graph.node if sources.keys().isdisjoint(node.output)]
    for node in kept:
        for at, name in enumerate(node.input):
            node.input[at] = sources.get(name, name)
    ordered = list(_soon(kept))
    del graph.node[:], graph.value_info[:]
    graph.node.extend(ordered)


def _soon(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes in an order in which those that were added come as soon as what they read is there."""
    made = {name for node in nodes for name in node.output}
    needs = {id(node): made.intersection(node.input) for node in nodes if _is_added(node)}
    waiting = defaultdict[str, list[onnx.NodeProto]](list)
    for node in nodes:
        for name in needs.get(id(node), ()):
            waiting[name].append(node)
    lacking = {key: len(names) for key, names in needs.items() if names}
    for node in nodes:
        if id(node) not in lacking:
            yield from _with_waiting(node, waiting, lacking)


def _with_waiting(
    node: onnx.NodeProto, waiting: Mapping[str, list[onnx.NodeProto]], lacking: dict[int, int]
) -> Iterator[onnx.NodeProto]:
    """A node, and those that lacked nothing but what it makes."""
    yield node
    for name in node.output:
        for reader in waiting.get(name, ()):
            lacking[id(reader)] -= 1
            if not lacking[id(reader)]:
                yield from _with_waiting(reader, waiting, lacking)
