"""Written-out activations: data times a gate that is computed from them.

    x * sigmoid(beta * x)                                 Swish, also as SiLU and QuickGelu
    x / (1 + exp(-x)), x * (1 / (1 + exp(-x)))            the same, also of beta * x
    0.5 * x * (1 + erf(x / sqrt(2)))                      Gelu
    0.5 * x * (1 + tanh(0.798 * (x + 0.0447 * x**3)))     the same, approximated
    x * tanh(softplus(x))                                 Mish
    x * hardsigmoid(x)                                    HardSwish

All gates saturate, so that a power of x that overflows before the gate gives the result of a finite one. An
exponential that overflows makes the quotient 0: below -11.1, the threshold in float16, the error is at most
1.7e-4, a third of half's unit roundoff. A sigmoid in half is 0 below -17. The sigmoid alone is no such idiom:
its consumer may distinguish 1.5e-5 from 0, as a logarithm does. Runtimes fuse these nodes into one if they
have one type. onnxruntime 1.31.1 does so in float32 and float16; patterns that it fuses in float32 but not in
bfloat16 are computed in float32, where that is fewer nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.patterns import Match, Pattern, computed, either, number, op, part, steps, var
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.operators.catalogue import REARRANGES
from amp_rewrite.policy.entries import Operator

SWISH: Operator = ("", "Swish")
_SPELL: dict[str, Operator] = {
    "Erf": ("", "Gelu"),
    "HardSigmoid": ("", "HardSwish"),
    "Sigmoid": SWISH,
    "Tanh": ("", "Gelu"),
}
_MISH: Operator = ("", "Mish")
FUSED = frozenset((SWISH, _MISH, *_SPELL.values()))
"""The operators that these idioms spell out."""
_SATURATING = frozenset((*_SPELL, "Exp"))
"""The operators with bounded outputs, or whose overflow makes a quotient 0."""
_X = var("x")


def _beside_number(node: ir.Node) -> ir.Value | None:
    """Return the operand that a node multiplies by, divides by, or adds to a stored number."""
    if node.op_type in REARRANGES:
        return node.inputs[0]
    operands = patterns.operands(node) if node.op_type in ("Add", "Div", "Mul") else ()
    are_scalar = [patterns.scalar(value) is not None for value in operands]
    if len(are_scalar) != 2 or sum(are_scalar) != 1 or (node.op_type == "Div" and are_scalar[0]):
        return None
    return operands[are_scalar.index(False)]


def _beside_addend(node: ir.Node) -> ir.Value | None:
    return _beside_number(node) if node.op_type == "Add" or node.op_type in REARRANGES else None


def _is_polynomial(node: ir.Node) -> bool:
    """Return whether a node is a step of a polynomial; no difference, as that may be of infinities."""
    if node.op_type in ("Pow", "Div"):
        return len(node.inputs) == 2 and patterns.scalar(node.inputs[1]) is not None
    return node.op_type in ("Add", "Mul", "Softplus") or node.op_type in REARRANGES


_MOST = 8
"""The most nodes of any of these patterns from the data to the operator that saturates."""


def _gated() -> Pattern:
    """Return the pattern of data times what saturates, in either order of the constant factors."""
    front = part("front", computed("x", _is_polynomial, _MOST))
    data = either(_X, part("data", op("Mul Div", _X, number())))
    unscaled = op("Mul", steps(_beside_addend, op("Erf Tanh", front)), _X)
    halved = either(part("last", op("Mul", unscaled, number())), op("Div", unscaled, number()))
    return either(halved, op("Mul", steps(_beside_number, op(" ".join(_SPELL), front)), data))


def _over_exponential() -> Pattern:
    """Return the pattern of data over 1 + exp(-data)."""
    total = op("Add", op("Exp", either(op("Neg", _X), op("Mul", _X, number()))), number(1.0))
    inverse = either(op("Div", number(1.0), total), op("Reciprocal", total))
    return either(op("Div", _X, total), op("Mul", _X, inverse))


_ACTIVATIONS: tuple[tuple[str, int, Pattern], ...] = (
    *((operator, 6, _gated()) for operator in _SPELL),
    ("Exp", 4, _over_exponential()),
)
"""Rarest operator of each kind, number of nodes from there to the end, and the pattern that they spell."""


def _is_fused_in_float32(core: str, match: Match) -> bool:
    """Return whether onnxruntime fuses a spelling in float32, and not in bfloat16.

    Source: gelu_fusion.cc, fast_gelu_fusion.cc and quick_gelu_fusion.cc in onnxruntime/core/optimizer; seen
    with onnxruntime-gpu 1.31.1.
    """
    front = sorted(node.op_type for node in match.of("front"))
    if core == "Sigmoid":
        return front == ["Mul"]
    if core == "Erf":
        return front == ["Div"] and not {"data", "last"}.isdisjoint(match.parts)
    # the factored form; the fusion of the one with Pow also takes a preceding Cast
    is_factored = front == ["Add", "Mul", "Mul", "Mul", "Mul"]
    return core == "Tanh" and is_factored and "data" in match.parts


def find_activations(graph: UnitGraph, half: Half) -> Iterator[Idiom]:
    """Yield the written-out activations of a model."""
    for operator, most, pattern in _ACTIVATIONS:
        for node in graph.nodes_of(operator):
            ends = [*patterns.ends_behind(node, most)]
            candidates = (_activation(node, end, pattern, half) for end in reversed(ends))
            yield from [activation for activation in candidates if activation is not None][:1]


def _activation(core: ir.Node, end: ir.Node, pattern: Pattern, half: Half) -> Idiom | None:
    if not patterns.is_default(end, "Div", "Mul"):
        return None
    match = patterns.match(pattern, end.outputs[0])
    if match is None or core not in match.nodes or not patterns.are_closed(match.nodes, end):
        return None
    is_mish = any(node.op_type == "Softplus" for node in match.of("front"))
    operator = _MISH if is_mish else _SPELL.get(core.op_type, SWISH)
    data, nodes = match.values["x"], match.but()
    if half is not FLOAT16 and _is_fused_in_float32(core.op_type, match):
        return Idiom(operator, data, inner=nodes, result=end)
    return Idiom(operator, data, outer=nodes)


def find_saturated(graph: UnitGraph) -> Iterator[ir.Value]:
    """Yield the values inside of written-out activations on the way to what saturates: they may overflow."""
    gates = {graph.units[unit].node for unit, part in graph.spelled.items() if part.operator in FUSED}
    saturated: dict[ir.Value, bool] = {}

    def saturates(value: ir.Value) -> bool:
        if value not in saturated:
            saturated[value] = False
            readers = {reader for reader, _ in value.uses()}
            saturated[value] = bool(readers) and not value.is_graph_output() and all(map(leads, readers))
        return saturated[value]

    def leads(node: ir.Node) -> bool:
        return node in gates and (node.op_type in _SATURATING or all(map(saturates, node.outputs)))

    yield from (value for node in gates for value in node.outputs if saturates(value))
