"""The functions of a model, and how many nodes they are once their calls are taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnx import FunctionProto, ModelProto

from amp_rewrite.certificate import attributes, signatures
from amp_rewrite.errors import EXPORT_AGAIN, ModelError

Key = tuple[str, str, str]
Functions = Mapping[Key, FunctionProto]


def canonical(domain: str) -> str:
    """The one name of a domain: that of ONNX has two."""
    return "" if domain == "ai.onnx" else domain


def key(proto: Any) -> Key:
    """What a node calls."""
    return canonical(proto.domain), proto.op_type, proto.overload


def of(model: ModelProto) -> Functions:
    """The functions of a model; ModelError for two of one name, or with two defaults of one attribute."""
    found: dict[Key, FunctionProto] = {}
    for function in model.functions:
        if len({each.name for each in function.attribute_proto}) < len(function.attribute_proto):
            raise ModelError(f"has two defaults of an attribute of '{function.name}'", remedy=EXPORT_AGAIN)
        name = canonical(function.domain), function.name, function.overload
        if found.setdefault(name, function) is not function:
            raise ModelError(f"has two functions '{function.name}'", remedy=EXPORT_AGAIN)
    return found


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those in their bodies."""
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in attributes.graphs(attribute):
                waiting.extend(graph.node)


def size(model: ModelProto, functions: Functions) -> int:
    """How many nodes a model has once all calls are taken apart; ModelError where one never ends."""
    sizes: dict[Key, int] = {}
    called = {name: _counts(function.node, functions) for name, function in functions.items()}
    for start in functions:
        _measure(start, called, sizes)
    own, calls = _counts(model.graph.node, functions)
    for _, counts in ((own, calls), *called.values()):
        _refuse_operators(counts)
    return own + sum(sizes[name] * count for name, count in calls.items())


def _refuse_operators(called: Iterable[Key]) -> None:
    """ModelError for a call of a function that has the name of an operator: onnxruntime and onnx's reference
    take the operator, and another runtime may take the function.
    """
    for domain, name, _ in called:
        if signatures.names(domain, name):
            title = f"{domain}.{name}" if domain else name
            raise ModelError(f"has a function named like the operator {title}", remedy="rename the function")


_Counts = tuple[int, Mapping[Key, int]]


def _counts(nodes: Iterable[Any], functions: Functions) -> _Counts:
    """The number of nodes, and of the calls of each function among them."""
    own, calls = 0, dict[Key, int]()
    for node in all_nodes(nodes):
        own += 1
        name = key(node)
        if name in functions:
            calls[name] = calls.get(name, 0) + 1
    return own, calls


def _measure(start: Key, called: Mapping[Key, _Counts], sizes: dict[Key, int]) -> None:
    waiting, open_ = [start], set[Key]()
    while waiting:
        name = waiting[-1]
        own, calls = called[name]
        missing = [each for each in calls if each not in sizes]
        if name in sizes or not missing:
            waiting.pop()
            sizes.setdefault(name, own + sum(sizes.get(each, 0) * count for each, count in calls.items()))
            continue
        open_.add(name)
        if not open_.isdisjoint(missing):
            raise ModelError(f"the function '{name[1]}' calls itself", remedy=EXPORT_AGAIN)
        waiting.extend(missing)
