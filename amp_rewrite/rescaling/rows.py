"""Rows: the linear equations that operators impose on the exponents of the values at their ports.

With exponent e, v is stored as v * 2**-e. Rules hold for the bits too: sums, products, quotients, square
roots and maxima commute with powers of two as long as nothing is subnormal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.model import patterns
from amp_rewrite.onnx_facts.operators import (
    COMPARISONS,
    LINEAR_IN_ALL,
    LINEAR_IN_THE_FIRST,
    NORMS,
    POSITIVE_IN_THE_FIRST,
    PRODUCTS_OF_TWO,
    UNSCALED,
)
from amp_rewrite.onnx_types import schema

Row = Mapping[int, int]
"""Coefficients by port, an input by its position and output k as ~k: their sum, times exponents, is 0. A port
with coefficient 0 has any exponent.
"""
Ports = Sequence[int]
Rule = Callable[[ir.Node, Ports], Sequence[Row]]
"""Returns the rows of a node, given its ports of float32. The ports that are in none have exponent 0."""

_OUT, _SUM = ~0, ~3


def of(node: ir.Node, ports: Ports) -> Sequence[Row]:
    """Return the rows of a node with these ports of float32; none for an operator without a rule."""
    rows = _RULES.get(_operator(node), _pin)(node, ports)
    return [{port: row[port] for port in row if port in ports} for row in rows]


def scaled_by_epsilon(node: ir.Node) -> int | None:
    """Return the port of a norm whose exponent e scales the attribute epsilon, to epsilon * 2**(-2 e)."""
    norm = NORMS.get(_operator(node))
    return norm and norm[0][0]


def epsilon(node: ir.Node) -> float:
    """Return the epsilon of a norm, by default that of its schema."""
    return schema.number(node, "epsilon", 1e-12 if node.op_type.startswith("Skip") else 1e-5)


def _operator(node: ir.Node) -> tuple[str, str]:
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def _pin(_: ir.Node, __: Ports) -> Sequence[Row]:
    return ()


def _alike(ports: Ports, alike: Iterable[int]) -> list[Row]:
    present = [port for port in alike if port in ports]
    return [{one: 1, other: -1} for one, other in itertools.pairwise(present)]


def _equal(*alike: int) -> Rule:
    return lambda _, ports: _alike(ports, alike)


def _together(_: ir.Node, ports: Ports) -> Sequence[Row]:
    return _alike(ports, ports)


def _inputs_together(_: ir.Node, ports: Ports) -> Sequence[Row]:
    return _alike(ports, [port for port in ports if port >= 0])


def _linear(row: Row, *addends: int) -> Rule:
    """Return the rule of operators with this row, to whose output others are added."""
    return lambda _, ports: [row, *_alike(ports, (_OUT, *addends))]


def _without(attribute: str, rule: Rule) -> Rule:
    """Return a rule for nodes without this attribute, or with 0."""

    def guarded(node: ir.Node, ports: Ports) -> Sequence[Row]:
        stated = node.attributes.get(attribute)
        return rule(node, ports) if stated is None or (not stated.is_ref() and stated.value == 0) else ()

    return guarded


def _pad(node: ir.Node, ports: Ports) -> Sequence[Row]:
    is_constant = schema.text(node, "mode", "constant") == "constant"
    return _alike(ports, (0, 2, _OUT) if is_constant else (0, _OUT))


def _scatter(node: ir.Node, ports: Ports) -> Sequence[Row]:
    return () if patterns.effective_op(node) == "Mul" else _alike(ports, (0, 2, _OUT))


def _power(node: ir.Node, _: Ports) -> Sequence[Row]:
    """Runtimes compute the second and the third power as products, and others with errors of their own."""
    power = patterns.scalar(node.inputs[1])
    return [{_OUT: 1, 0: -int(power)}] if power in (2, 3) else ()


def _batch_norm(_: ir.Node, ports: Ports) -> Sequence[Row]:
    return [*_alike(ports, (0, 3)), *_alike(ports, (_OUT, 2)), {_OUT: 1, 0: -1, 1: -1}]


def _norm(node: ir.Node, ports: Ports) -> Sequence[Row]:
    """Return the rows of a norm whose statistics nobody reads."""
    data, weights = NORMS[_operator(node)]
    if any(port < 0 and port not in (_OUT, _SUM) for port in ports):
        return ()
    return [{data[0]: 0}, *_alike(ports, (*data, _SUM)), *_alike(ports, (*weights, _OUT))]


def _cast(node: ir.Node, _: Ports) -> Sequence[Row]:
    return [{0: 0}] if schema.integer(node, "to") == ir.DataType.BOOL else ()


_MS = "com.microsoft"
_POSITIVE = frozenset(POSITIVE_IN_THE_FIRST) - {"GlobalLpPool", "LpPool"}
"""Without those that runtimes compute as powers, with errors of their own."""

_RULES: Mapping[tuple[str, str], Rule] = {
    **{("", name): _equal(0, _OUT) for name in (*LINEAR_IN_THE_FIRST, *_POSITIVE)},
    **{("", name): _together for name in (*LINEAR_IN_ALL, "Max", "Min")},
    **{("", name): _inputs_together for name in COMPARISONS},
    **{("", name): lambda *_: [{0: 0}] for name in UNSCALED},
    **dict.fromkeys(NORMS, _norm),
    **dict.fromkeys(PRODUCTS_OF_TWO, _linear({_OUT: 1, 0: -1, 1: -1}, 2)),
    ("", "BatchNormalization"): _without("training_mode", _batch_norm),
    ("", "Cast"): _cast,
    ("", "Clip"): lambda node, ports: () if {"min", "max"} & {*node.attributes} else _together(node, ports),
    ("", "DequantizeLinear"): _equal(1, _OUT),
    ("", "Div"): _linear({_OUT: 1, 0: -1, 1: 1}),
    ("", "Einsum"): lambda _, ports: [{port: -1 if port >= 0 else 1 for port in ports}],
    ("", "Pad"): _without("value", _pad),
    ("", "Pow"): _power,
    ("", "QuantizeLinear"): _equal(0, 1),
    ("", "Reciprocal"): _linear({_OUT: 1, 0: 1}),
    ("", "ReduceSumSquare"): _linear({_OUT: 1, 0: -2}),
    ("", "Resize"): _without("extrapolation_value", _equal(0, _OUT)),
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    ("", "Split"): lambda _, ports: _alike(ports, [port for port in ports if port <= 0]),
    ("", "Sqrt"): _linear({_OUT: 2, 0: -1}),
    ("", "Where"): _equal(1, 2, _OUT),
    (_MS, "GroupNorm"): _without("activation", _norm),
    (_MS, "MatMulNBits"): _linear({_OUT: 1, 0: -1, 2: -1}, 5),
    (_MS, "RotaryEmbedding"): _equal(0, _OUT),
}
"""Rules by the definitions of ONNX and of onnxruntime's operators."""
