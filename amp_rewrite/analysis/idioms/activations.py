"""Written-out activations: data times a gate that is computed from them.

    x * sigmoid(beta * x)                                 Swish, also as SiLU and QuickGelu
    0.5 * x * (1 + erf(x / sqrt(2)))                      Gelu
    0.5 * x * (1 + tanh(0.798 * (x + 0.0447 * x**3)))     the same, approximated
    x * tanh(softplus(x))                                 Mish
    x * hardsigmoid(x)                                    HardSwish

All gates saturate, so that a power of x that overflows on its way into one gives what a finite one would.
Runtimes fuse these nodes to one, if they have one type. onnxruntime 1.31.1 does so in float32 and float16;
what it fuses in float32 and not in bfloat16 is computed in float32, where that is fewer nodes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.entries import Operator

_SPELL: dict[str, Operator] = {
    "Erf": ("", "Gelu"),
    "HardSigmoid": ("", "HardSwish"),
    "Sigmoid": ("", "Swish"),
    "Tanh": ("", "Gelu"),
}
_MISH: Operator = ("", "Mish")
_MOST = 8
"""The most nodes from the data to the operator that saturates, which none of these has more of."""


def find(graph: UnitGraph, half: Half) -> Iterator[Idiom]:
    """The written-out activations of a model."""
    for name in _SPELL:
        for unit in dict.fromkeys(graph.by_operator.get(name, ())):
            node = graph.units[unit].node
            found = _of(node) if _is_plain(node) else None
            if found is not None:
                yield found.idiom(half)


def _is_plain(node: ir.Node) -> bool:
    """Whether a node is of the default domain, and makes one value."""
    return not node.domain and len(node.outputs) == 1 and bool(node.inputs)


@dataclass(frozen=True, slots=True)
class _Activation:
    """The nodes from the data to the operator that saturates, that one, and those from there to the end."""

    data: ir.Value
    front: tuple[ir.Node, ...]
    core: ir.Node
    gate: _Gate

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return tuple(dict.fromkeys((*self.front, self.core, *self.gate.nodes)))

    def idiom(self, half: Half) -> Idiom:
        if half is not FLOAT16 and self._is_fused_in_float32():
            return Idiom(self._operator, self.data, inner=self.nodes, result=self.gate.last)
        return Idiom(self._operator, self.data, outer=self.nodes)

    @property
    def _operator(self) -> Operator:
        is_mish = any(node.op_type == "Softplus" for node in self.front)
        return _MISH if is_mish else _SPELL[self.core.op_type]

    def _is_fused_in_float32(self) -> bool:
        """Whether onnxruntime fuses this spelling in float32, and not in bfloat16.

        Source: gelu_fusion.cc, fast_gelu_fusion.cc and quick_gelu_fusion.cc in onnxruntime/core/optimizer;
        seen with onnxruntime-gpu 1.31.1.
        """
        front = [node.op_type for node in self.front]
        if self.core.op_type == "Sigmoid":
            return front == ["Mul"]
        if self.core.op_type == "Erf":
            return front == ["Div"] and self.gate.factor in (_Factor.DATA, _Factor.LAST)
        is_polynomial = sorted(front) == _FACTORED  # with Pow, it takes a Cast before for a part of its own
        return self.core.op_type == "Tanh" and is_polynomial and self.gate.factor is _Factor.DATA


_FACTORED = ["Add", "Mul", "Mul", "Mul", "Mul"]


class _Factor(enum.Enum):
    """Where a number is multiplied: nowhere, before the gate, at the data, last, or last by a division."""

    NONE = enum.auto()
    BEFORE = enum.auto()
    DATA = enum.auto()
    LAST = enum.auto()
    DIVISOR = enum.auto()


class _Gate(NamedTuple):
    """What the data may be, and the nodes behind the one that saturates, the last one last."""

    data: ir.Value
    nodes: tuple[ir.Node, ...]
    factor: _Factor

    @property
    def last(self) -> ir.Node:
        return self.nodes[-1]


def _of(core: ir.Node) -> _Activation | None:
    for gate in _gates(core):
        front = _front(core.inputs[0], gate.data)
        if front is not None:
            found = _Activation(gate.data, front, core, gate)
            return found if patterns.are_closed(found.nodes, gate.last) else None
    return None


def _gates(core: ir.Node) -> Iterator[_Gate]:
    """How the data may be gated: as they are, or multiplied by a number at their own node."""
    behind: list[ir.Node] = []
    node = patterns.only_reader(core.outputs[0])
    value = core.outputs[0]
    while node is not None and len(behind) < _LONGEST and _is_plain(node) and _scaled(node) is value:
        behind.append(node)
        value = node.outputs[0]
        node = patterns.only_reader(value)
    data = patterns.other(node, value) if node is not None and patterns.is_default(node, "Mul") else None
    if node is None or data is None or data is value or not _is_plain(node):
        return
    is_scaled = any(part.op_type != "Add" for part in behind)
    factor = _Factor.BEFORE if is_scaled else _Factor.NONE
    yield _ended(_Gate(data, (*behind, node), factor), core)
    maker = data.producer()
    whole = _factored(maker) if maker is not None else None
    if maker is not None and whole is not None:
        yield _Gate(whole, (maker, *behind, node), _Factor.DATA)


def _ended(gate: _Gate, core: ir.Node) -> _Gate:
    """The gate with the factor that stands behind it, where that belongs to the activation."""
    last = patterns.only_reader(gate.last.outputs[0])
    if last is None or gate.factor is not _Factor.NONE or core.op_type not in _HALVED:
        return gate
    if _factored(last) is not gate.last.outputs[0]:
        return gate
    factor = _Factor.LAST if last.op_type == "Mul" else _Factor.DIVISOR
    return _Gate(gate.data, (*gate.nodes, last), factor)


_LONGEST = 3
_HALVED = ("Erf", "Tanh")


def _scaled(node: ir.Node) -> ir.Value | None:
    """What a node multiplies by, divides by or adds to a stored number; None for any other node."""
    return _beside_number(node, "Add") or _factored(node)


def _factored(node: ir.Node) -> ir.Value | None:
    """What a node multiplies or divides by a stored number; None for any other node."""
    if patterns.is_default(node, "Div") and len(node.inputs) == 2:
        return node.inputs[0] if patterns.scalar(node.inputs[1]) is not None else None
    return _beside_number(node, "Mul")


def _beside_number(node: ir.Node, operator: str) -> ir.Value | None:
    given = patterns.operands(node)
    if not patterns.is_default(node, operator) or len(given) != 2:
        return None
    numbers = [patterns.scalar(value) is not None for value in given]
    return given[numbers.index(False)] if sum(numbers) == 1 else None


def _front(value: ir.Value | None, data: ir.Value) -> tuple[ir.Node, ...] | None:
    """The nodes that compute `value` from `data` and stored numbers alone; None where it takes others."""
    found: dict[ir.Node, None] = {}
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value is data or patterns.scalar(value) is not None:
            continue
        node = value.producer() if value is not None else None
        if node is None or not _is_polynomial(node) or len(found) == _MOST:
            return None
        if node not in found:
            found[node] = None
            waiting.extend(node.inputs)
    return tuple(found)


def _is_polynomial(node: ir.Node) -> bool:
    """Whether a node is a step of a polynomial; no difference, which could be that of infinities."""
    if patterns.is_default(node, "Pow", "Div"):
        return len(node.inputs) == 2 and patterns.scalar(node.inputs[1]) is not None
    return patterns.is_default(node, "Add", "Mul", "Softplus")
