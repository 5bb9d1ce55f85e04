"""What the HTML report says of attributes and stored values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.reporting import binades

_SHOWN = 8
"""Numbers of a list that are shown."""

_LONGEST = 80
"""Characters of a text that are shown."""

_LARGEST = 1 << 26
"""Elements up to which a stored value is read for its range."""

_FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


def attributes(node: ir.Node) -> tuple[tuple[str, str], ...]:
    """The attributes of a node that are no bodies: names and values."""
    held = [attribute for attribute in node.attributes.values() if attribute.type not in _GRAPHS]
    return tuple((attribute.name, _text(attribute)) for attribute in held)


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _text(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"of the function: {attribute.ref_attr_name}"
    value = attribute.value
    if isinstance(value, (list, tuple)):
        more = ", ..." if len(value) > _SHOWN else ""
        return _short(f"{', '.join(map(_one, value[:_SHOWN]))}{more}")
    return _short(_one(value))


def _one(value: object) -> str:
    if isinstance(value, ir.TensorProtocol):
        return f"{element_type_name(value.dtype)}{list(value.shape.numpy())}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """The least and the greatest number of a stored value, as text, and counts of its numbers by binade."""

    range: str = ""
    binades: tuple[tuple[int, int], ...] = ()


def stored(tensor: ir.TensorProtocol | None) -> StoredNumbers:
    """The numbers of a stored value of floats; nothing of others, and of large ones.

    A few numbers have no binades. Raises ModelError for a value that cannot be read.
    """
    if tensor is None or tensor.dtype not in _FLOATS or not 0 < tensor.size <= _LARGEST:
        return StoredNumbers()
    least, most, found = np.inf, -np.inf, np.zeros(binades.EXPONENTS, np.int64)
    for block in constants.read(tensor):
        least, most = min(least, float(np.min(block))), max(most, float(np.max(block)))
        found += binades.exponents(block)
    told = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return StoredNumbers(told, tuple(binades.finite(found).items()) if tensor.size > _FEW else ())


_FEW = 16
"""Numbers of which the range says enough."""
