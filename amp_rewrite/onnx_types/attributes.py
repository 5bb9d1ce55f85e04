"""What a node says by attributes; one of another type, or that refers to one of a function, says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir


def _said(node: ir.Node, name: str, kind: ir.AttributeType, default: Any) -> Any:
    attribute = node.attributes.get(name)
    is_said = attribute is not None and not attribute.is_ref() and attribute.type == kind
    return attribute.value if attribute is not None and is_said else default


def integer(node: ir.Node, name: str, default: int = 0) -> int:
    """An attribute that is a whole number."""
    return _said(node, name, ir.AttributeType.INT, default)


def integers(node: ir.Node, name: str) -> Sequence[int]:
    """An attribute that is a list of them; empty without one."""
    return _said(node, name, ir.AttributeType.INTS, ())


def number(node: ir.Node, name: str, default: float) -> float:
    """An attribute that is a number."""
    return _said(node, name, ir.AttributeType.FLOAT, default)


def numbers(node: ir.Node, name: str) -> Sequence[float]:
    """An attribute that is a list of numbers; empty without one."""
    return _said(node, name, ir.AttributeType.FLOATS, ())


def text(node: ir.Node, name: str, default: str = "") -> str:
    """An attribute that is a text."""
    return _said(node, name, ir.AttributeType.STRING, default)


def texts(node: ir.Node, name: str) -> Sequence[str]:
    """An attribute that is a list of texts; empty without one."""
    return _said(node, name, ir.AttributeType.STRINGS, ())
