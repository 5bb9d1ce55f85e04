"""The attributes of a node, with what a function's call binds in the places of references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto

from amp_rewrite.certificate import signatures
from amp_rewrite.certificate.numbered import Bound, Node, Scope
from amp_rewrite.errors import EXPORT_AGAIN, ModelError

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def bound(proto: Any, scope: Scope) -> dict[str, Bound]:
    """The attributes of a node that stands in a graph; ModelError for two of one name.

    A reference to what a call does not give is absent. Outside functions there are no references.
    """
    found: dict[str, Bound] = {}
    for attribute in proto.attribute:
        if attribute.name in found:
            raise ModelError(f"has a node with two attributes '{attribute.name}'", remedy=EXPORT_AGAIN)
        if scope.bound is None or not attribute.ref_attr_name:
            found[attribute.name] = Bound(attribute, scope)
        elif attribute.ref_attr_name in scope.bound:
            found[attribute.name] = scope.bound[attribute.ref_attr_name]
    return found


def of(node: Node) -> dict[str, Bound]:
    """The attributes of a numbered node."""
    return bound(node.proto, node.scope)


def graphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    """The graphs that an attribute holds."""
    if attribute.type == AttributeProto.GRAPH:
        yield attribute.g
    elif attribute.type == AttributeProto.GRAPHS:
        yield from attribute.graphs
    elif not attribute.type and (attribute.HasField("g") or attribute.graphs):
        raise ModelError(f"has a body '{attribute.name}' without a type", remedy=EXPORT_AGAIN)


def plain(attributes: Mapping[str, Bound]) -> dict[str, AttributeProto]:
    """Those that hold no graphs."""
    return {name: bound.attribute for name, bound in attributes.items() if not has_graphs(bound)}


def has_graphs(bound: Bound) -> bool:
    """Whether an attribute is a body, or several."""
    return bound.attribute.type in _GRAPHS


def is_plain_cast(node: Node) -> bool:
    """Whether a Cast says nothing besides its type but what its schema has by default."""
    if len(node.proto.attribute) == 1:
        return True
    schema = signatures.schema(*node.operator, node.version)
    known = {} if schema is None else schema.attributes
    said = {name: bound.attribute for name, bound in of(node).items() if name != "to"}
    return all(
        name in known and content(known[name].default_value) == content(each) for name, each in said.items()
    )


def content(attribute: AttributeProto) -> object:
    """What an attribute says, for comparison: floats by their bits; a tensor is not read."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return kind, attribute.i
    if kind == AttributeProto.INTS:
        return kind, tuple(attribute.ints)
    said = AttributeProto()
    said.CopyFrom(attribute)
    for field in ("name", "doc_string", "ref_attr_name"):
        said.ClearField(field)
    return kind, said.SerializeToString(deterministic=True)
